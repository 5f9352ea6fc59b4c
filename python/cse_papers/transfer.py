"""Transfer tasks by SentEval's protocol: logistic regression on frozen embeddings (Conneau and Kiela 2018).

=====  =============================  =======================================================================
task   files                          protocol
=====  =============================  =======================================================================
MR     ``mr.tsv``                     nested cross-validation over 10 folds; mean accuracy of the outer folds
CR     ``cr.tsv``                     as for MR
SUBJ   ``subj.tsv``                   as for MR
MPQA   ``mpqa.tsv``                   as for MR
SST2   ``sst2.{train,dev,test}.tsv``  penalty chosen on dev; classifier trained on train; accuracy on test
TREC   ``trec.{train,test}.tsv``      penalty chosen by 10-fold cross-validation on train; accuracy on test
MRPC   ``mrpc.{train,test}.tsv``      as for TREC, on the features [abs(u - v), u * v]; accuracy and F1
=====  =============================  =======================================================================

Each line of a file holds a label and a text (for MRPC, two sentences), separated by tabs. The penalty is one of
1e-5, 1e-4, 1e-3 and 1e-2, as in SentEval. The classifier is a logistic regression with an L2 penalty. SentEval's
objective is mean cross-entropy plus ``penalty / 2`` times the squared norm of the weights. ``converged`` minimises this
objective, so that only the folds are random; ``senteval`` trains with Adam and stops early, as SentEval does. The
results differ if Adam converges slowly, as it does for embeddings of unit length.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from cse import InputError
from cse.evaluation.base import Encodes, Evaluation, Mask, Report, Sample, Seen, embed, needed, read_lines
from cse.options import Opt

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

SEED = 1111  # as in SentEval, for the folds and for the classifiers
MAX_EPOCH = 200  # SentEval's limit; training ends after 204 epochs, see ``senteval``


Classifier = Any
"""A trained classifier, with scikit-learn's methods ``predict(x)`` and ``score(x, y)``."""
Fit = Callable[[Matrix, Labels, float, "tuple[Matrix, Labels] | None"], Classifier]
"""A function that returns a trained classifier. Its arguments are features ``(n, D)``, labels ``(n,)``, the penalty,
and validation data for early stopping, which may be None."""


def converged(x: Matrix, y: Labels, penalty: float, valid: tuple[Matrix, Labels] | None = None) -> Classifier:
    """Minimises the objective with scikit-learn; the intercept is not penalised, and ``valid`` is not used.

    scikit-learn's C is 1 / (n * penalty). For two classes, scikit-learn has a single weight vector w, while SentEval
    has one per class; the equivalent vectors of smallest norm are w / 2 and -w / 2. The sum of their squared norms is
    half the squared norm of w, so C is twice as large for two classes.
    """
    from sklearn.linear_model import LogisticRegression

    # newton-cholesky is the fastest solver for many rows and two classes. For more classes, its Hessian has
    # (classes * D)^2 entries, so lbfgs is used.
    solver, factor = ("newton-cholesky", 2) if y.max() < 2 else ("lbfgs", 1)
    # At the default tolerance of 1e-4, rounding errors in the embeddings changed three of TREC's 500 predictions.
    model = LogisticRegression(C=factor / (len(y) * penalty), solver=solver, max_iter=10_000, tol=1e-6)
    return model.fit(x, y)


def senteval(
    x: Matrix, y: Labels, penalty: float, valid: tuple[Matrix, Labels] | None = None, seed: int = SEED
) -> Classifier:
    """Trains with Adam and the settings of SentEval's default protocol, not those of its fast prototyping protocol.

    The learning rate is 0.001, a batch has 64 rows, and the penalty is Adam's weight decay, which also applies to the
    intercept. The accuracy on ``valid`` is measured every 4 epochs. Training ends after six measurements without
    a new best accuracy, consecutive or not, or after 204 epochs: SentEval's limit of 200 (``max_epoch``) is compared
    before each block of 4 epochs, and a block still begins after exactly 200. The weights with the best accuracy are
    kept. Without ``valid``, a random 5 % of the rows are held out for validation.
    """
    import torch

    random = np.random.RandomState(seed)
    classes = int(y.max()) + 1
    if valid is None:
        order = random.permutation(len(x))
        cut = max(1, int(0.05 * len(x)))
        valid, x, y = (x[order[:cut]], y[order[:cut]]), x[order[cut:]], y[order[cut:]]
    features, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = torch.nn.Linear(x.shape[1], classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=penalty, fused=True)
    best, best_model, failures, epoch = -1.0, model, 0, 0
    while epoch <= MAX_EPOCH:
        for _ in range(4):
            for rows in torch.from_numpy(random.permutation(len(x))).split(64):  # type: ignore[no-untyped-call]
                loss = torch.nn.functional.cross_entropy(model(features[rows]), labels[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            epoch += 1
        accuracy = AdamClassifier(model).score(*valid)
        if accuracy > best:
            best, best_model = accuracy, copy.deepcopy(model)
        else:
            if failures >= 5:  # a new best does not reset ``failures``, as in SentEval
                break
            failures += 1
    return AdamClassifier(best_model)


class AdamClassifier:
    """The classifier that ``senteval`` trains: a linear layer."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, x: Matrix) -> Labels:
        """Returns the predicted labels ``(n,)`` for features ``(n, D)``."""
        import torch

        with torch.no_grad():
            labels: Labels = self.model(torch.from_numpy(x).float()).argmax(1).numpy()
        return labels

    def score(self, x: Matrix, y: Labels) -> float:
        """Returns the accuracy, 0 to 1."""
        return float((self.predict(x) == y).mean())


CLASSIFIERS: dict[str, Fit] = {"converged": converged, "senteval": senteval}
"""Functions that train a classifier, by the value of ``--set transfer.classifier``."""


PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
# Units of progress for training one classifier; encoding one text is one unit.
FIT = 50

Advance = Callable[[], object]


@dataclass(frozen=True)
class TransferTask:
    """A task: its title, the number of rows of each complete split, and whether its rows are pairs.

    A task with a single file has the split ``all``.
    """

    title: str
    rows: dict[str, int]
    pairs: bool = False

    def fits(self, folds: int) -> int:
        """Returns the number of classifiers that an evaluation with ``folds`` folds trains."""
        if "all" in self.rows:
            return folds * (folds * len(PENALTIES) + 1)
        return len(PENALTIES) * (1 if "dev" in self.rows else folds) + 1


TASKS = {
    "mr": TransferTask("MR", {"all": 10662}),
    "cr": TransferTask("CR", {"all": 3775}),
    "subj": TransferTask("SUBJ", {"all": 10000}),
    "mpqa": TransferTask("MPQA", {"all": 10606}),
    "sst2": TransferTask("SST2", {"train": 67349, "dev": 872, "test": 1821}),
    "trec": TransferTask("TREC", {"train": 5452, "test": 500}),
    "mrpc": TransferTask("MRPC", {"train": 4076, "test": 1725}, pairs=True),
}
"""The tasks in the order of the papers' tables, keyed by the first part of their file names."""


@dataclass(frozen=True)
class TransferOptions:
    """Options of the transfer evaluation."""

    allow_partial: Annotated[
        bool, Opt("accept incomplete files; the average is given only if all seven tasks are complete")
    ] = False
    folds: Annotated[int, Ge(2), Opt("folds of the cross-validation; SentEval uses 10")] = 10
    classifier: Annotated[
        Literal["converged", "senteval"],
        Opt("logistic regression trained to convergence, or with SentEval's early stopping (slower)"),
    ] = "converged"


@dataclass(frozen=True)
class Split:
    """The rows of one file: the texts of each column, and the labels as integers, from 0 in sorted order."""

    columns: list[list[str]]
    labels: Labels


def load(folder: Path, key: str, task: TransferTask, allow_partial: bool) -> dict[str, Split]:
    """Returns the splits of a task, whose files are TSV files with a label and one or two texts per line."""
    width, raw = 3 if task.pairs else 2, {}
    for split, expected in task.rows.items():
        path = folder / (f"{key}.tsv" if split == "all" else f"{key}.{split}.tsv")
        lines = [(number, line.split("\t")) for number, line in read_lines(path)]
        for number, fields in lines:
            if len(fields) != width:
                raise InputError(f"{path}: line {number} has {len(fields)} fields, but {width} are expected")
        if len(lines) != expected and not allow_partial:
            raise InputError(
                f"{path}: {len(lines):,} rows, but {task.title} has {expected:,}; get the whole file, or pass "
                "--allow-partial to score it without an average"
            )
        raw[split] = [fields for _, fields in lines]
    names = sorted({label for rows in raw.values() for label, *_ in rows})
    splits = {}
    for split, rows in raw.items():
        labels, *texts = (list(column) for column in zip(*rows, strict=True))
        splits[split] = Split(texts, np.array([names.index(label) for label in labels], dtype=np.int64))
    return splits


def pair_features(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> Matrix:
    """Returns the features [abs(u - v), u * v] of pairs of embeddings ``(n, D)``: ``(n, 2 D)`` float64."""
    u, v = left.astype(np.float64), right.astype(np.float64)
    return np.hstack([np.abs(u - v), u * v])


def folds_of(y: Labels, folds: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Returns the (training, validation) rows of stratified folds."""
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(folds, shuffle=True, random_state=SEED).split(np.zeros(len(y)), y))


def best_penalty(fit: Fit, x: Matrix, y: Labels, folds: int, advance: Advance) -> float:
    """Returns the penalty with the highest mean accuracy over the folds; the smallest if several are equally good."""
    means = []
    splits = folds_of(y, folds)
    for penalty in PENALTIES:
        scores = []
        for train, valid in splits:
            held = (x[valid], y[valid])
            scores.append(fit(x[train], y[train], penalty, held).score(*held))
            advance()
        means.append(round(100 * float(np.mean(scores)), 2))  # rounded as in SentEval
    return PENALTIES[int(np.argmax(means))]


def nested(fit: Fit, x: Matrix, y: Labels, folds: int, advance: Advance) -> tuple[float, Labels]:
    """Runs nested cross-validation: the penalty is chosen inside each outer fold. Returns the mean accuracy x 100 of
    the outer folds, and the predicted labels ``(n,)``."""
    scores = []
    predicted = np.empty_like(y)
    for train, test in folds_of(y, folds):
        penalty = best_penalty(fit, x[train], y[train], folds, advance)
        predicted[test] = fit(x[train], y[train], penalty, None).predict(x[test])
        scores.append(100 * float((predicted[test] == y[test]).mean()))
        advance()
    return float(np.mean(scores)), predicted


def score(
    task: TransferTask, fit: Fit, x: dict[str, Matrix], y: dict[str, Labels], folds: int, advance: Advance
) -> tuple[dict[str, float], Matrix]:
    """Returns the accuracy x 100 of a task (for MRPC also F1 x 100), and 100 (correct) or 0 for each test example."""
    from sklearn.metrics import f1_score

    if "all" in x:
        accuracy, predicted = nested(fit, x["all"], y["all"], folds, advance)
        return {"accuracy": accuracy}, 100.0 * (predicted == y["all"])
    held = None
    if "dev" in x:
        scores, held = [], (x["dev"], y["dev"])
        for penalty in PENALTIES:
            scores.append(fit(x["train"], y["train"], penalty, held).score(*held))
            advance()
        penalty = PENALTIES[int(np.argmax(np.round(scores, 4)))]
    else:
        penalty = best_penalty(fit, x["train"], y["train"], folds, advance)
    classifier = fit(x["train"], y["train"], penalty, held)
    advance()
    predicted = classifier.predict(x["test"])
    f1 = {"f1": 100 * float(f1_score(y["test"], predicted))} if task.pairs else {}
    correct = 100.0 * (predicted == y["test"])
    return {"accuracy": float(correct.mean()), **f1}, correct


class Transfer(Evaluation):
    """SentEval's seven transfer tasks in a folder; tasks without files are left out."""

    Options = TransferOptions
    by_labels, by_rows = True, False
    paper_row = ("accuracy", "average")
    summary = "SentEval's transfer tasks in --data DIR (mr.tsv, ..., mrpc.test.tsv), by logistic regression"

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        folder = Path(needed(data, "the folder of the transfer tasks (mr.tsv, ..., mrpc.test.tsv)"))
        present = [key for key in TASKS if list(folder.glob(f"{key}.tsv")) or list(folder.glob(f"{key}.*.tsv"))]
        if not present:
            raise InputError(f"--data {data} has no files of {', '.join(TASKS)} (mr.tsv, trec.train.tsv, ...)")
        self.tasks = {key: load(folder, key, TASKS[key], options.allow_partial) for key in present}
        for key, splits in self.tasks.items():
            folded = splits.get("all") or splits["train"]
            least = int(np.bincount(folded.labels).min())
            if "all" in splits:  # the inner folds divide only the rows outside one outer fold
                least -= -(-least // options.folds)
            if "dev" not in splits and least < options.folds:
                raise InputError(
                    f"{folder / key}: a label has too few rows for {options.folds} folds; lower --set transfer.folds"
                )

    def known(self, seen: Seen) -> Mask:
        """Returns for each text of all tasks, in the order of ``columns``, whether it was seen."""
        return np.concatenate([seen(column) for column in self.columns()])

    def only(self, kept: Mask) -> Transfer | None:
        """Returns the suite if all texts are kept, else None: a task without some rows is another task."""
        return self if kept.all() else None

    def columns(self) -> list[list[str]]:
        """Returns all lists of texts, in the order of tasks, splits and columns."""
        return [column for splits in self.tasks.values() for split in splits.values() for column in split.columns]

    def work(self) -> int:
        """Returns the number of distinct texts, plus ``FIT`` for each classifier."""
        texts = len({text for column in self.columns() for text in column})
        return texts + FIT * sum(TASKS[key].fits(self.options.folds) for key in self.tasks)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        """Returns a report with one row per task; if all tasks are complete, the summary holds the mean accuracy."""
        vectors = iter(embed(encoder, self.columns(), progress))
        rows: list[dict[str, Any]] = []
        samples = []
        for key, splits in self.tasks.items():
            task = TASKS[key]
            x = {}
            for name, split in splits.items():
                parts = [next(vectors) for _ in split.columns]
                x[name] = pair_features(*parts) if task.pairs else parts[0].astype(np.float64)
            y = {name: split.labels for name, split in splits.items()}
            fit = CLASSIFIERS[self.options.classifier]
            scores, correct = score(task, fit, x, y, self.options.folds, lambda: progress(FIT) if progress else None)
            count = sum(map(len, y.values()))
            rows.append({"task": task.title, "rows": count, "expected": sum(task.rows.values()), **scores})
            samples.append(Sample(task.title, correct))
        whole = len(rows) == len(TASKS) and all(row["rows"] == row["expected"] for row in rows)
        notes = [f"{row['task']}: incomplete, not comparable" for row in rows if row["rows"] != row["expected"]]
        average = float(np.mean([row["accuracy"] for row in rows])) if whole else None
        return Report(rows, {"average": average}, notes, samples)

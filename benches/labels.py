"""What labels teach: a logistic regression on the encoder after ``cse train --labels COLUMN --learn``, and before.

    python benches/labels.py                                prints the results that are stored in --json
    python benches/labels.py DATA --work DIR [--only SET ...] [--labels N ...] [--seeds N ...] [--threads N]
                            [--device cuda] [--model minilm]
    python benches/labels.py DATA --work DIR --permuted 0 20 [--only SET ...]
    python benches/labels.py DATA --work DIR --setfit PYTHON [--only SET ...]
    python benches/labels.py DATA --work DIR --teacher MODEL [--tuned] [--loss-term NAME] [--only SET ...]
                            [--labels N ...] [--seeds N ...]

DATA holds corpora/ and transfer/, as for ``verdict.py``. Of each set, 2,000 rows are a table in which N rows, drawn by
the seed, have a label, and 1,200 others are the test. The model is trained on the table. The classifier of the verdict
(``cse.evaluation.labels.predict``) is fitted to the vectors of the N rows; its recall is the mean over the classes of
the test rows, and intervals are those of the verdict. Results marked ``"ruler": "old"`` are by a logistic regression
without class weights, which favours frequent labels; they are kept for one release and not reported. With --permuted,
the labels of 100 rows are permuted, by each of the seeds from the first to the one before the last, and the classifier
is fitted to the true ones. With --setfit, the Python of another environment trains SetFit, with its defaults, on the
same 100 rows. With --teacher, the model learns from MODEL on all rows of the table before it learns the labels, by
default those of 100 rows (``--learn --teacher``); with --tuned, MODEL itself learns these labels before it teaches
(``--tune-teacher``); --loss-term is that option of the command. The score without labels is the MRR by which --learn is
guarded, of the same sentences. A cell is stored when it is finished, so that an interrupted program continues.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import numpy.typing as npt

from verdict import read

SETS = ("trec", "cr", "tweets", "subj", "medical")
TABLE, TEST, MOST = 2000, 1200, 2000
LABELS, SEEDS = (20, 100, 500), (0, 1, 2)
MEANS = ("before", "after", "difference", "accuracy before", "accuracy after", "most frequent label")
UNTUNED, TUNED = "teacher, then labels", "tuned teacher, then labels"
PLAIN = f"{UNTUNED}, --loss-term none"
FILE = Path(__file__).parent / "results" / "labels.json"
SETFIT = """
import json, sys, time
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from setfit import SetFitModel, Trainer
import torch
torch.set_num_threads(int(sys.argv[2]))
given = json.load(open(sys.argv[1]))
began = time.perf_counter()
model = SetFitModel.from_pretrained(given["model"])
Trainer(model=model, train_dataset=Dataset.from_dict({"text": given["texts"], "label": given["labels"]})).train()
seconds = time.perf_counter() - began
model.model_body.save(given["folder"])
vectors = [model.model_body.encode(rows).tolist() for rows in (given["texts"], given["test"])]
own = [int(each) for each in model.predict(given["test"])]
json.dump({"seconds": seconds, "vectors": vectors, "own": own}, sys.stdout)
"""

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


class Data:
    """A data set: its table, its test, and the vectors of both before training, which are stored in ``work``."""

    def __init__(self, data: Path, work: Path, name: str, model: str = "minilm", device: str = "cpu") -> None:
        rows = read(data, name)
        rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[: TABLE + TEST]]
        names = sorted({label for _, label in rows})
        self.name, self.work, self.model, self.device = name, work, model, device
        self.texts = [text for text, _ in rows]
        self.labels = np.array([names.index(label) for _, label in rows], dtype=np.int64)
        self._before = work / f"{name}-before.npy"

    def before(self) -> Vectors:
        from cse import Encoder

        if not self._before.exists():
            np.save(self._before, Encoder(self.model, device=self.device).encode(self.texts))
        stored: Vectors = np.load(self._before)
        return stored

    def taught(self, count: int, seed: int) -> Numbers:
        return np.random.default_rng(seed).choice(TABLE, count, replace=False)

    def table(self, taught: Numbers, labels: Numbers) -> Path:
        """Writes the table in which these rows have these labels."""
        cells = [""] * TABLE
        for row, label in zip(taught.tolist(), labels.tolist(), strict=True):
            cells[row] = str(label)
        path = self.work / f"{self.name}.csv"
        with open(path, "w", encoding="utf8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *zip(self.texts, cells, strict=False)])
        return path


def compared(before: Numbers, after: Numbers, labels: Numbers) -> dict[str, Any]:
    """Returns mean recall and accuracy of both predictions, with the interval of the difference in recall."""
    from cse.evaluation.base import Sample
    from cse.evaluation.verdict import judge

    sides = [Sample("label", 100.0 * (each == labels), classes=labels, unit="rows") for each in (before, after)]
    (found,) = judge(sides[:1], sides[1:]).measures
    record = {"before": found["a"], "after": found["b"], "difference": found["mean"]}
    record |= {"low": found["low"], "high": found["high"]}
    return record | {
        f"accuracy {name}": value for name, value in zip(("before", "after"), found["by_rows"], strict=True)
    }


def most_frequent(data: Data) -> float:
    """Returns the share of the most frequent label among the test rows, in percent: the accuracy of naming it."""
    counts = np.bincount(data.labels[TABLE:])
    return 100 * float(counts.max() / counts.sum())


def listed(classes: Numbers) -> str:
    """Returns predicted classes as text, a digit for each row."""
    return "".join(map(str, classes.tolist()))


def prepared(data: Data, taught: Numbers, labels: Numbers, seed: int, threads: int) -> Any:
    """Returns a run on the table that is ready to be trained."""
    import cse
    from cse.training.setup import prepare

    table = {"corpus": str(data.table(taught, labels)), "column": "text", "labels": "label", "learn": True}
    settings = {"seed": seed, "threads": threads, "output": str(data.work), "device": data.device}
    return prepare(cse.TrainConfig(**table, **settings, model=data.model), left_out=np.arange(0))


def trained(data: Data, taught: Numbers, labels: Numbers, seed: int, threads: int) -> tuple[Any, dict[str, Any]]:
    """Trains on the table; returns the encoder of best/, and its seconds, steps and scores without labels."""
    import cse
    from cse.encoder.device import device_name
    from cse.training.callbacks import Callback
    from cse.training.loop import Trainer
    from cse.training.step.ranks import World

    began, processor = time.perf_counter(), time.process_time()
    trainer = Trainer(prepared(data, taught, labels, seed, threads), World(), Callback())
    result = trainer.run()
    seconds = {"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}
    encoder = cse.Encoder(result.folder / "best", device=data.device)
    guard = {
        "mrr": [100 * scores["mrr"] for scores in (result.before, result.after)] if "mrr" in result.before else None
    }
    shutil.rmtree(result.folder)
    selected = {"best step": result.best_step, "weight of the base": trainer.state.selector.share}
    record = {"steps": result.steps, **selected, **guard, "device": device_name(data.device)}
    return encoder, {**seconds, **record}


def taught_first(
    data: Data, count: int, seed: int, teacher: str, threads: int, tune: bool = False, terms: Sequence[str] = ()
) -> dict[str, Any]:
    """Trains on the table with ``--learn --teacher``; returns the scores before and after all runs. With ``tune``, as
    with ``--tune-teacher``, and those of the teacher; with ``terms``, as with ``--loss-term``."""
    import cse
    from cse.evaluation.labels import predict
    from cse.training.callbacks import Callback
    from cse.training.loop import Trainer
    from cse.training.sequence import taught
    from cse.training.setup import prepare
    from cse.training.step.ranks import World

    rows = data.taught(count, seed)
    labels, texts = data.labels[rows], [*(data.texts[row] for row in rows), *data.texts[TABLE:]]
    before = data.before()
    old = predict(before[rows], labels, before[TABLE:])

    def scores(folder: Path) -> dict[str, Any]:
        after = cse.Encoder(folder / "best", device=data.device).encode(texts)
        return compared(old, predict(after[: len(rows)], labels, after[len(rows) :]), data.labels[TABLE:])

    columns = {"corpus": str(data.table(rows, labels)), "column": "text", "labels": "label", "learn": True}
    settings = {"seed": seed, "threads": threads, "output": str(data.work), "device": data.device}
    settings |= {"loss_terms": tuple(term for term in terms if term != "none")} if terms else {}
    config = cse.TrainConfig(
        **columns, **settings, model=data.model, teacher=teacher, tune_teacher=tune, name=f"{data.name}-{count}-{seed}"
    )
    made: list[Path] = []
    seconds: list[float] = []
    found: dict[str, Any] = {}

    def trained(given: Any, _: Path | None) -> None:
        made.append(timed(prepare(given, judging=False)))
        if given.learn:
            found["teacher"] = scores(made[0])["difference"]

    def timed(run: Any) -> Path:
        began = time.process_time()
        result = Trainer(run, World(), Callback()).run()
        seconds.append(time.process_time() - began)
        return result.folder

    second = taught(config, World(), trained)
    made.append(timed(prepare(second, left_out=np.arange(0))))
    found |= scores(made[-1])
    if tune:
        found["tuning"] = seconds.pop(0)
    found["processor"] = sum(seconds)
    for folder in made:
        shutil.rmtree(folder)
    return found


def cell(data: Data, count: int, seed: int, threads: int, permuted: bool = False) -> dict[str, Any]:
    taught = data.taught(count, 0 if permuted else seed)
    labels, test = data.labels[taught], data.labels[TABLE:]
    given = np.random.default_rng(seed).permutation(labels) if permuted else labels
    from cse.evaluation.labels import predict

    encoder, record = trained(data, taught, given, seed, threads)
    texts = [data.texts[row] for row in taught]
    after = encoder.encode([*texts, *data.texts[TABLE:]])
    before = data.before()
    old = predict(before[taught], labels, before[TABLE:])
    new = predict(after[:count], labels, after[count:])
    about = {"most frequent label": most_frequent(data), "predicted": listed(new)}
    return {**compared(old, new, test), **record, **about}


def setfit(data: Data, count: int, python: str, threads: int) -> dict[str, Any]:
    from cse import Encoder
    from cse.encoder.resolve import find_model
    from cse.evaluation.labels import predict

    taught = data.taught(count, 0)
    texts, labels = [data.texts[row] for row in taught], data.labels[taught]
    folder = str(data.work / f"setfit-{data.name}")
    given = {"model": str(find_model(data.model).path), "texts": texts, "labels": labels.tolist(), "folder": folder}
    path = data.work / "setfit.json"
    path.write_text(json.dumps({**given, "test": data.texts[TABLE:]}), encoding="utf8")
    done = subprocess.run(
        [python, "-c", SETFIT, str(path), str(threads)], cwd=data.work, stdout=subprocess.PIPE, check=True, text=True
    )
    found = json.loads(done.stdout[done.stdout.index('{"seconds"') :])
    one, other = (np.array(each, dtype=np.float32) for each in found["vectors"])
    before, test = data.before(), data.labels[TABLE:]
    old, new = predict(before[taught], labels, before[TABLE:]), predict(one, labels, other)
    own = {"seconds": found["seconds"], "own classifier": compared(old, np.array(found["own"]), test)["after"]}
    own |= {"predicted": listed(new), "own predicted": listed(np.array(found["own"])), "truth": listed(test)}
    halves = prepared(data, taught, labels, 0, threads).state.selector.scorer.scoring["halves"]
    scores = [100 * halves(Encoder(model, device="cpu")).rows[0]["mrr"] for model in (data.model, folder)]
    return {
        **compared(old, new, test),
        **own,
        "most frequent label": most_frequent(data),
        "mrr before": scores[0],
        "mrr after": scores[1],
    }


def means(runs: dict[str, Any]) -> dict[str, Any]:
    """Returns the means over the seeds, by set and number of labels, and the lowest end of the intervals."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key, record in runs.items():
        found.setdefault(key.rpartition("/")[0], []).append(record)
    return {
        key: {
            **{name: float(np.mean([each[name] for each in group])) for name in MEANS},
            "lowest": min(each["low"] for each in group),
            "seeds": len(group),
        }
        for key, group in found.items()
    }


def ahead(stored: dict[str, Any], key: str) -> str:
    """Returns by how much SetFit's own classifier is ahead of cse on the same labels, as text, with the interval."""
    ours, theirs = stored.get("runs", {}).get(f"{key}/0"), stored["setfit"][key]
    if ours is None or "truth" not in theirs:
        return ""
    sides = [np.array([*map(int, each)]) for each in (ours["predicted"], theirs["own predicted"], theirs["truth"])]
    found = compared(*sides)
    return f", {found['difference']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}] against cse"


def report(stored: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the results: a row for each set and number of labels, and the goals."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for key, record in stored.get("runs", {}).items():
        name, count, _ = key.split("/")
        runs.setdefault((name, int(count)), []).append(record)
    gains: dict[str, float] = {}
    for name, count in product(SETS, (*LABELS, MOST)):
        if found := runs.get((name, count)):
            means = {what: float(np.mean([each[what] for each in found])) for what in MEANS}
            each = ", ".join(f"{run['difference']:+.1f} [{run['low']:+.1f}, {run['high']:+.1f}]" for run in found)
            seconds = ", ".join(f"{run['seconds']:.0f} s" for run in found)
            yield (
                f"{name:8} {count:5} labels: {means['before']:.1f} -> {means['after']:.1f}, {means['difference']:+.1f}"
                f" (accuracy {means['accuracy before']:.1f} -> {means['accuracy after']:.1f}, most frequent label "
                f"{means['most frequent label']:.1f}); by seed {each}; {seconds}"
            )
            if count == LABELS[1]:
                gains[name] = means["difference"]
    for key, record in stored.get("setfit", {}).items():
        yield (
            f"SetFit {key}: {record['before']:.1f} -> {record['after']:.1f}, {record['difference']:+.1f} "
            f"(accuracy {record['accuracy after']:.1f}; its own classifier {record['own classifier']:.1f}"
            f"{ahead(stored, key)}); {record['seconds']:.0f} s"
            + (
                "; without labels: {mrr before:.1f} -> {mrr after:.1f}".format_map(record)
                if "mrr after" in record
                else ""
            )
        )
    permuted = stored.get("permuted", {})
    for name in SETS:
        if found := [record for key, record in permuted.items() if key.startswith(f"{name}/")]:
            better = sum(record["low"] > 0 for record in found)
            base = sum(record["best step"] == 0 for record in found)
            lost = max(
                (record["mrr"][0] - record["mrr"][1] for record in found if record["mrr"] and record["best step"]),
                default=0.0,
            )
            yield (
                f"{name}, permuted labels: {len(found)} runs, {better} better; best/ is the base in {base}; in the "
                f"others, the score without labels falls by at most {lost:.1f} points"
            )
    for kind, name, count in product((UNTUNED, PLAIN, TUNED), SETS, LABELS):
        taught = stored.get(kind, {})
        if found := [record for key, record in taught.items() if key.startswith(f"{name}/{count}/")]:
            values = [float(np.mean([each[what] for each in found])) for what in ("before", "after", "difference")]
            each = ", ".join(f"{run['difference']:+.1f} [{run['low']:+.1f}, {run['high']:+.1f}]" for run in found)
            before, after, change = values
            yield f"{name}, {count} labels, {kind}: {before:.1f} -> {after:.1f}, {change:+.1f}; by seed {each}"
    below = [key for key, record in stored.get("runs", {}).items() if record["high"] < 0]
    five, three = (sum(gain >= goal for gain in gains.values()) for goal in (5, 3))
    yield (
        f"goal, {LABELS[1]} labels: +5 on {five} sets (3), +3 on {three} (4), of {len(gains)}; intervals below 0: "
        f"{below or 'none'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--labels", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--permuted", type=int, nargs=2)
    parser.add_argument("--setfit")
    parser.add_argument("--teacher")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--loss-term", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()

    def stored() -> dict[str, Any]:
        return json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}

    if options.data is None:
        print(*report(stored()), sep="\n")
        return
    from cse.io import write_text

    work, threads = options.work, options.threads
    work.mkdir(parents=True, exist_ok=True)
    sets = {name: Data(options.data, work, name, options.model, options.device) for name in options.only}
    jobs: list[tuple[str, str, Callable[..., dict[str, Any]], tuple[Any, ...]]]
    if options.setfit:
        jobs = [("setfit", f"{name}/{LABELS[1]}", setfit, (LABELS[1], options.setfit, threads)) for name in sets]
    elif options.teacher:
        how = (threads, options.tuned, options.loss_term)
        kind = TUNED if options.tuned else ", --loss-term ".join([UNTUNED, *options.loss_term])
        jobs = [
            (
                kind,
                f"{name}/{count}/{seed}",
                taught_first,
                (count, seed, options.teacher, *how),
            )
            for seed, count, name in product(options.seeds, options.labels or [LABELS[1]], sets)
        ]
    elif options.permuted:
        numbers = range(*options.permuted)
        jobs = [
            ("permuted", f"{name}/{number}", cell, (LABELS[1], number, threads, True))
            for number, name in product(numbers, sets)
        ]
    else:
        cells = [
            (name, count, seed)
            for seed, count, name in product(options.seeds, options.labels or LABELS, sets)
            if count < MOST or not seed
        ]
        jobs = [("runs", f"{name}/{count}/{seed}", cell, (count, seed, threads)) for name, count, seed in cells]
    for kind, key, function, arguments in jobs:
        if key not in stored().get(kind, {}):
            record = function(sets[key.partition("/")[0]], *arguments)
            results = stored()  # read again, since another process may have added cells
            results.setdefault(kind, {})[key] = record
            results["means"] = means(results.get("runs", {}))
            write_text(options.json, json.dumps(results, indent=1) + "\n")
            print(kind, key, json.dumps(record), flush=True)
    print(*report(stored()), sep="\n")


if __name__ == "__main__":
    main()

"""Classifiers of the transfer tasks: logistic regression with an L2 penalty, trained in one of two ways.

The objective is SentEval's (Conneau and Kiela 2018): mean cross-entropy plus ``penalty / 2`` times the squared norm of
the weights. ``converged`` minimises this objective; ``senteval`` trains with Adam and stops early, as SentEval does.
The results differ if Adam converges slowly, as it does for embeddings of unit length; ``benches/transfer.py`` compares
the two.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

SEED = 1111  # as in SentEval
MAX_EPOCH = 200  # SentEval's limit; training ends after 204 epochs, see ``senteval``


class Classifier(Protocol):
    """A trained classifier."""

    def predict(self, x: Matrix) -> Labels:
        """Returns the predicted labels ``(n,)`` for features ``(n, D)``."""
        ...

    def score(self, x: Matrix, y: Labels) -> float:
        """Returns the accuracy, 0 to 1."""
        ...


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
    fitted: Classifier = model.fit(x, y)
    return fitted


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
    return AdamClassifier(penalty, seed).fit(x, y, valid)


class AdamClassifier:
    """The classifier that ``senteval`` trains."""

    def __init__(self, penalty: float, seed: int) -> None:
        self.penalty, self.seed = penalty, seed

    def fit(self, x: Matrix, y: Labels, valid: tuple[Matrix, Labels] | None) -> AdamClassifier:
        """Trains the classifier; see ``senteval``."""
        import torch

        random = np.random.RandomState(self.seed)
        classes = int(y.max()) + 1
        if valid is None:
            order = random.permutation(len(x))
            cut = max(1, int(0.05 * len(x)))
            valid, x, y = (x[order[:cut]], y[order[:cut]]), x[order[cut:]], y[order[cut:]]
        features, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.model = torch.nn.Linear(x.shape[1], classes)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001, weight_decay=self.penalty, fused=True)
        best, best_model, failures, epoch = -1.0, self.model, 0, 0
        while epoch <= MAX_EPOCH:
            for _ in range(4):
                for rows in torch.from_numpy(random.permutation(len(x))).split(64):  # type: ignore[no-untyped-call]
                    loss = torch.nn.functional.cross_entropy(self.model(features[rows]), labels[rows])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                epoch += 1
            accuracy = self.score(*valid)
            if accuracy > best:
                best, best_model = accuracy, copy.deepcopy(self.model)
            else:
                if failures >= 5:  # a new best does not reset ``failures``, as in SentEval
                    break
                failures += 1
        self.model = best_model
        return self

    def predict(self, x: Matrix) -> Labels:
        """Returns the predicted labels ``(n,)`` for features ``(n, D)``."""
        import torch

        with torch.no_grad():
            found: Labels = self.model(torch.from_numpy(x).float()).argmax(1).numpy()
        return found

    def score(self, x: Matrix, y: Labels) -> float:
        """Returns the accuracy, 0 to 1."""
        return float((self.predict(x) == y).mean())


CLASSIFIERS: dict[str, Fit] = {"converged": converged, "senteval": senteval}
"""Functions that train a classifier, by the value of ``--set transfer.classifier``."""

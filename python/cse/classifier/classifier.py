"""The classifier of a run, with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin

from ..data.classes import classes_of
from ..data.corpus import Corpus
from ..encoder.layout import best_of_run
from ..encoder.taught import taught_of
from ..errors import InputError, check_labels, check_texts, for_python, shown
from ..evaluation.base import Encodes
from .fitted import Fitted, fit, texts_taught
from .labelled import labelled_texts
from .promise import Promise
from .stored import has_classifier, load, save

Vector = npt.NDArray[np.float64]

NO_LABELS = "fewer than two labels have two different texts; label more rows"


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts labels of texts by a logistic regression on the vectors of an encoder, as a classifier of scikit-learn.

    Args:
        encoder: A model, its folder, the folder of a run, or an encoder in memory. The classifier of a run that was
            trained with ``labels`` predicts at once; otherwise, call ``fit``.
        device: Where a model that is opened by name runs: ``auto``, ``cpu``, ``cuda`` or ``mps``.

    Attributes:
        classes_: ``(K,)`` the labels, in the order of their text, with the type of those that were given.
        promise: What the labelled texts promise about others of the same kind (``cse.classifier.promise.Promise``):
            ``promise.accuracy`` and so on; None if the labels of all of them taught the encoder.
    """

    def __init__(self, encoder: str | PathLike[str] | Encodes = "minilm", device: str = "auto") -> None:
        self.encoder = encoder
        self.device = device
        self._encoder: Any = None
        self._fitted: Fitted | None = None
        if isinstance(encoder, (str, PathLike)) and has_classifier(Path(best_of_run(str(encoder)))):
            self._fitted = load(Path(best_of_run(str(encoder))), self.opened().embedding_dim)

    def set_params(self, **params: Any) -> Classifier:
        """Sets arguments, as in scikit-learn. Another encoder or device makes it a new classifier."""
        before = self.encoder, self.device
        super().set_params(**params)
        if self.encoder is not before[0] or self.device != before[1]:
            self.__init__(self.encoder, self.device)  # type: ignore[misc]
        return self

    def opened(self) -> Any:
        """Returns the encoder, which is opened when it is first used."""
        from ..encoder.opening import open_encoder

        if self._encoder is None:
            named = isinstance(self.encoder, (str, PathLike))
            self._encoder = open_encoder(best_of_run(str(self.encoder)), device=self.device) if named else self.encoder
        return self._encoder

    @property
    def fitted(self) -> Fitted:
        """The classifier; raises ``InputError`` before ``fit``."""
        if self._fitted is None:
            raise InputError(f"Classifier: {shown(str(self.encoder))} has no classifier; call fit(texts, labels) first")
        return self._fitted

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels, ``(K,)``."""
        classes = self.fitted.classes
        return np.array(classes, dtype=None if len({*map(type, classes)}) == 1 else object)

    @property
    def promise(self) -> Promise | None:
        """What the labelled texts promise about others; see the class."""
        return self.fitted.promise

    @for_python
    def fit(self, texts: Iterable[str], labels: Iterable[Any]) -> Classifier:
        """Fits the classifier to texts and their labels, and returns it.

        Equal texts count once; a label of None, NaN or "" is none, and so are two labels of equal texts. Of more than
        5,000 texts, the classifier learns 5,000.

        Raises:
            InputError: If fewer than two labels have two different texts.
        """
        rows = check_texts(texts)
        corpus = Corpus.from_texts(rows)
        labelled = labelled_texts(corpus, classes_of(corpus, "labels", check_labels(labels, len(rows))))
        if labelled is None:
            raise InputError(f"labels: {NO_LABELS}")
        encoder = self.opened()
        vectors = encoder.encode(labelled.texts)
        named = isinstance(self.encoder, (str, PathLike))
        taught = taught_of(best_of_run(str(self.encoder)) if named else encoder)
        self._fitted = fit(labelled, vectors, texts_taught([taught], labelled.texts))
        return self

    @for_python
    def predict_proba(self, texts: Iterable[str]) -> Vector:
        """Returns the probability of each label, ``(n, K)``, float64, in the order of ``classes_``.

        They are calibrated by labelled texts that the classifier, and the encoder, did not know, and are the posterior
        for labels as frequent as among the labelled texts. Without such texts (``promise`` is None), they are those of
        the regression, which say little.
        """
        return self.fitted.probabilities(self.opened().encode(check_texts(texts)))

    def predict(self, texts: Iterable[str]) -> npt.NDArray[Any]:
        """Returns the most probable label of each text, ``(n,)``. It serves accuracy: a label that is rare among the
        labelled texts is named less often than by the classifier of the verdict, which serves mean recall."""
        return np.asarray(self.classes_[self.predict_proba(texts).argmax(1)])

    @for_python
    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the classifier next to the encoder that is in a folder; ``Classifier(folder)`` opens both."""
        if not (Path(folder) / "config.json").is_file() and not (Path(folder) / "modules.json").is_file():
            raise InputError(f"save: {folder} holds no encoder; save it there first: encoder.save(folder)")
        save(self.fitted, Path(folder))

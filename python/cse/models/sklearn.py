"""A sentence encoder as a scikit-learn transformer (extra ``cse[sklearn]``)."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, check_texts
from . import inference

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise InputError("cse.sklearn: scikit-learn is not installed; run pip install 'cse[sklearn]'") from None

__all__ = ["Encoder"]


class Encoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Converts texts to embeddings, as a step of a scikit-learn pipeline. The encoder is not trained.

    ``fit`` loads the model and validates the parameters. A pickle holds the parameters, not the weights: when it is
    loaded, the model must still be available under the same name. For details of the first four parameters, see
    ``cse.Encoder``.

    Args:
        model: Folder or name of a model.
        pooler: Pooling. Default: the pooling that the model declares, else ``avg``.
        device: A PyTorch device; ``auto`` is the GPU if there is one (CUDA, Apple or Intel), else the CPU.
        precision: ``fp32``, ``bf16`` or ``auto``.
        batch_size: Texts per forward pass.
        normalize: Whether to scale embeddings to unit length.

    Attributes:
        n_features_out_: D, the number of dimensions of an embedding.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        pooler: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        batch_size: int = 64,
        normalize: bool = False,
    ) -> None:
        self.model = model
        self.pooler = pooler
        self.device = device
        self.precision = precision
        self.batch_size = batch_size
        self.normalize = normalize

    def fit(self, raw_documents: Iterable[str], y: object = None) -> Encoder:
        """Loads the model and returns ``self``; ``y`` is ignored. Raises ``InputError`` for an invalid parameter."""
        _texts(raw_documents)
        size = self.batch_size
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise InputError(f"batch_size: must be an integer of at least 1, got {size!r}")
        self._encoder: inference.Encoder | None = self._load()
        self.n_features_out_: int = self._encoder.embedding_dim
        return self

    def transform(self, raw_documents: Iterable[str]) -> npt.NDArray[np.float32]:
        """Returns the embeddings, ``(n, D)`` float32; the embedding of a blank text is zero."""
        check_is_fitted(self)
        if self._encoder is None:  # after unpickling
            self._encoder = self._load()
        vectors = self._encoder.encode(_texts(raw_documents), batch_size=self.batch_size)
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(norms > 0, norms, 1)
        return vectors

    @property
    def _n_features_out(self) -> int:
        """The number of output features, for ``get_feature_names_out``."""
        return self.n_features_out_

    def __sklearn_tags__(self) -> Any:
        """Declares that the input is a list of strings, not a matrix."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to pickle: the parameters, without the model."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "_encoder" in state:
            state["_encoder"] = None
        return state

    def _load(self) -> inference.Encoder:
        return inference.Encoder(self.model, pooler=self.pooler, device=self.device, precision=self.precision)


def _texts(raw_documents: Iterable[str]) -> list[str]:
    if isinstance(raw_documents, str) or hasattr(raw_documents, "columns"):
        raise InputError("raw_documents: a list of texts was expected, not one string or a whole table")
    return check_texts(raw_documents)

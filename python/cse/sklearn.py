"""The TF-IDF index and sentence encoders as scikit-learn transformers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted

from .errors import InputError, check_integer, check_switch, check_texts
from .tfidf.index import TfidfIndex

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from .models.running import inference

__all__ = ["Encoder", "TfidfVectorizer"]


class _OfTexts(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    def __sklearn_tags__(self) -> Any:
        """Declares that the input is a list of strings, not a matrix."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


class TfidfVectorizer(_OfTexts):
    """Converts texts to a TF-IDF matrix with the formula of UNA, ln(1 + c/L) * ln(N/df), and the tokenizers of cse.

    It is used like ``sklearn.feature_extraction.text.TfidfVectorizer``, but has only the following parameters, which
    ``fit`` validates.

    Args:
        tokenizer: ``unicode``, ``whitespace`` or ``treebank``; see ``WordOptions``.
        lowercase: Whether terms are converted to lower case.
        nfkc: Whether terms are normalised to Unicode NFKC.
        min_df: Minimum document frequency of a term: a number of documents if it is an int, a fraction of all documents
            if it is a float.
        max_features: Maximum number of terms. Those with the highest document frequency are kept (scikit-learn keeps
            those with the most occurrences).
        norm: ``l1``, ``l2`` or None (default).

    Attributes:
        index_: The fitted ``TfidfIndex``.
        vocabulary_: Dict from term to column number.
        idf_: ``(n_terms,)`` float64, ln(N/df) of each column's term.

    Blank texts are not counted in N, the number of documents.
    """

    def __init__(
        self,
        *,
        tokenizer: str = "unicode",
        lowercase: bool = True,
        nfkc: bool = False,
        min_df: int | float = 1,
        max_features: int | None = None,
        norm: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.lowercase = lowercase
        self.nfkc = nfkc
        self.min_df = min_df
        self.max_features = max_features
        self.norm = norm

    def fit(self, raw_documents: Iterable[str], y: object = None) -> TfidfVectorizer:
        """Builds the index and returns ``self``; ``y`` is ignored. Raises ``InputError`` for an invalid parameter."""
        if self.norm not in (None, "l1", "l2"):
            raise InputError(f"norm: {self.norm!r} is unknown; choose 'l1', 'l2' or None")
        whole = TfidfIndex.from_texts(
            check_texts(raw_documents, "raw_documents"),
            tokenizer=self.tokenizer,
            lowercase=self.lowercase,
            nfkc=self.nfkc,
        )
        self._view = (_documents(self.min_df, whole.info.documents), _terms(self.max_features))
        self._data = whole.to_bytes()
        self._open()
        return self

    def transform(self, raw_documents: Iterable[str]) -> csr_matrix:
        """Returns the TF-IDF matrix ``(n_documents, n_terms)`` in CSR, float64."""
        check_is_fitted(self)
        matrix = self.index_.transform(check_texts(raw_documents, "raw_documents"))
        return matrix if self.norm is None else normalize(matrix, norm=self.norm, copy=False)

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:
        """Returns the terms in the order of the columns, ``(n_terms,)`` object; ``input_features`` is ignored."""
        check_is_fitted(self)
        return np.asarray(self.index_.terms, dtype=object)

    @property
    def vocabulary_(self) -> dict[str, int]:
        """Dict from term to column number."""
        check_is_fitted(self, "index_")
        return {term: column for column, term in enumerate(self.index_.terms)}

    @property
    def idf_(self) -> npt.NDArray[np.float64]:
        """``(n_terms,)`` float64, ln(N/df) of each column's term."""
        check_is_fitted(self, "index_")
        return self.index_.idf

    def _open(self) -> None:
        min_df, max_terms = self._view
        self.index_ = TfidfIndex.from_bytes(self._data, min_df=min_df, max_terms=max_terms)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickling, in which the index is stored as the bytes of its file."""
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("index_", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_data" in state:
            self._open()


class Encoder(ClassNamePrefixFeaturesOutMixin, _OfTexts):  # type: ignore[misc]
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
        check_texts(raw_documents, "raw_documents")
        check_integer(self.batch_size, "batch_size")
        check_switch(self.normalize, "normalize")
        self._encoder: inference.Encoder | None = self._load()
        self.n_features_out_: int = self._encoder.embedding_dim
        return self

    def transform(self, raw_documents: Iterable[str]) -> npt.NDArray[np.float32]:
        """Returns the embeddings, ``(n, D)`` float32; the embedding of a blank text is zero."""
        check_is_fitted(self)
        if self._encoder is None:  # after unpickling
            self._encoder = self._load()
        vectors: npt.NDArray[np.float32] = self._encoder.encode(
            check_texts(raw_documents, "raw_documents"), batch_size=self.batch_size
        )
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(norms > 0, norms, 1)
        return vectors

    @property
    def _n_features_out(self) -> int:
        """The number of output features, for ``get_feature_names_out``."""
        return self.n_features_out_

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to pickle: the parameters, without the model."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "_encoder" in state:
            state["_encoder"] = None
        return state

    def _load(self) -> inference.Encoder:
        from .models.running import inference  # imports torch

        return inference.Encoder(self.model, pooler=self.pooler, device=self.device, precision=self.precision)


def _documents(min_df: int | float, documents: int) -> int:
    if isinstance(min_df, Integral) and min_df >= 0:
        return int(min_df)
    if isinstance(min_df, Real) and not isinstance(min_df, Integral) and 0 <= min_df <= 1:
        return math.ceil(float(min_df) * documents)
    raise InputError(f"min_df: must be an integer of at least 0, or a fraction from 0.0 to 1.0, got {min_df!r}")


def _terms(max_features: int | None) -> int | None:
    if max_features is None or (isinstance(max_features, Integral) and 1 <= max_features < 2**63):
        return None if max_features is None else int(max_features)
    raise InputError(f"max_features: must be an integer of at least 1, or None, got {max_features!r}")

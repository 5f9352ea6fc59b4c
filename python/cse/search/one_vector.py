"""One vector per document that holds the meaning and the words, for vector databases that know only inner products.

The vector of a document is [d, c L]: the smoothed dense vector d (see ``hybrid``) and the document's place L in the
latent semantic space of BM25, the k-dimensional space that best approximates, in the sense of least squares, the matrix
A of the BM25 weights of all terms, each divided by sqrt(idf). The vector of a query is
[(1 - w) q / s(q), w p / (c s(p))], where q is its dense vector and p the projection of its terms, each with the weight
sqrt(idf). L p approximates the BM25 score, and is equal to it if k is the rank of A. s is the standard deviation, over
all documents, of the scores of a part; it follows from the covariance C of the part: s(q)^2 = q C q. The inner product
is thus (1 - w) z(dense) + w z(BM25), as ``hybrid`` defines it for smoothed vectors, plus a constant that depends only
on the query. The factor c makes both parts of the documents equally long on average; it changes no score.

Sources: a dense and a lexical part in one vector (SPAR; Chen et al. 2022, arXiv:2110.06918), whose lexical part is a
trained encoder, and whose parts have a fixed weight; latent semantic analysis (Deerwester et al. 1990), for many
documents by randomised decomposition (Halko et al. 2011), with a fixed seed.

The folder holds ``vectors.npy``, the vectors of the documents; ``one_vector.json``, the settings; ``terms.json``, the
terms; ``projection.npy``, a row of k numbers for each term, including sqrt(idf); ``variances.npy``, those of the
dimensions of the lexical part, which are not correlated; and ``covariance.npy``, that of the dense part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..data.corpus import Corpus
from ..errors import InputError
from ..io import dumps, fresh_folder, holds_files
from ..models.encoders import ONE_VECTOR, OtherEncoder
from .bm25 import Bm25
from .build import model_settings
from .hybrid import Smoothing
from .terms import Terms
from .tokens import inverse_document_frequency
from .vectors import Array, Doubles, Floats, unit

if TYPE_CHECKING:
    from ..models.running.inference import Encoder

VERSION = 1
VECTORS, TERMS = "vectors.npy", "terms.json"
ARRAYS = ("projection", "variances", "covariance")
DIMS, WEIGHT = 1024, 0.2
BLOCK = 4096
# Up to this number of documents or of terms, the decomposition is exact, in time cubic in this number.
EXACT = 4096

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Written:
    """What ``encode_one_vector`` wrote."""

    rows: int
    blank: int
    """Number of blank rows, whose vectors are 0."""
    dense: int
    """Number of dense dimensions."""
    lexical: int
    """Number of lexical dimensions."""


def encode_one_vector(
    encoder: Encoder,
    texts: Sequence[str] | Corpus,
    folder: str | PathLike[str],
    *,
    lexical_dims: int | None = None,
    bm25_weight: float = WEIGHT,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Written:
    """Writes one vector per document, and what turns a query into its vector, to a folder, atomically.

    ``numpy.load(folder / "vectors.npy")`` are the vectors ``(n, D + k)`` float32, and ``Encoder(folder)`` encodes
    queries. BM25 leaves out English stop words. Smoothing takes time quadratic in the number of documents.

    Args:
        encoder: The encoder of the dense part; its vectors are scaled to unit length.
        texts: The documents.
        folder: The folder; one that this function wrote earlier is replaced.
        lexical_dims: The number k of lexical dimensions. Default: 1024, or the rank of BM25's weights if it is smaller.
        bm25_weight: The weight w of BM25, 0 to 1.
        batch_size: Texts per forward pass.
        progress: Called with ``encoding`` or ``smoothing``, and the number of documents done since its last call.

    Raises:
        InputError: If the similarity of the model is the dot product, an argument is out of range, the folder holds
            other files, all documents are blank, or none contains a word that is not a stop word.
        OSError: If a file cannot be written.
    """
    target = Path(folder)
    _check(encoder, target, lexical_dims, bm25_weight)
    corpus = texts if isinstance(texts, Corpus) else Corpus.from_texts(texts)
    filled = corpus.filled()
    written = corpus.take(filled)
    bm25 = Bm25.build(written, terms=Terms(stop_words="english"))
    vocabulary, weights = bm25.terms, bm25.weights
    idf = inverse_document_frequency(np.diff(weights.indptr), weights.shape[1])
    latent, projection, variances = _latent(weights, idf, lexical_dims)

    def done(what: str) -> Callable[[int], None] | None:
        return None if progress is None else lambda count: progress(what, count)

    dense = Array(unit(encoder.encode_document(written, batch_size=batch_size, progress=done("encoding"))))
    smoothing = Smoothing.build(
        dense, lambda rows: bm25.all_scores([written[row] for row in rows.tolist()]), done("smoothing")
    )
    scale = 1 / np.sqrt(np.square(latent).sum() / len(latent))
    width = dense.width
    with fresh_folder(target) as fresh:
        shape = (len(corpus), width + latent.shape[1])
        out = np.lib.format.open_memmap(fresh / VECTORS, mode="w+", dtype=np.float32, shape=shape)
        for start in range(0, len(filled), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(filled)))
            out[filled[rows]] = np.hstack([smoothing.take(rows), scale * latent[rows]])
        out.flush()
        del out
        (fresh / TERMS).write_text(dumps(vocabulary), encoding="utf8")
        arrays = (projection / scale, variances * scale**2, _covariance(smoothing))
        for name, values in zip(ARRAYS, arrays, strict=True):
            np.save(fresh / f"{name}.npy", values.astype(np.float32))
        settings = {"version": VERSION, **model_settings(encoder), "bm25_weight": bm25_weight, "rows": len(corpus)}
        hashes = {name: _core.hash_file(fresh / name) for name in _files()}
        (fresh / ONE_VECTOR).write_text(dumps({**settings, "hashes": hashes}, indent=1), encoding="utf8")
    return Written(len(corpus), len(corpus) - len(filled), width, latent.shape[1])


def _check(encoder: Encoder, folder: Path, lexical_dims: int | None, weight: float) -> None:
    if getattr(encoder, "similarity_name", None) == "dot":
        raise InputError(
            f"--hybrid: {encoder.given[0]} compares vectors by dot product, and smoothing needs vectors of unit "
            "length; name a model that uses the cosine"
        )
    if not 0 <= weight <= 1:
        raise InputError(f"--bm25-weight must be between 0 and 1, got {weight}")
    if lexical_dims is not None and lexical_dims < 1:
        raise InputError(f"--lexical-dims must be 1 or more, got {lexical_dims}")
    if folder.exists() and not (folder.is_dir() and ((folder / ONE_VECTOR).is_file() or not holds_files(folder))):
        raise InputError(f"-o {folder}: exists and was not written by cse encode --hybrid; name another folder")


def _latent(weights: Any, idf: Doubles, dims: int | None) -> tuple[Doubles, Doubles, Doubles]:
    """Decomposes the matrix A.

    Args:
        weights: The BM25 weights, ``(terms, n)``.
        idf: ``(terms,)``.
        dims: k; None: the default.

    Returns:
        The documents ``(n, k)``, the projection of terms, times sqrt(idf), ``(terms, k)``, and the variances ``(k,)``.
    """
    from scipy.sparse import diags

    root = np.sqrt(idf)
    matrix = (weights.T @ diags(1 / root)).tocsr()
    k = min(DIMS if dims is None else dims, *matrix.shape)
    values, right = _decomposed(matrix, k)
    rank = int((values > values[0] * max(matrix.shape) * np.finfo(np.float64).eps).sum())
    if dims is not None and dims > rank:
        raise InputError(
            f"--lexical-dims {dims}: the matrix of BM25's weights has rank {rank}; give at most {rank}, or leave it out"
        )
    right = right[:, :rank]
    latent = matrix @ right
    variances, axes = np.linalg.eigh(np.cov(latent.T, bias=True).reshape(rank, rank))
    return latent @ axes, root[:, None] * (right @ axes), np.maximum(variances, 0)


def _decomposed(matrix: Any, k: int) -> tuple[Doubles, Doubles]:
    """Returns the k largest squared singular values, largest first, and their right singular vectors, as columns."""
    if min(matrix.shape) > EXACT:
        from sklearn.utils.extmath import randomized_svd

        _, singular, rows = randomized_svd(matrix, k, random_state=0)
        return np.square(singular), rows.T
    from scipy.linalg import eigh

    n, terms = matrix.shape
    small = (matrix @ matrix.T if n < terms else matrix.T @ matrix).toarray()
    values, vectors = eigh(small, subset_by_index=(len(small) - k, len(small) - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    if n < terms:
        vectors = (matrix.T @ vectors) / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny))
    return values, vectors


def _covariance(smoothing: Smoothing) -> Doubles:
    """Returns the covariance ``(D, D)`` of the smoothed vectors."""
    n, width = len(smoothing.vectors), smoothing.vectors.width
    total, squares = np.zeros(width), np.zeros((width, width))
    for start in range(0, n, BLOCK):
        block = smoothing.take(np.arange(start, min(start + BLOCK, n)))
        total += block.sum(0)
        squares += block.T @ block
    mean = total / n
    covariance: Doubles = squares / n - np.outer(mean, mean)
    return covariance


def _files() -> list[str]:
    return [TERMS, *(f"{name}.npy" for name in ARRAYS)]


class QueryEncoder(OtherEncoder):
    """The encoder of queries of a folder that ``encode_one_vector`` wrote (``hybrid:FOLDER``, or only ``FOLDER``).

    The dense part is 0 for a query with the same score for all documents, and the lexical part for one without a term
    of the documents.

    Raises ``InputError`` if a file is missing or damaged, or if the model of the dense part has changed.
    """

    summary = "queries for the vectors of cse encode --hybrid: hybrid:FOLDER"
    queries_only = True

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        folder = Path(what)
        try:
            self.settings = json.loads((folder / ONE_VECTOR).read_bytes())
            if self.settings["version"] != VERSION:
                raise ValueError(f"its version is {self.settings['version']}, and this release reads {VERSION}")
            for name in _files():
                if _core.hash_file(folder / name) != self.settings["hashes"][name]:
                    raise ValueError(f"{name} is damaged")
            self.terms = {term: row for row, term in enumerate(json.loads((folder / TERMS).read_bytes()))}
            self.projection, self.variances, self.covariance = (
                np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS
            )
            model = {name: self.settings[name] for name in ("model", "pooler", "prompt", "dims")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{what}: cannot be read ({error}); write it again with cse encode --hybrid") from None
        from ..models.digest import model_digest
        from ..models.running.inference import Encoder

        self.base = Encoder(**model, device=device)
        if model_digest(self.base) != self.settings["digest"]:
            raise InputError(
                f"{what}: was written with another state of the model {model['model']}; restore the model, or write "
                "the folder again with cse encode --hybrid"
            )

    @property
    def embedding_dim(self) -> int:
        return len(self.covariance) + len(self.variances)

    def encode(self, texts: Sequence[str], *, precision: str = "fp32", **settings: Any) -> Floats:
        self.base.precision = precision
        dense = unit(self.base.encode_query(texts, **settings)).astype(np.float64)
        lexical = np.zeros((len(texts), len(self.variances)))
        for row, terms in enumerate(Terms()(texts)):
            known = [self.terms[term] for term in terms if term in self.terms]
            lexical[row] = self.projection[known].sum(axis=0, dtype=np.float64)
        weight = self.settings["bm25_weight"]
        parts = (
            (1 - weight) * _scaled(dense, np.einsum("ij,jk,ik->i", dense, self.covariance, dense, optimize=True)),
            weight * _scaled(lexical, np.square(lexical) @ self.variances.astype(np.float64)),
        )
        return np.hstack(parts).astype(np.float32)

    def files(self) -> list[Path]:
        """Returns the files of the folder that queries depend on; the settings contain the digest of the model."""
        return [Path(self.what) / name for name in (ONE_VECTOR, *_files())]


def _scaled(queries: Doubles, variances: npt.NDArray[np.float64]) -> Doubles:
    """Returns queries divided by the standard deviation of their scores; 0 where it is 0 up to rounding."""
    known = variances > 1e-12 * np.square(queries).sum(axis=1)
    scaled: Doubles = queries * np.where(known, 1 / np.sqrt(np.where(known, variances, 1)), 0)[:, None]
    return scaled

"""The TF-IDF index of a corpus, and the hard negatives drawn from it (UNA).

Everything is computed in Rust (``cse._core``); this module names it, documents it and says what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from scipy.sparse import csr_matrix

__all__ = ["AugmentReport", "ExplainedWord", "IndexInfo", "SourceFile", "TfidfIndex", "build_index"]

MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file a corpus was read from: path as given, bytes as stored, rows, XXH3 (128 bits, hexadecimal)."""

    path: str
    bytes: int
    rows: int
    xxh3: str


@dataclass(frozen=True)
class IndexInfo:
    """How many rows of which kind an index was built from."""

    documents: int
    """N: rows that are not blank."""
    rows: int
    blank: int
    wordless: int
    """Documents without a single term; they count in N."""
    tokens: int
    repaired: int
    """Rows with bytes that were not UTF-8 (``encoding_errors="replace"``)."""
    terms: int


@dataclass(frozen=True)
class AugmentReport:
    """What became of some rows."""

    rows: int
    blank: int
    unchanged: int
    """Rows that came back as they were, blank ones among them."""
    words: int
    unseen: int
    """Words that are not in the index."""
    replaced: int
    repaired: int


@dataclass(frozen=True)
class ExplainedWord:
    """One word of a sentence, seen by UNA."""

    word: str
    seen: bool
    df: int
    score: float
    """tf * idf in this sentence."""
    p: float
    """Probability of being replaced."""
    rank: int
    """From 1; for an unseen word the rank its score would take."""
    samples: list[str]


class TfidfIndex:
    """Document frequencies and maximum TF-IDF scores of a corpus.

    A term's score in a document of L terms, c of them this one, is ln(1 + c/L) * ln(N/df) (UNA, section 3.1).
    Terms are numbered in byte order.
    """

    def __init__(self, core: _core.Index) -> None:
        self._core = core

    @classmethod
    def build(
        cls,
        paths: str | PathLike[str] | Sequence[str | PathLike[str]],
        *,
        tokenizer: str = "unicode",
        encoding_errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        threads: int = 0,
    ) -> TfidfIndex:
        """Counts the files (plain, ``.gz``, ``.zst``) in one pass, in memory bounded by the vocabulary.

        ``threads`` 0 uses all cores; the result does not depend on it. Raises ``InputError`` or ``OSError``.
        """
        return cls(_core.Index.build(_paths(paths), tokenizer, encoding_errors, max_line_bytes, threads))

    @classmethod
    def open(cls, folder: str | PathLike[str] = "tfidf") -> TfidfIndex:
        """Opens ``folder/index.safetensors``; a damaged file or one of another format raises ``InputError``."""
        return cls(_core.Index.open(_existing(folder)))

    @classmethod
    def merge(cls, shards: Sequence[str | PathLike[str]], folder: str | PathLike[str]) -> TfidfIndex:
        """Writes to ``folder`` the index of several indexes' corpora together, byte for byte what one build over all
        their files in this order gives. Their tokenizers must be the same; no matrix is written."""
        return cls(_core.Index.merge_to(folder, [_existing(shard) for shard in shards]))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes ``folder/index.safetensors``, whole or not at all."""
        self._core.save(folder)

    def __len__(self) -> int:
        """V, the number of terms."""
        return len(self._core)

    @property
    def tokenizer(self) -> str:
        """``unicode`` or ``whitespace``."""
        return self._core.tokenizer

    @property
    def info(self) -> IndexInfo:
        """N and the other counts."""
        return IndexInfo(*self._core.counts)

    @property
    def files(self) -> list[SourceFile]:
        """The files it was built from, in order."""
        return [SourceFile(*file) for file in self._core.files]

    @property
    def default_radius(self) -> int:
        """min(4000, V/100), at least 1."""
        return self._core.default_radius

    @cached_property
    def terms(self) -> list[str]:
        """All terms, in byte order."""
        return self._core.terms()

    @cached_property
    def df(self) -> npt.NDArray[np.uint64]:
        """(V,) uint64, read-only: documents that hold each term."""
        return _numbers(self._core.df(), "<u8")

    @cached_property
    def idf(self) -> npt.NDArray[np.float64]:
        """(V,) float64, read-only: ln(N/df) of each term."""
        return _numbers(self._core.idf(), "<f8")

    @cached_property
    def max_score(self) -> npt.NDArray[np.float64]:
        """(V,) float64, read-only: the largest score of each term over all documents."""
        return _numbers(self._core.max_score(), "<f8")

    @cached_property
    def by_rank(self) -> npt.NDArray[np.uint32]:
        """(V,) uint32, read-only: terms by maximum score, the largest first, equal scores in byte order."""
        return _numbers(self._core.by_rank(), "<u4")

    def transform(self, texts: Sequence[str]) -> csr_matrix:
        """The TF-IDF matrix ``(len(texts), V)`` in CSR, float64: ln(1 + c/L) * idf.

        A term the index does not know counts in L and has no column.
        """
        import numpy as np
        from scipy.sparse import csr_matrix

        indptr, indices, values = self._core.transform(list(texts))
        parts = (np.frombuffer(values, "<f8"), np.frombuffer(indices, "<i8"), np.frombuffer(indptr, "<i8"))
        return csr_matrix(parts, shape=(len(texts), len(self)))

    def augment(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        epoch: int = 0,
        rows: Sequence[int] | None = None,
        copy: int = 0,
        beta: float = 0.5,
        radius: int | None = None,
        surface: str = "keep",
    ) -> list[str]:
        """One hard negative for each text (UNA, section 3.2).

        A negative is a function of (text, seed, epoch, row, copy, beta, radius, surface) alone. ``rows`` are
        the texts' row numbers (default 0, 1, ...); ``beta`` in [0, 1] is about the share of words replaced;
        ``radius`` in ranks to either side (default ``default_radius``; as published: 4000); ``surface`` is
        ``keep`` or ``plain`` (lower-cased terms joined by spaces, as published).
        """
        return self.augment_report(
            texts, seed=seed, epoch=epoch, rows=rows, copy=copy, beta=beta, radius=radius, surface=surface
        )[0]

    def augment_report(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        epoch: int = 0,
        rows: Sequence[int] | None = None,
        copy: int = 0,
        beta: float = 0.5,
        radius: int | None = None,
        surface: str = "keep",
    ) -> tuple[list[str], AugmentReport]:
        """Like ``augment``, and what became of the rows."""
        if isinstance(texts, str):
            raise InputError("texts: a list of sentences was expected, not one string")
        numbers = list(range(len(texts))) if rows is None else [int(row) for row in rows]
        if len(numbers) != len(texts):
            raise InputError(f"rows: {len(numbers)} row numbers for {len(texts)} texts")
        _in_range(seed=seed, epoch=epoch, copy=copy, radius=radius, **({"rows": min(numbers)} if numbers else {}))
        negatives, report = self._core.augment(list(texts), numbers, seed, epoch, copy, beta, radius, surface)
        return negatives, AugmentReport(*report)

    def replacements(
        self,
        text: str,
        *,
        row: int = 0,
        seed: int = 0,
        epoch: int = 0,
        copy: int = 0,
        beta: float = 0.5,
        radius: int | None = None,
        surface: str = "keep",
    ) -> tuple[str, list[tuple[tuple[int, int], tuple[int, int], float]]]:
        """The negative of one text, and for each replaced word its characters in the text, those of the new
        word in the negative, and p."""
        _in_range(seed=seed, epoch=epoch, copy=copy, radius=radius, row=row)
        return self._core.replacements(text, row, seed, epoch, copy, beta, radius, surface)

    def explain(
        self,
        text: str,
        *,
        seed: int = 0,
        samples: int = 5,
        beta: float = 0.5,
        radius: int | None = None,
    ) -> list[ExplainedWord]:
        """How UNA sees each word of a sentence, and what could take its place."""
        _in_range(seed=seed, samples=samples, radius=radius)
        return [ExplainedWord(*word) for word in self._core.explain(text, seed, samples, beta, radius)]


def build_index(
    paths: Sequence[str],
    folder: str | PathLike[str],
    *,
    tokenizer: str = "unicode",
    matrix: bool = True,
    encoding_errors: str = "strict",
    max_line_bytes: int = MAX_LINE_BYTES,
    threads: int = 0,
    progress: _core.Progress | None = None,
) -> tuple[IndexInfo, list[SourceFile]]:
    """Counts the files and writes ``folder/index.safetensors`` and, if wanted, ``folder/matrix.npz``.

    The matrix is documents x terms in CSR, float64, row i being row i of the corpus. Nothing is held in Python.
    """
    counts, files = _core.build_to(
        list(paths), folder, tokenizer, matrix, encoding_errors, max_line_bytes, threads, progress
    )
    return IndexInfo(*counts), [SourceFile(*file) for file in files]


def _in_range(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and not 0 <= number < 2**63 and not (name in ("seed", "epoch") and 0 <= number < 2**64):
            raise InputError(f"{name}: {number} was given, and it must be 0 or more, and no larger than 64 bits hold")


def _existing(folder: str | PathLike[str]) -> str:
    if not (Path(folder) / "index.safetensors").exists():
        raise InputError(
            f"{fspath(folder)}: no TF-IDF index there; make one with 'cse build-tfidf CORPUS -o {fspath(folder)}'"
        )
    return fspath(folder)


def _numbers(raw: bytes, dtype: str) -> npt.NDArray[Any]:
    import numpy as np  # not at the top: cse build-tfidf does without it

    return np.frombuffer(raw, dtype=dtype)


def _paths(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str]:
    if isinstance(paths, (str, PathLike)):
        return [fspath(paths)]
    return [fspath(path) for path in paths]

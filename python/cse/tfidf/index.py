"""The TF-IDF index of a corpus, and the hard negatives drawn from it (UNA).

Everything is computed in Rust (``cse._core``); this module names it, documents it and says what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from .. import _core
from ..data import readers as inputs
from ..errors import InputError
from .options import (
    DRAW,
    MAX_LINE_BYTES,
    DrawOptions,
    ReadOptions,
    WordOptions,
    complete,
    percentage,
    reading_options,
    word_options,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from scipy.sparse import csr_matrix

__all__ = [
    "AugmentReport",
    "ExplainedWord",
    "IndexInfo",
    "Replacement",
    "SourceFile",
    "TfidfIndex",
    "build_index",
]


@dataclass(frozen=True)
class SourceFile:
    """A file a corpus was read from: path as given, bytes as stored, rows, XXH3 (128 bits, hexadecimal)."""

    path: str
    bytes: int
    rows: int
    xxh3: str
    column: str | None = None
    """Which column of a table; None for a text file."""


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
class Replacement:
    """A word that was replaced. Spans count characters and exclude their end; ranks begin at 1."""

    old: str
    new: str
    span: tuple[int, int]
    new_span: tuple[int, int]
    p: float
    """The probability with which it was to be replaced."""
    rank: int
    new_rank: int


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
        paths: inputs.Paths,
        *,
        column: str | None = None,
        encoding_errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        threads: int = 0,
        **words: Unpack[WordOptions],
    ) -> TfidfIndex:
        """Counts files in one pass, in memory bounded by the vocabulary.

        ``paths`` are files (plain, ``.gz``, ``.zst``), patterns (``shards/*.txt``), or tables (``.csv``, ``.tsv``,
        ``.jsonl``, ``.parquet``) of which ``column`` is read. Raises ``InputError`` or ``OSError``.
        """
        reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
        return cls(_core.Index.build(inputs.resolve(paths, column), word_options(**words), reading))

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        *,
        min_df: int = 0,
        max_terms: int | None = None,
        **words: Unpack[WordOptions],
    ) -> TfidfIndex:
        """Counts texts in memory, blank ones as no documents; ``min_df`` and ``max_terms`` as in ``open``."""
        _in_range(min_df=min_df, max_terms=max_terms)
        return cls(_core.Index.from_texts(_listed(texts), word_options(**words), min_df, max_terms))

    @classmethod
    def open(
        cls, folder: str | PathLike[str] = "tfidf", *, min_df: int = 0, max_terms: int | None = None
    ) -> TfidfIndex:
        """Opens ``folder/index.safetensors``; a damaged file or one of another format raises ``InputError``.

        ``min_df`` shows only terms in at least so many documents, ``max_terms`` of those only the most frequent by
        document, ties in byte order. What is stored stays whole: N, idf, scores and lengths are those of the corpus,
        and a word that is hidden keeps its idf, but has no rank and is never drawn.
        """
        _in_range(min_df=min_df, max_terms=max_terms)
        return cls(_core.Index.open(_existing(folder), min_df, max_terms))

    @classmethod
    def from_bytes(cls, data: bytes, *, min_df: int = 0, max_terms: int | None = None) -> TfidfIndex:
        """The index that ``to_bytes`` gave."""
        _in_range(min_df=min_df, max_terms=max_terms)
        return cls(_core.Index.from_bytes(data, min_df, max_terms))

    @classmethod
    def merge(cls, shards: Sequence[str | PathLike[str]], folder: str | PathLike[str]) -> TfidfIndex:
        """Writes to ``folder`` the index of several indexes' corpora together, byte for byte what one build over all
        their files in this order gives. Their tokenizers must be the same; no matrix is written."""
        if isinstance(shards, (str, PathLike)):
            raise InputError("shards: a list of folders was expected, not one")
        return cls(_core.Index.merge_to(folder, [_existing(shard) for shard in shards]))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes ``folder/index.safetensors``, whole or not at all; a view raises ``InputError``."""
        self._core.save(folder)

    def to_bytes(self) -> bytes:
        """What ``save`` writes."""
        return self._core.to_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels between processes as the bytes of its file; a view raises ``InputError``."""
        return type(self).from_bytes, (self.to_bytes(),)

    def __len__(self) -> int:
        """V, the number of terms."""
        return len(self._core)

    @property
    def tokenizer(self) -> str:
        """``unicode``, ``whitespace`` or ``treebank``."""
        return self._core.tokenizer[0]

    @property
    def words(self) -> WordOptions:
        """What a term is here."""
        name, lowercase, nfkc = self._core.tokenizer
        return {"tokenizer": name, "lowercase": lowercase, "nfkc": nfkc}

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

    def ranks(self, radius: int | str | None = None) -> int:
        """A radius as a number of ranks: a percentage is of V, rounded, at least 1."""
        if radius is None:
            return self.default_radius
        share = percentage(radius)
        if share is not None:
            return max(1, round(len(self) * share / 100))
        if not 1 <= int(radius) < 2**63:
            raise InputError(f"--radius: {radius} was given, and it must be at least 1 and fit into 63 bits")
        return int(radius)

    @cached_property
    def terms(self) -> Sequence[str]:
        """All terms, in byte order."""
        return self._core.terms()

    @cached_property
    def df(self) -> npt.NDArray[np.uint64]:
        """(V,) uint64, read-only, not a copy: documents that hold each term."""
        return self._numbers("df")

    @cached_property
    def idf(self) -> npt.NDArray[np.float64]:
        """(V,) float64, read-only, not a copy: ln(N/df) of each term."""
        return self._numbers("idf")

    @cached_property
    def max_score(self) -> npt.NDArray[np.float64]:
        """(V,) float64, read-only, not a copy: the largest score of each term over all documents."""
        return self._numbers("max_score")

    @cached_property
    def by_rank(self) -> npt.NDArray[np.uint32]:
        """(V,) uint32, read-only, not a copy: terms by maximum score, the largest first, equal scores in byte order."""
        return self._numbers("by_rank")

    def _numbers(self, name: str) -> npt.NDArray[Any]:
        import numpy as np  # not at the top: cse build-tfidf does without it

        return np.asarray(self._core.numbers(name))

    def tokenize(self, text: str) -> list[tuple[int, int, str]]:
        """The terms of a text, each with its first character and the one after its last."""
        return _core.tokenize(text, self.words)

    def transform(self, texts: Sequence[str]) -> csr_matrix:
        """The TF-IDF matrix ``(len(texts), V)`` in CSR, float64: ln(1 + c/L) * idf.

        A term the index does not know counts in L and has no column.
        """
        import numpy as np
        from scipy.sparse import csr_matrix

        texts = _listed(texts)
        indptr, indices, values = self._core.transform(texts)
        parts = (np.frombuffer(values, "<f8"), np.frombuffer(indices, "<i8"), np.frombuffer(indptr, "<i8"))
        return csr_matrix(parts, shape=(len(texts), len(self)))

    def augment(
        self, texts: Sequence[str], *, rows: Sequence[int] | None = None, **drawing: Unpack[DrawOptions]
    ) -> list[str]:
        """One hard negative for each text (UNA, section 3.2); ``rows`` are their row numbers (default 0, 1, ...)."""
        return self.augment_report(texts, rows=rows, **drawing)[0]

    def augment_report(
        self, texts: Sequence[str], *, rows: Sequence[int] | None = None, **drawing: Unpack[DrawOptions]
    ) -> tuple[list[str], AugmentReport]:
        """Like ``augment``, and what became of the rows."""
        texts = _listed(texts)
        numbers = range(len(texts)) if rows is None else rows
        if len(numbers) != len(texts):
            raise InputError(f"rows: {len(numbers)} row numbers for {len(texts)} texts")
        try:
            negatives, report = self._core.augment(texts, numbers, self.draw_options(**drawing))
        except OverflowError:
            raise InputError("rows: a row number must be 0 or more, and no larger than 64 bits hold") from None
        return negatives, AugmentReport(*report)

    def replacements(self, text: str, *, row: int = 0, **drawing: Unpack[DrawOptions]) -> tuple[str, list[Replacement]]:
        """The negative of one text, and what was replaced in it."""
        _in_range(row=row)
        output, replaced = self._core.replacements(text, row, self.draw_options(**drawing))
        return output, [Replacement(*parts) for parts in replaced]

    def explain(self, text: str, *, samples: int = 5, **drawing: Unpack[DrawOptions]) -> list[ExplainedWord]:
        """How UNA sees each word of a sentence, and ``samples`` terms that could take its place."""
        _in_range(samples=samples)
        return [ExplainedWord(*word) for word in self._core.explain(text, samples, self.draw_options(**drawing))]

    def draw_options(self, **drawing: Unpack[DrawOptions]) -> DrawOptions:
        """All options of drawing, the radius in ranks; ``InputError`` for what cannot be."""
        options = complete(DRAW, drawing)
        options["radius"] = self.ranks(options["radius"])
        _in_range(seed=options["seed"], epoch=options["epoch"], copy=options["copy"])
        return options


def build_index(
    files: Sequence[str | inputs.Column],
    folder: str | PathLike[str],
    *,
    matrix: bool = True,
    words: WordOptions | None = None,
    reading: ReadOptions | None = None,
    progress: _core.Progress | None = None,
) -> tuple[IndexInfo, list[SourceFile]]:
    """Counts what ``inputs.resolve`` gave into ``folder/index.safetensors`` and, if wanted, ``folder/matrix.npz``.

    The matrix is documents x terms in CSR, float64, row i being row i of the corpus. Nothing is held in Python.
    """
    words, reading = word_options(**(words or {})), reading_options(**(reading or {}))
    counts, read = _core.build_to(list(files), folder, words, matrix, reading, progress)
    return IndexInfo(*counts), [SourceFile(*file) for file in read]


def _in_range(**numbers: int | None) -> None:
    for name, number in numbers.items():
        bits = 64 if name in ("seed", "epoch", "copy", "row") else 63
        if number is not None and not 0 <= number < 2**bits:
            raise InputError(f"{name}: {number} was given, and it must be 0 or more, and fit into {bits} bits")


def _listed(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise InputError("texts: a list of sentences was expected, not one string")
    return list(texts)


def _existing(folder: str | PathLike[str]) -> str:
    if not (Path(folder) / "index.safetensors").exists():
        raise InputError(
            f"{fspath(folder)}: no TF-IDF index there; make one with 'cse build-tfidf CORPUS -o {fspath(folder)}'"
        )
    return fspath(folder)

"""The TF-IDF index of a corpus, and sampling of hard negatives from it (UNA).

All computation is done in Rust (``cse._core``); this module is its documented Python interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from .. import _core
from ..data import readers
from ..data.reading import MAX_LINE_BYTES, ReadOptions, SourceFile, complete, reading_options
from ..errors import InputError, check_texts
from .options import DRAW, DrawOptions, WordOptions, check_radius, percentage, word_options
from .results import AugmentReport, ExplainedWord, IndexInfo, Replacement

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from scipy.sparse import csr_matrix

__all__ = ["TfidfIndex", "build_index"]


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
        paths: readers.Paths,
        *,
        column: str | None = None,
        encoding_errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        threads: int = 0,
        **words: Unpack[WordOptions],
    ) -> TfidfIndex:
        """Builds an index from files in one pass, in memory bounded by the vocabulary.

        Args:
            paths: Text files (plain, ``.gz``, ``.zst``), patterns (``shards/*.txt``), or tables (``.csv``, ``.tsv``,
                ``.jsonl``, ``.parquet``).
            column: The column of the tables that holds the sentences.
            encoding_errors: See ``ReadOptions``, as for ``max_line_bytes`` and ``threads``.
            **words: Tokenization; see ``WordOptions``.

        Raises:
            InputError: For a faulty file, pattern, column or option.
            OSError: For a file that cannot be read.
        """
        reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
        return cls(_core.Index.build(readers.resolve(paths, column), word_options(**words), reading))

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        min_df: int = 0,
        max_terms: int | None = None,
        **words: Unpack[WordOptions],
    ) -> TfidfIndex:
        """Builds an index from texts in memory; blank texts are no documents. For the filters see ``open``."""
        _in_range(min_df=min_df, max_terms=max_terms)
        return cls(_core.Index.from_texts(check_texts(texts), word_options(**words), min_df, max_terms))

    @classmethod
    def open(
        cls, folder: str | PathLike[str] = "tfidf", *, min_df: int = 0, max_terms: int | None = None
    ) -> TfidfIndex:
        """Opens ``folder/index.safetensors``; a damaged file or one of another format raises ``InputError``.

        ``min_df`` keeps only terms that occur in at least so many documents; ``max_terms`` keeps only the terms with
        the highest document frequency, ties in byte order. The filter changes what is drawn, not the statistics: N,
        idf, scores and lengths are those of the whole corpus, and a filtered word keeps its idf but has no rank and is
        never drawn.
        """
        _in_range(min_df=min_df, max_terms=max_terms)
        return cls(_core.Index.open(_existing(folder), min_df, max_terms))

    @classmethod
    def from_bytes(cls, data: bytes, *, min_df: int = 0, max_terms: int | None = None) -> TfidfIndex:
        """Opens an index from the bytes that ``to_bytes`` returned."""
        _in_range(min_df=min_df, max_terms=max_terms)
        return cls(_core.Index.from_bytes(data, min_df, max_terms))

    @classmethod
    def merge(cls, shards: Sequence[str | PathLike[str]], folder: str | PathLike[str]) -> TfidfIndex:
        """Merges indexes and writes the result to ``folder``.

        The result equals, byte for byte, an index built from all their files in this order. The tokenizers must be
        equal. No matrix is written.
        """
        if isinstance(shards, (str, PathLike)):
            raise InputError("shards: a list of folders was expected, not one folder")
        return cls(_core.Index.merge_to(folder, [_existing(shard) for shard in shards]))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes ``folder/index.safetensors`` atomically; a filtered index raises ``InputError``."""
        self._core.save(folder)

    def to_bytes(self) -> bytes:
        """The bytes that ``save`` writes."""
        return self._core.to_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the index as the bytes of its file; a filtered index raises ``InputError``."""
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
        """The tokenization options the index was built with."""
        name, lowercase, nfkc = self._core.tokenizer
        return {"tokenizer": name, "lowercase": lowercase, "nfkc": nfkc}

    @property
    def info(self) -> IndexInfo:
        """N and other counts of the corpus."""
        return IndexInfo(*self._core.counts)

    @property
    def files(self) -> list[SourceFile]:
        """The files the index was built from, in order."""
        return [SourceFile(*file) for file in self._core.files]

    @property
    def default_radius(self) -> int:
        """min(4000, V/100), at least 1."""
        return self._core.default_radius

    def ranks(self, radius: int | str | None = None) -> int:
        """Converts a radius to a number of ranks; a percentage of V is rounded and at least 1."""
        if radius is None:
            return self.default_radius
        share = percentage(radius)
        if share is not None:
            return max(1, round(len(self) * share / 100))
        return int(cast(int, check_radius(radius)))

    @cached_property
    def terms(self) -> Sequence[str]:
        """All terms, in byte order."""
        return self._core.terms()

    @cached_property
    def df(self) -> npt.NDArray[np.uint64]:
        """Document frequency of each term: ``(V,)`` uint64, read-only, no copy."""
        return self._numbers("df")

    @cached_property
    def idf(self) -> npt.NDArray[np.float64]:
        """ln(N/df) of each term: ``(V,)`` float64, read-only, no copy."""
        return self._numbers("idf")

    @cached_property
    def max_score(self) -> npt.NDArray[np.float64]:
        """Maximum TF-IDF score of each term over all documents: ``(V,)`` float64, read-only, no copy."""
        return self._numbers("max_score")

    @cached_property
    def by_rank(self) -> npt.NDArray[np.uint32]:
        """Terms by descending maximum score, ties in byte order: ``(V,)`` uint32, read-only, no copy."""
        return self._numbers("by_rank")

    def _numbers(self, name: str) -> npt.NDArray[Any]:
        import numpy as np  # here, because cse build-tfidf does not need it

        return np.asarray(self._core.numbers(name))

    def tokenize(self, text: str) -> list[tuple[int, int, str]]:
        """The terms of a text as (start, end, term); start and end count characters, end is exclusive."""
        return _core.tokenize(text, self.words)

    def transform(self, texts: Iterable[str]) -> csr_matrix:
        """The TF-IDF matrix ``(len(texts), V)`` in CSR, float64: ln(1 + c/L) * idf.

        A term that is not in the index counts in L and has no column.
        """
        import numpy as np
        from scipy.sparse import csr_matrix

        texts = check_texts(texts)
        indptr, indices, values = self._core.transform(texts)
        parts = (np.frombuffer(values, "<f8"), np.frombuffer(indices, "<i8"), np.frombuffer(indptr, "<i8"))
        return csr_matrix(parts, shape=(len(texts), len(self)))

    def augment(
        self, texts: Iterable[str], *, rows: Sequence[int] | None = None, **drawing: Unpack[DrawOptions]
    ) -> list[str]:
        """One hard negative per text (UNA, section 3.2); ``rows`` are their row numbers (default 0, 1, ...)."""
        return self.augment_report(texts, rows=rows, **drawing)[0]

    def augment_report(
        self, texts: Iterable[str], *, rows: Sequence[int] | None = None, **drawing: Unpack[DrawOptions]
    ) -> tuple[list[str], AugmentReport]:
        """Like ``augment``; also returns counts of words and rows."""
        texts = check_texts(texts)
        numbers = range(len(texts)) if rows is None else rows
        if len(numbers) != len(texts):
            raise InputError(f"rows: {len(numbers)} row numbers for {len(texts)} texts")
        try:
            negatives, report = self._core.augment(texts, numbers, self.draw_options(**drawing))
        except OverflowError:
            raise InputError("rows: a row number must be 0 or more, and no larger than 64 bits hold") from None
        return negatives, AugmentReport(*report)

    def replacements(self, text: str, *, row: int = 0, **drawing: Unpack[DrawOptions]) -> tuple[str, list[Replacement]]:
        """The negative of one text, and the replacements made in it."""
        _in_range(row=row)
        output, replaced = self._core.replacements(text, row, self.draw_options(**drawing))
        return output, [Replacement(*parts) for parts in replaced]

    def explain(self, text: str, *, samples: int = 5, **drawing: Unpack[DrawOptions]) -> list[ExplainedWord]:
        """Score, rank and replacement probability of each word, with ``samples`` sampled replacements."""
        _in_range(samples=samples)
        return [ExplainedWord(*word) for word in self._core.explain(text, samples, self.draw_options(**drawing))]

    def draw_options(self, **drawing: Unpack[DrawOptions]) -> DrawOptions:
        """All sampling options, the radius in ranks; ``InputError`` for an invalid value."""
        options: DrawOptions = complete(DRAW, drawing)
        options["radius"] = self.ranks(options["radius"])
        _in_range(seed=options["seed"], epoch=options["epoch"], copy=options["copy"])
        return options


def build_index(
    paths: readers.Paths,
    folder: str | PathLike[str],
    *,
    column: str | None = None,
    matrix: bool = True,
    engine: str = "local",
    words: WordOptions | None = None,
    reading: ReadOptions | None = None,
    progress: _core.Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[IndexInfo, list[SourceFile], int]:
    """Builds an index in a folder. Unlike ``TfidfIndex.build`` it does not open the index.

    Args:
        paths: As for ``TfidfIndex.build``.
        folder: Gets ``index.safetensors`` and, with ``matrix``, ``matrix.npz``: documents x terms in CSR, float64, its
            row i being row i of the corpus. No text passes through Python.
        column: The column of the tables that holds the sentences.
        matrix: Whether to write the matrix, which is held in memory; the engine ``ray`` makes none.
        engine: ``local``, or ``ray``: one task per file on a Ray cluster, with the same result.
        words: Tokenization.
        reading: How files are read.
        progress: Shows the progress of ``local`` and cancels it.
        say: Called with lines of progress by ``ray``.

    Returns:
        Counts of the corpus, the files, and the number of fields in which a line break was replaced.
    """
    words, reading = word_options(**(words or {})), reading_options(**(reading or {}))
    if engine == "ray":
        from .ray import count_on_cluster

        data, joined = count_on_cluster(paths, column=column, words=words, reading=reading, say=say)
        counts, read = _core.save(folder, data)
    elif engine == "local":
        files = readers.resolve(paths, column)
        counts, read = _core.build_to(files, folder, words, matrix, reading, progress)
        joined = readers.joined_lines(files)
    else:
        raise InputError(f"--engine: {engine!r} is unknown; choose local or ray")
    return IndexInfo(*counts), [SourceFile(*file) for file in read], joined


def _in_range(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral)):
            raise InputError(f"{name}: {number!r} was given, and it must be an integer")
        bits = 64 if name in ("seed", "epoch", "copy", "row") else 63
        if number is not None and not 0 <= number < 2**bits:
            raise InputError(f"{name}: {number} was given, and it must be 0 or more, and fit into {bits} bits")


def _existing(folder: str | PathLike[str]) -> str:
    if not (Path(folder) / "index.safetensors").exists():
        raise InputError(
            f"{fspath(folder)}: no TF-IDF index there; make one with 'cse build-tfidf CORPUS -o {fspath(folder)}'"
        )
    return fspath(folder)

"""The TF-IDF index of a corpus, and UNA, which samples hard negatives from it.

The computation is implemented in Rust (``cse._core``); this module is its Python interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import cse._core as _core

from ..data import readers
from ..data.readers import ReadOptions, SourceFile, reading_options
from ..data.tables import MAX_LINE_BYTES
from ..errors import InputError, check_texts
from .build import AugmentReport, ExplainedWord, IndexInfo, Replacement, prepared
from .options import DrawOptions, WordOptions, check_radius, draw_options, word_options
from .pieces import Pieces

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from scipy.sparse import csr_matrix


class TfidfIndex:
    """Document frequencies and maximum TF-IDF scores of the terms of a corpus.

    The score of a term that occurs c times in a document of L terms is ln(1 + c/L) * ln(N/df) (UNA, section 3.1), where
    N is the number of documents and df the document frequency. Term ids are positions in byte order. Create an index
    with ``build``, ``from_texts``, ``open``, ``from_bytes`` or ``merge``.
    """

    def __init__(self, core: _core.Index, pieces: Pieces | None = None) -> None:
        self._core = core
        self.pieces = pieces
        """The model's tokenizer whose pieces are the terms; None with other tokenizers than ``wordpieces``."""

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
        """Builds an index from files in one pass, with memory proportional to the vocabulary.

        Args:
            paths: Text files (plain, ``.gz``, ``.zst``), patterns (``shards/*.txt``), or tables (``.csv``, ``.tsv``,
                ``.jsonl``, ``.parquet``).
            column: Column of the tables that contains the sentences.
            encoding_errors: ``strict`` or ``replace``; see ``ReadOptions``.
            max_line_bytes: See ``ReadOptions``.
            threads: See ``ReadOptions``.
            **words: Tokenization; see ``WordOptions``.

        Raises:
            InputError: For an invalid file, pattern, column or option.
            OSError: For a file that cannot be read.
        """
        reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
        complete_words = word_options(**words)
        pieces = complete_words["pieces"]
        inputs = readers.resolve(paths, column)
        return cls(_core.Index.build(inputs, complete_words, prepared(reading, pieces)), pieces)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        min_df: int = 0,
        max_terms: int | None = None,
        **words: Unpack[WordOptions],
    ) -> TfidfIndex:
        """Builds an index from texts in memory.

        Args:
            texts: One document per text; blank texts are not documents.
            min_df: See ``open``.
            max_terms: See ``open``.
            **words: Tokenization; see ``WordOptions``.

        Raises:
            InputError: For invalid texts or options.
        """
        complete_words, texts = word_options(**words), check_texts(texts)
        pieces = complete_words["pieces"]
        rows = texts if pieces is None else pieces.rows(texts)
        return cls(_core.Index.from_texts(rows, complete_words, min_df, max_terms), pieces)

    @classmethod
    def open(
        cls, folder: str | PathLike[str] = "tfidf", *, min_df: int = 0, max_terms: int | None = None
    ) -> TfidfIndex:
        """Opens ``folder/index.safetensors`` and, with the tokenizer ``wordpieces``, ``folder/tokenizer.json``.

        The filters ``min_df`` and ``max_terms`` restrict the terms that are sampled as replacements. They do not change
        N, idf, scores or document lengths: a removed term keeps its idf, but has no rank and is never sampled.

        Args:
            folder: Folder of the index.
            min_df: Minimum document frequency of a term.
            max_terms: Maximum number of terms. Those with the highest document frequency are kept; byte order breaks
                ties.

        Raises:
            InputError: If there is no index, its file is damaged or has another format version, or a filter is invalid.
        """
        core = _core.Index.open(_existing(folder), min_df, max_terms)
        return cls(core, _stored_pieces(core, folder))

    @classmethod
    def from_bytes(
        cls, data: bytes, *, min_df: int = 0, max_terms: int | None = None, pieces: Pieces | None = None
    ) -> TfidfIndex:
        """Opens an index from the bytes that ``to_bytes`` returned.

        ``pieces`` must be the attribute of the same name of that index. Raises ``InputError`` if it is not.
        """
        core = _core.Index.from_bytes(data, min_df, max_terms)
        if core.tokenizer[0] == "wordpieces" and (pieces is None or pieces.hash != core.pieces):
            raise InputError("pieces: the terms of the index are pieces of a tokenizer; give the attribute pieces")
        return cls(core, pieces)

    @classmethod
    def merge(cls, shards: Sequence[str | PathLike[str]], folder: str | PathLike[str]) -> TfidfIndex:
        """Merges indexes and writes the result to ``folder``.

        The result is byte for byte equal to an index built from the files of all ``shards`` in this order. No matrix is
        written.

        Args:
            shards: Folders of the indexes.
            folder: Folder for the result.

        Raises:
            InputError: If the indexes have different tokenization options, or one cannot be opened.
        """
        core = _core.Index.merge_to(folder, [_existing(shard) for shard in shards])
        pieces = _stored_pieces(core, shards[0]) if shards else None
        if pieces is not None:
            pieces.save(folder)
        return cls(core, pieces)

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes ``folder/index.safetensors`` atomically; raises ``InputError`` for a filtered index (see ``open``).

        With the tokenizer ``wordpieces``, also writes ``folder/tokenizer.json``.
        """
        self._core.save(folder)
        if self.pieces is not None:
            self.pieces.save(folder)

    def to_bytes(self) -> bytes:
        """Returns the bytes that ``save`` writes; raises ``InputError`` for a filtered index (see ``open``)."""
        return self._core.to_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the index as the bytes of its file; raises ``InputError`` for a filtered index (see ``open``)."""
        return partial(type(self).from_bytes, pieces=self.pieces), (self.to_bytes(),)

    def __len__(self) -> int:
        """Returns V, the number of terms."""
        return len(self._core)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer: ``unicode``, ``whitespace``, ``treebank`` or ``wordpieces``."""
        return self._core.tokenizer[0]

    @property
    def words(self) -> WordOptions:
        """The tokenization options the index was built with."""
        name, lowercase, nfkc = self._core.tokenizer
        words: WordOptions = {"tokenizer": name, "lowercase": lowercase, "nfkc": nfkc}
        return words if self.pieces is None else {**words, "pieces": self.pieces}

    @property
    def info(self) -> IndexInfo:
        """Counts of the corpus."""
        return IndexInfo(*self._core.counts)

    @property
    def files(self) -> list[SourceFile]:
        """The files the index was built from, in order."""
        return [SourceFile(**file) for file in self._core.files]

    @property
    def default_radius(self) -> int:
        """Default radius in ranks: min(4000, V/100), at least 1."""
        return self._core.default_radius

    def ranks(self, radius: int | str | None = None) -> int:
        """Converts a radius to a number of ranks.

        Args:
            radius: Number of ranks, or a percentage of V (``"5%"``), which is rounded to at least 1 rank. None: the
                default radius.

        Raises:
            InputError: For an invalid radius.
        """
        return check_radius(radius, len(self)) or self.default_radius

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
        """Term ids by descending maximum score, ties in byte order: ``(V,)`` uint32, read-only, no copy."""
        return self._numbers("by_rank")

    def _numbers(self, name: str) -> npt.NDArray[Any]:
        import numpy as np  # not at the top: cse build-tfidf does not need it

        return np.asarray(self._core.numbers(name))

    def tokenize(self, text: str) -> list[tuple[int, int, str]]:
        """Returns the terms of a text as (start, end, term), with character offsets, ``end`` exclusive."""
        return _core.tokenize(text, self.words) if self.pieces is None else self.pieces.split([text])[0]

    def transform(self, texts: Iterable[str]) -> csr_matrix:
        """Returns the TF-IDF matrix ``(len(texts), V)`` in CSR, float64: ln(1 + c/L) * idf.

        Terms that are not in the index count towards the document length L, but have no column.
        """
        import numpy as np
        from scipy.sparse import csr_matrix

        texts = check_texts(texts)
        indptr, indices, values = self._core.transform(self._rows(texts))
        parts = (np.frombuffer(values, "<f8"), np.frombuffer(indices, "<i8"), np.frombuffer(indptr, "<i8"))
        return csr_matrix(parts, shape=(len(texts), len(self)))

    def augment(
        self, texts: Iterable[str], *, rows: Sequence[int] | None = None, **drawing: Unpack[DrawOptions]
    ) -> list[str]:
        """Samples one hard negative per text (UNA, section 3.2).

        Args:
            texts: The sentences.
            rows: Row number of each text, which together with ``seed``, ``epoch`` and ``copy`` determines the random
                numbers. Default: 0, 1, ...
            **drawing: See ``DrawOptions``.

        Returns:
            The negatives, in the order of the texts. A text in which no word can be replaced is returned unchanged.

        Raises:
            InputError: For invalid texts, row numbers or options.
        """
        return self.augment_report(texts, rows=rows, **drawing)[0]

    def augment_report(
        self, texts: Iterable[str], *, rows: Sequence[int] | None = None, **drawing: Unpack[DrawOptions]
    ) -> tuple[list[str], AugmentReport]:
        """Returns the same negatives as ``augment``, and a report with counts of words and rows."""
        texts = check_texts(texts)
        numbers = range(len(texts)) if rows is None else rows
        if len(numbers) != len(texts):
            raise InputError(f"rows: {len(numbers)} row numbers were given for {len(texts)} texts; give one per text")
        negatives, report = self._core.augment(self._rows(texts), numbers, self.draw_options(**drawing))
        return negatives, AugmentReport(**report)

    def replacements(self, text: str, *, row: int = 0, **drawing: Unpack[DrawOptions]) -> tuple[str, list[Replacement]]:
        """Returns the negative of a text, and the words replaced in it; see ``augment`` for the arguments."""
        (line,) = self._rows([text])
        output, replaced = self._core.replacements(line, row, self.draw_options(**drawing))
        return output, [Replacement(*parts) for parts in replaced]

    def explain(self, text: str, *, samples: int = 5, **drawing: Unpack[DrawOptions]) -> list[ExplainedWord]:
        """Returns statistics of each word of a text, including up to ``samples`` sampled replacements."""
        (line,) = self._rows([text])
        words = self._core.explain(line, samples, self.draw_options(**drawing))
        return [ExplainedWord(*word) for word in words]

    def reading(self, reading: ReadOptions) -> Mapping[str, object]:
        """Returns the options for the core to read files whose rows this index augments."""
        return prepared(reading, self.pieces)

    def _rows(self, texts: Sequence[str]) -> Sequence[str]:
        """Returns the texts, with their pieces if the terms are pieces."""
        return texts if self.pieces is None else self.pieces.rows(texts)

    def draw_options(self, **drawing: Unpack[DrawOptions]) -> DrawOptions:
        """Returns the given options, with the defaults for missing ones and with the radius in ranks.

        Raises:
            InputError: For an invalid radius.
            TypeError: For an unknown option.
        """
        options = draw_options(**drawing)
        return {**options, "radius": self.ranks(options["radius"])}


def _stored_pieces(core: _core.Index, folder: str | PathLike[str]) -> Pieces | None:
    """Returns the tokenizer that is stored with an index whose terms are pieces; None for other terms."""
    return Pieces.open(folder, core.pieces) if core.tokenizer[0] == "wordpieces" else None


def _existing(folder: str | PathLike[str]) -> str:
    if not (Path(folder) / "index.safetensors").exists():
        raise InputError(
            f"{fspath(folder)}: no TF-IDF index there; make one with 'cse build-tfidf CORPUS -o {fspath(folder)}'"
        )
    return fspath(folder)

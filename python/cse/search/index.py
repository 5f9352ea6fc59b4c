"""An index of a corpus, stored in a folder and searched by meaning.

Products of vectors are computed in float32. A row is a candidate if its exact product may be among the k largest, given
the maximum rounding error. The products of the candidates are computed again in float64, so that the result is that of
a brute-force search in float64, for any number of threads and any division of the vectors into arrays.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import io
from ..data.corpus import Corpus
from ..encoder.base import compared_by
from ..encoder.vocabulary import Readability, readability, share_read
from ..errors import InputError, check_integer, check_switch, check_texts, sentence
from ..tfidf.pieces import Pieces
from ..ties import TIE, WIDEST, comparable
from .bm25 import SAMPLE, Bm25, Terms, terms_for
from .fusion import Fusion
from .pool import CODE, LEAST_READ, READABLE, UNREADABLE, Pool
from .rows import (
    ENCODED,
    ROWS,
    Changes,
    Floats,
    Numbers,
    Progress,
    Rows,
    check_settings,
    checked_ids,
    opened,
    ranges,
    scaled,
    taken,
    updated,
)

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

# Queries and vectors that are multiplied together, 16 MB of products; pairs of vectors that are multiplied in float64
# together, which fit in the cache of a core; and texts whose tokens are counted to see whether the model reads them.
QUERIES, PIECE, PAIRS, LONG_SAMPLE = 512, 8192, 1024, 50


@dataclass(frozen=True)
class Hit:
    """A row that was found.

    ``row`` counts from 0, ``id`` is the row number if the index has no ids, and ``text`` is the best passage if
    rows are cut into passages. ``score`` is the cosine (or dot product, if the model uses it) with the query; with
    ``hybrid``, the logarithm of a pooled probability.
    """

    row: int
    id: str
    score: float
    text: str


class SearchIndex:
    """Vectors, texts and ids of the rows of a corpus, in a folder; made by ``build``, opened by ``open``.

    The rows are memory-mapped. Blank rows are never found. While another process updates the index, an open index
    continues to return the rows that it had when it was opened. Several threads may search. ``encoder`` is that of
    queries, and ``changes`` what ``build`` changed in an existing index, else None.
    """

    def __init__(self, folder: Path, rows: Rows, encoder: Encoder) -> None:
        self.folder, self.encoder, self._rows = folder, encoder, rows
        self.changes: Changes | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._terms_of: dict[Fusion, Terms] = {}
        self._bm25: dict[str, Bm25] = {}
        self._lock = threading.Lock()
        # Rows with a vector, and the first vector of each of them. Methods number the rows by their positions here.
        self._filled = np.flatnonzero(rows.counts)
        self._starts = np.cumsum([0, *rows.counts[self._filled]])
        # Arrays of vectors, each with the number of its first row, and the first vectors of its rows (None: all).
        self._blocks: list[tuple[int, Floats, Numbers | None]] = []
        start, longest = 0, 1.0001
        for array in rows.vectors:
            first, last = np.searchsorted(self._starts, [start, start + len(array)]).tolist()
            if len(array):
                single = last - first == len(array)
                self._blocks.append((first, array, None if single else self._starts[first:last] - start))
                if rows.settings["similarity"] == "dot":
                    longest = max(longest, 1.001 * float(np.einsum("ij,ij->i", array, array).max()) ** 0.5)
            start += len(array)
        # The maximum error of a float32 product, relative to the norm of the query: |fl(x.y) - x.y| <= g |x|.|y| with
        # g = n u / (1 - n u), in any order of summation (Higham 2002, section 3.1). Here u is 2^-24, and n is the width
        # plus 8; the 8 covers further roundings (of norms and thresholds).
        bound = (rows.settings["width"] + 8) * 2.0**-24
        self._longest, self._error = longest, longest * bound / (1 - bound)

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        texts: Iterable[str] | Corpus,
        folder: str | PathLike[str] | None = None,
        *,
        ids: Sequence[str] | None = None,
        passages: int | str | None = None,
        rebuild: bool = False,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> SearchIndex:
        """Builds the index of a corpus, or updates an existing one.

        If the folder contains an index, of the same model and settings, only new texts are encoded, and rows that are
        not in the corpus are dropped. A second call completes an interrupted one, until which an index stays as it was.

        Args:
            encoder: The encoder.
            texts: The rows, as texts in memory or a ``Corpus``; a line break in a text becomes a space.
            folder: The folder; None: a temporary one, which is deleted together with the object.
            ids: One id per row; no two rows may have the same.
            passages: Cut rows into passages of at most this number of tokens (``"max"``: all that the model reads); a
                row gets the score of its best one. Default: as in the existing index; in a new one, rows are not cut.
            rebuild: Encode all rows again, and replace an existing index.
            batch_size: Texts per forward pass.
            progress: Called with the number of rows done since its last call; first, those already in the index.

        Raises:
            InputError: If the existing index was built with a different model or settings, shares no text with the
                corpus, or is damaged, or if texts, ids or settings are invalid.
        """
        rebuild, more = bool(check_switch(rebuild, "rebuild")), progress or (lambda rows: None)
        corpus = texts if isinstance(texts, Corpus) else Corpus.from_texts(texts)
        corpus.filled()  # refuses a corpus without text
        listed = None if ids is None else checked_ids(ids, len(corpus))
        temporary = tempfile.TemporaryDirectory(prefix="cse-search-") if folder is None else None
        path = Path(temporary.name if temporary else folder)  # type: ignore[arg-type]
        if io.holds_files(path) and not (path / ROWS).exists() and not any(path.glob(ENCODED)):
            raise InputError(f"{path}: holds files that are not part of an index; name a new folder")
        with io.naming(path):
            path.mkdir(parents=True, exist_ok=True)
        with io.locked(path, f"{path}: another process is writing to this index; wait for it"):
            rows, changes = updated(path, encoder, corpus, listed, passages, rebuild, batch_size, more)
        index = cls(path, rows, encoder)
        index._temporary, index.changes = temporary, changes
        return index

    @classmethod
    def open(cls, folder: str | PathLike[str], encoder: Encoder | None = None, *, device: str = "auto") -> SearchIndex:
        """Opens an index folder, and compares the checksum of its rows, which reads the file once.

        Args:
            folder: The folder.
            encoder: The encoder with which the index was built; None: the model named in the index is loaded.
            device: Device of the encoder if ``encoder`` is None.

        Raises:
            InputError: If the folder contains no complete index, or one that is damaged or of another model.
        """
        path = Path(folder)
        rows = opened(path)
        if encoder is None:
            from ..encoder.opening import open_encoder

            try:
                encoder = open_encoder(device=device, **rows.arguments)
            except (InputError, OSError) as error:
                raise InputError(f"{path}: {sentence(error)}; the index was built with this model") from None
        check_settings(path, rows.settings, encoder)
        return cls(path, rows, encoder)

    def __getattr__(self, name: str) -> Any:
        if name in ("add", "remove", "update"):
            raise AttributeError(
                f"{name} was removed; give all texts to SearchIndex.build, which encodes only new ones"
            )
        raise AttributeError(f"SearchIndex has no attribute {name!r}")

    def __len__(self) -> int:
        """Returns the number of rows, including blank ones."""
        return len(self._rows.table)

    @property
    def vectors(self) -> list[Floats]:
        """The vectors of all rows that are not blank, or of their passages, in arrays ``(n, D)``; see ``rows``."""
        return self._rows.vectors

    @property
    def shape(self) -> tuple[int, int]:
        """Number of vectors and number of dimensions."""
        return int(self._starts[-1]), int(self._rows.settings["width"])

    @property
    def rows(self) -> Numbers:
        """Row number of each vector, ``(vectors,)`` int64, ascending."""
        return np.repeat(np.arange(len(self)), self._rows.counts)

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Returns the texts of some rows."""
        return self._rows.values("text", rows)

    def ids(self, rows: Iterable[int]) -> list[str]:
        """Returns the ids of some rows, or the row numbers if the index has no ids."""
        return self._rows.values("id", rows) if self._rows.has_ids else [str(row) for row in rows]

    def search(
        self,
        queries: Iterable[str],
        k: int = 10,
        *,
        hybrid: bool | Fusion = False,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> list[list[Hit]]:
        """Finds the k best rows for each query; the vector search is exact.

        Args:
            queries: The queries; a blank query has no hits.
            k: Number of rows, at least 1.
            hybrid: Rank by the vectors and by BM25, with the settings of ``Fusion``, or True for the defaults. The BM25
                index of the texts is built when it is first needed, and stored in the folder.
            batch_size: Queries per forward pass.
            progress: Called with the number of queries encoded since its last call.

        Returns:
            For each query, at most k hits, best first; ties are in row order.

        Raises:
            InputError: For invalid queries or ``k``, or if bm25s is not installed.
        """
        asked, k = check_texts(queries, "queries"), min(check_integer(k, "k"), len(self._filled))
        fusion = Fusion.of(hybrid)
        vectors = self.encoder.encode_query(asked, batch_size=batch_size, progress=progress)
        numbers = [number for number, text in enumerate(asked) if text.strip()]
        wanted = scaled(vectors, self._rows.settings)[numbers]
        hits: list[list[Hit]] = [[] for _ in asked]
        if fusion is None:
            for number, query, near in zip(numbers, wanted, self._nearest(wanted, k), strict=True):
                hits[number] = self._hits(query, near, k)
        else:
            words = self._words(fusion)
            for number, query in zip(numbers, wanted, strict=True):
                hits[number] = self._pooled(query, words.scores(asked[number]), k, fusion)
        return hits

    def _nearest(self, queries: Floats, k: int) -> Iterator[Numbers]:
        """Yields, for each query ``(Q, D)``, rows among which are those with the k largest products, ascending."""
        # Rows that may have the same score as the k-th one are among them too.
        errors = (2 * self._error + WIDEST * TIE * self._longest) * np.linalg.norm(queries.astype(np.float64), axis=1)
        for start in range(0, len(queries), QUERIES):
            some = queries[start : start + QUERIES]
            limits = np.full(len(some), -np.inf, dtype=np.float32)
            best = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(some)
            for first, array, starts in self._pieces():
                products = some @ array.T
                scores = products if starts is None else np.maximum.reduceat(products, starts, axis=1)
                for number in np.flatnonzero(scores.max(1) >= limits).tolist():
                    places = np.flatnonzero(scores[number] >= limits[number])
                    values = np.concatenate([best[number][0], scores[number, places]])
                    rows = np.concatenate([best[number][1], first + places])
                    if len(values) >= k:
                        # Each product, also the k-th largest one, has an error of at most half of ``errors``.
                        limit = np.float32(np.partition(values, -k)[-k] - errors[start + number])
                        limits[number] = np.nextafter(limit, np.float32(-np.inf))
                        kept = values >= limits[number]
                        values, rows = values[kept], rows[kept]
                    best[number] = values, rows
            yield from (rows for _, rows in best)

    def _pieces(self) -> Iterator[tuple[int, Floats, Numbers | None]]:
        """Yields the arrays of vectors in pieces of whole rows, whose products with many queries need little memory."""
        for first, array, starts in self._blocks:
            edges = np.arange(len(array) + 1) if starts is None else np.append(starts, len(array))
            row = 0
            while row < len(edges) - 1:
                last = max(row + 1, int(np.searchsorted(edges, edges[row] + PIECE, "right")) - 1)
                own = None if starts is None else starts[row:last] - edges[row]
                yield first + row, array[edges[row] : edges[last]], own
                row = last

    def _pooled(self, query: Floats, words: Floats, k: int, fusion: Fusion) -> list[Hit]:
        """Returns the k rows with the best pooled scores, given the BM25 scores of all rows, blank ones too."""
        parts = [largest_of(array @ query, starts) for _, array, starts in self._blocks]
        dense = np.concatenate(parts, dtype=np.float64)
        words = words if len(words) == len(dense) else words[self._filled]
        size = self._longest * float(np.linalg.norm(query))
        pool = Pool(dense, words.astype(np.float64), self._weight(fusion), size)
        scores = pool(dense)
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        error = 2 * self._error * float(np.linalg.norm(query))
        return self._hits(query, np.flatnonzero(scores >= pool.lowered(least, error)), k, pool)

    def _hits(self, query: Floats, near: Numbers, k: int, pool: Pool | None = None) -> list[Hit]:
        """Returns the k best of some rows, by the exact products of a query with their vectors."""
        counts = self._starts[near + 1] - self._starts[near]
        places, wide = ranges(self._starts[near], counts), query.astype(np.float64)
        products, norms = np.empty(len(places)), np.empty(len(places))
        for start in range(0, len(places), PAIRS):
            part = slice(start, start + PAIRS)
            # Not a matrix product, which can differ in the last bits for equal vectors.
            vectors = taken(self._rows.vectors, places[part]).astype(np.float64)
            products[part] = np.einsum("ij,j->i", vectors, wide)
            norms[part] = np.linalg.norm(vectors, axis=1)
        sizes = norms * np.linalg.norm(wide)
        products = comparable(products, sizes)
        best = np.lexsort((-products, np.repeat(near, counts)))[np.cumsum(counts) - counts]  # of each row
        scores = products[best] if pool is None else comparable(pool.scores(products[best], near), pool.sizes)
        order = np.lexsort((near, -scores))[:k]
        rows, spans = self._filled[near[order]].tolist(), self._rows.spans[places[best[order]]].tolist()
        found = zip(rows, self.ids(rows), scores[order].tolist(), self.texts(rows), spans, strict=True)
        return [Hit(row, name, score, text[start:end]) for row, name, score, text, (start, end) in found]

    def prepare(self, hybrid: bool | Fusion, progress: Progress | None = None) -> None:
        """Builds the BM25 index that ``search`` needs with this argument ``hybrid``, if it is missing.

        ``progress`` is called with the number of rows read since its last call.
        """
        if (fusion := Fusion.of(hybrid)) is not None:
            self._words(fusion, progress)

    def _words(self, fusion: Fusion, progress: Progress | None = None) -> Bm25:
        """Returns the BM25 index of the texts, which is built if it is missing."""
        terms = self._terms(fusion)
        place = self.folder / f"bm25-{self._rows.generation}-{terms.name}"
        with self._lock:
            if place.name not in self._bm25:
                if place.exists():
                    index = Bm25.open(place, terms)
                else:
                    chunks = self._rows.table.column("text").chunks
                    index = Bm25.build((text for chunk in chunks for text in chunk.to_pylist()), progress, terms)
                    with suppress(OSError):  # the folder cannot be changed
                        if (self.folder / ROWS).exists():  # it was not removed
                            index.save(place)
                self._bm25[place.name] = index
            return self._bm25[place.name]

    def _terms(self, fusion: Fusion) -> Terms:
        """Returns how BM25 splits the texts: what ``fusion`` says, with what is ``auto`` found from the texts."""
        if fusion not in self._terms_of:
            terms = terms_for(self._sample, fusion.language, fusion.stop_words, fusion.bm25_tokenizer)
            if terms.tokenizer == "wordpieces":
                pieces = Pieces.of(self.encoder.tokenizer, self.encoder.given[0])
                terms = replace(terms, language="none", pieces=pieces)
            self._terms_of[fusion] = terms
        return self._terms_of[fusion]

    def _weight(self, fusion: Fusion) -> float:
        if fusion.bm25_weight is not None:
            return fusion.bm25_weight
        if not self._readability.good or self._read[0] < LEAST_READ:
            return UNREADABLE
        return CODE if self._terms(fusion).tokenizer == "code" else READABLE

    @cached_property
    def _sample(self) -> list[str]:
        """The texts of at most ``SAMPLE`` rows, evenly spread."""
        return self.texts(range(0, len(self), max(1, len(self) // SAMPLE))[:SAMPLE])

    @cached_property
    def _readability(self) -> Readability:
        """How the tokenizer of the model cuts the words of the texts."""
        return readability(self.encoder.tokenizer, self._sample)

    @cached_property
    def _read(self) -> tuple[float, int]:
        """Mean share of a text that the model reads at once, and the most tokens of a text; see ``share_read``."""
        return share_read(self.encoder, self._sample[:: max(1, len(self._sample) // LONG_SAMPLE)])

    @property
    def warnings(self) -> list[str]:
        """What the model does not read of the texts, and a similarity that is not used, in sentences."""
        name, (_, similarity) = str(self.encoder.given[0]), compared_by(self.encoder)
        warnings = [self._readability.warning(name), similarity and f"{name}: {similarity}"]
        share, tokens = self._read
        if share < LEAST_READ and self._rows.settings["passages"] is None:
            warnings.append(
                f"the model reads only the first {tokens} tokens of a row, on average {share:.0%} of it; to search "
                f"all of it, build the index with --passages {max(8, (tokens + 2) // 4)}, or max for fewer vectors"
            )
        return list(filter(None, warnings))

    @property
    def notes(self) -> list[str]:
        """What ``search(hybrid=True)`` found out about the texts, in sentences: the language, and warnings."""
        terms = self._terms(Fusion())
        code = ", and look like code" if terms.tokenizer == "code" else ""
        language = "of no known language" if terms.language == "none" else f"in {terms.language.capitalize()}"
        return [f"the texts are {language}{code}; --language and --bm25-tokenizer change it", *self.warnings]


def largest_of(products: Floats, starts: Numbers | None) -> Floats:
    """Returns the largest product of each row, given the position of its first one; None: there is one of each row."""
    return products if starts is None else np.maximum.reduceat(products, starts)

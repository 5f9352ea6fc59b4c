"""An index of a corpus, stored in a folder and searched by meaning.

Products of vectors are computed in float32. A row is a candidate if its exact product may be among the k largest, given
the maximum rounding error. The products of the candidates are computed again in float64, so that the result is as of a
brute-force search in float64, for any number of threads and any division of the vectors into arrays.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .. import io
from .._core import is_blank
from ..data.corpus import Corpus
from ..encoder.base import compared_by, naming_rows
from ..encoder.vocabulary import Readability, readability, share_read
from ..errors import InputError, check_ids, check_integer, check_switch, check_texts, sentence, shortened
from ..identity import first_rows
from ..tfidf.pieces import Pieces
from ..ties import TIE, WIDEST, comparable
from .bm25 import SAMPLE, Bm25, Terms, terms_for
from .fusion import Fusion
from .pool import CODE, LEAST_READ, READABLE, UNREADABLE, Pool
from .storage import (
    AGAIN,
    ENCODED,
    ROWS,
    Floats,
    Hashes,
    Numbers,
    Progress,
    Rows,
    batch_of,
    built_otherwise,
    check_settings,
    edges,
    gathered,
    opened,
    positions,
    ranges,
    scaled,
    settings_of,
    taken,
    write,
)

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

# Texts that are encoded together; most files of a build, each of which stays open; queries that are searched for
# together; rows from which the first limits of a search are found; products that are in memory together (or all of a
# row with more passages); pairs of vectors that are multiplied in float64 together; and texts whose tokens are counted
# to see whether the model reads them.
BLOCK, PARTS, QUERIES, FIRST, PRODUCTS, PAIRS, LONG_SAMPLE = 4096, 64, 256, 1024, 1 << 21, 1024, 50


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


@dataclass(frozen=True)
class Changes:
    """Numbers of rows whose text was already encoded, with a new text, and that are no longer in an index."""

    kept: int
    encoded: int
    dropped: int


class SearchIndex:
    """Vectors, texts and ids of the rows of a corpus, in a folder; made by ``build``, opened by ``open``.

    The rows are memory-mapped. Blank rows are never found. While another process updates the index, an open index
    continues to return the rows that it had when it was opened. Several threads may search. ``encoder`` encodes
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
        self._starts = edges(rows.counts[self._filled])
        longest = 1.0001
        if rows.settings["similarity"] == "dot":
            squares = (float(np.einsum("ij,ij->i", array, array).max(initial=0)) for array in rows.vectors)
            longest = max(longest, 1.001 * max(squares) ** 0.5)
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
            before = Rows(path / ROWS) if not rebuild and (path / ROWS).exists() else None
            known = [] if before is None else [before]
            for part in [] if rebuild else sorted(path.glob(ENCODED)):
                with suppress(InputError):  # damaged: encoded again
                    known.append(Rows(part))
            updates, settings = bool(known), known[0].settings if known else settings_of(encoder, passages)
            if updates:
                check_settings(path, settings, encoder, passages)
                known = [rows for rows in known if rows.settings == settings]
            hashes, dropped = corpus.hashes(), 0
            at = positions(known, hashes)
            if before is not None:
                if before.has_ids != (listed is not None):
                    has, give = ("ids", "give ids") if before.has_ids else ("no ids", "omit ids")
                    raise InputError(f"{path}: the rows of this index have {has}; {give}, or {AGAIN}")
                if not ((at >= 0) & (at < len(before.hashes)))[corpus.filled()].any():
                    raise InputError(
                        f"{path}: contains other texts, and none of this corpus; {AGAIN}, or name another folder (-o)"
                    )
                dropped = (Counter(before.hashes.tolist()) - Counter(hashes.tolist())).total()
            new = np.flatnonzero(at < 0)
            unseen = new[first_rows(hashes[new])]
            if len(unseen) and settings["precision"] != encoder.precision:
                raise built_otherwise(path, f"with --precision {settings['precision']}")
            more(len(hashes) - len(unseen))
            if (rows := before) is None or not np.array_equal(rows.hashes, hashes) or rows.ids() != listed:
                blocks = [unseen[start : start + BLOCK] for start in range(0, len(unseen), BLOCK)]
                step = -(-len(blocks) // PARTS)
                for some in (blocks[start : start + step] for start in range(0, len(blocks), step or 1)):
                    part = path / ENCODED.replace("*", f"{hashes[some[0][0]]:016x}")
                    made = (encoded(encoder, settings, corpus, each, hashes[each], batch_size, more) for each in some)
                    write(part, settings, made, sync=False)  # a damaged one is encoded again
                    known.append(Rows(part, check=False))
                write(path / ROWS, settings, gathered(known, corpus, listed))
                rows = Rows(path / ROWS, check=False)
            older = [path / "encoded"] if rebuild and (path / "encoded").is_dir() else []  # of earlier versions
            for left in [*path.glob(ENCODED), *path.glob("bm25-*"), *older]:
                if rows.generation not in left.name:
                    with suppress(OSError):
                        shutil.rmtree(left) if left.is_dir() else left.unlink()
        index = cls(path, rows, encoder)
        index._temporary = temporary
        index.changes = Changes(len(hashes) - len(new), len(new), dropped) if updates else None
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

            arguments = rows.arguments
            try:
                encoder = open_encoder(device=device, **arguments)
            except (InputError, OSError) as error:
                raise InputError(f"{path}: {sentence(error)}; the index was built with this model") from None
        check_settings(path, rows.settings, encoder)
        return cls(path, rows, encoder)

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

    @property
    def has_ids(self) -> bool:
        """Whether the rows have ids of their own."""
        return self._rows.has_ids

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
        numbers = [number for number, text in enumerate(asked) if not is_blank(text)]
        wanted = scaled(vectors, self._rows.settings)[numbers]
        if fusion is None:
            asks = wanted[wanted.any(axis=1)]
            parts = (asks[start : start + QUERIES] for start in range(0, len(asks), QUERIES))
            ranked = iter([hits for part in parts for hits in self._hits(part, *self._nearest(part, k), k)])
            # With a vector of zeros, as of a text without a known word, all rows have the score 0: the first are found.
            first = np.zeros(k, dtype=np.int64), np.arange(k)
            found = [next(ranked) if query.any() else self._hits(query[None], *first, k)[0] for query in wanted]
        else:
            words = self._words(fusion)
            scores = (words.scores(asked[number]) for number in numbers)
            found = [self._pooled(query, own, k, fusion) for query, own in zip(wanted, scores, strict=True)]
        hits = dict(zip(numbers, found, strict=True))
        return [hits.get(number, []) for number in range(len(asked))]

    def _nearest(self, queries: Floats, k: int) -> tuple[Numbers, Numbers]:
        """Returns pairs of a query ``(Q, D)`` and a row, in order, among which are the k largest products of each."""
        # Each product, also the k-th largest one, has an error of at most ``self._error``, and rows that may have the
        # same score as the k-th one are among the pairs too.
        errors = (2 * self._error + WIDEST * TIE * self._longest) * np.linalg.norm(queries.astype(np.float64), axis=1)

        def below(products: Floats) -> Floats:
            limits: Floats = np.nextafter((products - errors).astype(np.float32), np.float32(-np.inf))
            return limits

        limits = np.full(len(queries), -np.inf, dtype=np.float32)
        found: list[tuple[Numbers, Numbers, Floats]] = []
        # Reused, because a large array costs about as much when it is first written to as the products in it.
        memory = np.empty(0, dtype=np.float32)
        merged = 0
        for first, last, array in self._parts(max(1, PRODUCTS // len(queries))):
            size = len(queries) * len(array)
            memory = memory if size <= len(memory) else np.empty(size, dtype=np.float32)
            products = np.matmul(queries, array.T, out=memory[:size].reshape(len(queries), len(array)))
            if last - first < len(array):
                products = np.maximum.reduceat(products, self._starts[first:last] - self._starts[first], axis=1)
            if not merged and last - first >= k:
                limits = below(np.partition(products[:, : max(k, FIRST)], -k, axis=1)[:, -k])
            numbers, rows = np.divmod(np.flatnonzero(products >= limits[:, None]), max(last - first, 1))
            found.append((numbers, first + rows, products[numbers, rows]))
            if last >= 2 * merged or last == len(self._filled):  # about k more pairs of each query since the last time
                numbers, rows, values = (np.concatenate(each) for each in zip(*found, strict=True))
                if last >= k:
                    order = np.lexsort((-values, numbers))
                    limits = below(values[order[np.searchsorted(numbers[order], np.arange(len(queries))) + k - 1]])
                kept = values >= limits[numbers]
                found, merged = [(numbers[kept], rows[kept], values[kept])], last
        order = np.argsort(found[0][0], kind="stable")
        return found[0][0][order], found[0][1][order]

    def _parts(self, size: int) -> Iterator[tuple[int, int, Floats]]:
        """Yields the first row, the end, and the vectors of successive rows with about ``size`` vectors in an array."""
        start = 0
        for array in self.vectors:
            cuts = np.append(np.arange(start, start + len(array), size), start + len(array))
            for first, last in pairwise(np.unique(np.searchsorted(self._starts, cuts)).tolist()):
                yield first, last, array[self._starts[first] - start : self._starts[last] - start]
            start += len(array)

    def _pooled(self, query: Floats, words: Floats, k: int, fusion: Fusion) -> list[Hit]:
        """Returns the k rows with the best pooled scores, given the BM25 scores of all rows, blank ones too."""
        dense = np.concatenate([array @ query for array in self.vectors])
        if len(self._filled) < len(dense):
            dense = np.maximum.reduceat(dense, self._starts[:-1])
        words = words if len(words) == len(dense) else words[self._filled]
        norm = float(np.linalg.norm(query))
        pool = Pool(dense.astype(np.float64), words.astype(np.float64), self._weight(fusion), self._longest * norm)
        scores = pool(dense)
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        near = np.flatnonzero(scores >= pool.lowered(least, 2 * self._error * norm))
        return self._hits(query[None], np.zeros(len(near), dtype=np.int64), near, k, pool)[0]

    def _hits(
        self, queries: Floats, numbers: Numbers, near: Numbers, k: int, pool: Pool | None = None
    ) -> list[list[Hit]]:
        """Returns the k best rows of each query, by the exact products of pairs of a query and a row, in order."""
        counts, wide = self._starts[near + 1] - self._starts[near], queries.astype(np.float64)
        places, asked = ranges(self._starts[near], counts), np.repeat(numbers, counts)
        products, sizes = np.empty(len(places)), np.linalg.norm(wide, axis=1)[asked]
        for start in range(0, len(places), PAIRS):
            part = slice(start, start + PAIRS)
            vectors = taken(self.vectors, places[part]).astype(np.float64)
            # Not a matrix product, which can differ in the last bits for equal vectors.
            products[part] = np.einsum("ij,ij->i", vectors, wide[asked[part]])
            sizes[part] *= np.linalg.norm(vectors, axis=1)
        found, firsts = [], edges(counts)
        for first, last in pairwise(np.searchsorted(numbers, np.arange(len(queries) + 1)).tolist()):
            part, rows = slice(firsts[first], firsts[last]), near[first:last]
            values, own = comparable(products[part], sizes[part]), counts[first:last]
            best = np.lexsort((-values, np.repeat(rows, own)))[np.cumsum(own) - own]  # of each row
            scores = values[best] if pool is None else comparable(pool.scores(values[best], rows), pool.sizes)
            order = np.argsort(-scores, kind="stable")[:k]
            spans = self._rows.spans[places[part][best[order]]].tolist()
            at = self._filled[rows[order]].tolist()
            hits = zip(at, self.ids(at), scores[order].tolist(), self.texts(at), spans, strict=True)
            found.append([Hit(row, name, score, text[start:end]) for row, name, score, text, (start, end) in hits])
        return found

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
        return self.texts(range(0, len(self), max(1, -(-len(self) // SAMPLE))))

    @cached_property
    def _readability(self) -> Readability:
        """How the tokenizer of the model cuts the words of the texts."""
        return readability(self.encoder.tokenizer, self._sample)

    @cached_property
    def _read(self) -> tuple[float, int]:
        """Mean share of a text that the model reads at once, and the most tokens of a text; see ``share_read``."""
        return share_read(self.encoder, self._sample[:: max(1, -(-len(self._sample) // LONG_SAMPLE))])

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


def encoded(
    encoder: Encoder,
    settings: dict[str, Any],
    corpus: Corpus,
    rows: Numbers,
    hashes: Hashes,
    batch_size: int,
    progress: Progress,
) -> pa.RecordBatch:
    """Encodes rows of a corpus, whole or in passages; returns their hashes and passages."""
    texts = corpus.take(rows)
    cut = [[] if is_blank(text) else [(0, len(text))] for text in texts]
    if settings["passages"] is not None:
        from ..encoder.passages import Cutter

        cut = Cutter(encoder, settings["passages"])(texts)
    passages = [text[start:end] for text, spans in zip(texts, cut, strict=True) for start, end in spans]
    counts, by_row = np.array([*map(len, cut)]), len(passages) == len(texts)
    with naming_rows(np.repeat(rows, counts)):
        vectors = encoder.encode_document(passages, batch_size=batch_size, progress=progress if by_row else None)
    if not by_row:
        progress(len(texts))
    spans = np.array([span for spans in cut for span in spans], dtype=np.uint32).reshape(-1, 2)
    return batch_of({"hash": pa.array(hashes)}, counts, spans, scaled(vectors, settings))


def checked_ids(ids: Iterable[str], rows: int) -> list[str]:
    """Returns ids, in which line breaks become spaces; raises ``InputError`` unless each row has another one."""
    listed = [name.replace("\n", " ").encode("utf8", "replace").decode() for name in check_ids(ids)]
    if len(listed) != rows:
        raise InputError(f"ids: {len(listed):,} were given for {rows:,} rows; each row needs one")
    if blank := next((number for number, name in enumerate(listed, 1) if not name.strip()), 0):
        raise InputError(f"ids: row {blank:,} has no id; each row needs one")
    ((name, times),) = Counter(listed).most_common(1)
    if times > 1:
        raise InputError(f"ids: {shortened(repr(name))} is the id of several rows; make the ids unique")
    return listed

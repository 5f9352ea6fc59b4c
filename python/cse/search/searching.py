"""Finds the rows of an opened index for query vectors and query texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..models.running.inference import Encoder
from ..models.tokens import token_lists
from ..tfidf.pieces import Pieces
from .bm25 import Bm25
from .hybrid import Fusion, Ranker, Smoothing, fuse
from .joined_parts import PartsStore
from .store import Store, open_arrays, remove_derived, save_arrays
from .tokens import check_tokens, combined, encode_tokens, inverse_document_frequency, max_sim
from .vectors import Doubles, TokenVectors, Unit, Vectors, nearest, unit

Floats = npt.NDArray[np.float32]
Progress = Callable[[int], None]
# Row, its score, and the position of its best vector in the index. Position None: the hit shows the row's whole text.
Found = tuple[int, float, int | None]
# Minimum number of rows taken from each of the two rankings that --fusion rrf fuses.
FUSED = 100
# Maximum number of rows of an index whose vectors are smoothed by default when scores are fused. The time is quadratic
# in the number; at this one it is a few minutes.
SMOOTHED = 100_000
# Number of texts read together.
BLOCK = 4096


@dataclass(frozen=True)
class Hit:
    """A row that was found."""

    row: int
    """Number of the row in the corpus, from 0."""
    id: str
    """Id of the row; its row number if the index has no ids."""
    score: float
    """Cosine (or dot product, if the model uses it) with the query; with ``hybrid``, the fused score."""
    text: str
    """Text of the row; if rows are cut into passages, the best passage (the whole text of a row found only by BM25)."""


class Searcher:
    """One state of an index: its vectors, and what is derived from them and its texts.

    The BM25 index and the neighbours of smoothing are built when they are first needed, and stored in the folder.

    Args:
        store: The rows.
        pieces: Returns the pieces of the tokenizer of the index's model.
    """

    def __init__(self, store: Store | PartsStore, pieces: Callable[[], Pieces]) -> None:
        self.store, self._pieces = store, pieces
        self.cosine = store.manifest["similarity"] == "cosine"
        self.vectors, self.places = store.vectors(), store.places()
        self._bm25: dict[tuple[str, str], Bm25] = {}
        self._smoothing: dict[str, Smoothing] = {}
        self._rankers: dict[str | None, Ranker] = {}
        self._idf: Doubles | None = None

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Row number of each vector, ``(vectors,)`` int64, ascending."""
        found: npt.NDArray[np.int64] = self.places["row"]
        return found

    @cached_property
    def unit_vectors(self) -> Vectors:
        """The vectors scaled to unit length; int8 vectors and those for dot products have other norms."""
        return self.vectors if self.cosine and not self.store.manifest["int8"] else Unit(self.vectors)

    def bm25(self, stop_words: str, progress: Progress | None = None, tokenizer: str = "unicode") -> Bm25:
        """Returns the BM25 index of the texts; see ``SearchIndex.bm25``."""
        key = stop_words, tokenizer
        if key not in self._bm25:
            pieces = self._pieces() if tokenizer == "wordpieces" else None
            folder = self._folder(f"bm25-{{}}-{stop_words}{'' if pieces is None else '-wordpieces'}")
            if not folder.exists():
                blocks = range(0, self.store.rows, BLOCK)
                texts = (text for a in blocks for text in self.store.texts(range(a, min(a + BLOCK, self.store.rows))))
                Bm25.build(texts, progress, stop_words, pieces).save(folder)
                remove_derived(self.store.folder, self.store.generation)
            self._bm25[key] = Bm25.open(folder, self.store.verify, pieces)
        return self._bm25[key]

    def smoothing(self, progress: Progress | None = None, tokenizer: str = "unicode") -> Smoothing:
        """Returns the neighbours of the rows; see ``SearchIndex.smoothing``."""
        if tokenizer not in self._smoothing:
            check_smoothing(self.store.manifest)
            folder = self._folder("smooth-{}" if tokenizer == "unicode" else f"smooth-{{}}-{tokenizer}")
            if not folder.exists():
                bm25, rows = self.bm25("english", tokenizer=tokenizer), self.rows

                def lexical(places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
                    scores = bm25.all_scores(self.store.texts(rows[places].tolist()))
                    return scores if len(rows) == self.store.rows else scores[:, rows]

                Smoothing.build(self.unit_vectors, lexical, progress).save(folder)
                remove_derived(self.store.folder, self.store.generation)
            self._smoothing[tokenizer] = Smoothing.open(folder, self.store.verify)
        return self._smoothing[tokenizer]

    @cached_property
    def basis(self) -> Floats | None:
        """The projection of the stored vectors of tokens; None if they are not stored."""
        if not self.store.manifest.get("tokens"):
            return None
        return open_arrays(self.store.folder / self.store.manifest["basis"], "axes", verify=self.store.verify)[0]

    def token_idf(self, encoder: Encoder, progress: Progress | None = None) -> Doubles:
        """Returns the inverse document frequency of each token, ``(vocabulary,)``; see ``SearchIndex.token_idf``.

        The counts are made and stored in the folder if they are missing or if the rows have changed since.
        """
        if self._idf is None:
            folder = self._folder("tokens-{}")
            if not folder.exists():
                save_arrays(folder, rows=self._token_counts(encoder, progress))
                remove_derived(self.store.folder, self.store.generation)
            (found,) = open_arrays(folder, "rows", verify=self.store.verify)
            self._idf = inverse_document_frequency(found, self.store.rows)
        return self._idf

    def _token_counts(self, encoder: Encoder, progress: Progress | None) -> npt.NDArray[np.int64]:
        model = check_tokens(encoder)
        found = np.zeros(len(model.tokenizer), dtype=np.int64)
        for start in range(0, self.store.rows, BLOCK):
            texts = self.store.texts(range(start, min(start + BLOCK, self.store.rows)))
            for ids in token_lists(model.tokenizer, texts, model.source.max_length)["input_ids"]:
                found[np.unique(ids)] += 1
            if progress:
                progress(len(texts))
        return found

    def reranked(self, encoder: Encoder, query: TokenVectors, found: list[Found], batch_size: int) -> list[Found]:
        """Returns the rows that were found, ranked again by the vectors of the tokens of the query."""
        if not found:
            return []
        idf = self.token_idf(encoder)
        if isinstance(self.store, Store) and self.basis is not None:
            documents = self.store.tokens([row for row, _, _ in found])
        else:
            texts, prompt = [hit.text for hit in self.hits(found)], encoder.document_prompt
            documents = encode_tokens(encoder, texts, prompt=prompt, batch_size=batch_size)
        values = combined(np.array([score for _, score, _ in found]), max_sim(query, documents, idf))
        order = np.argsort(-values, kind="stable")
        return [(found[at][0], float(values[at]), found[at][2]) for at in order.tolist()]

    def smooths(self, fusion: Fusion | None = None) -> bool:
        """Returns whether the smoothed vectors are searched by default."""
        given = self.store.manifest.get("smooth")
        if given is not None:
            return bool(given)
        few = fusion is not None and fusion.kind == "scores" and self.store.rows <= SMOOTHED
        return few and why_not_smoothed(self.store.manifest) is None

    def _folder(self, name: str) -> Path:
        return self.store.folder / name.format(self.store.generation)

    def queries(self, vectors: npt.NDArray[np.floating]) -> Floats:
        """Returns query vectors in float32, of unit length if the model uses cosines."""
        return unit(vectors) if self.cosine else vectors.astype(np.float32)

    def search(
        self,
        texts: Sequence[str],
        vectors: npt.NDArray[np.floating],
        k: int,
        fusion: Fusion | None,
        smooth: bool | None,
    ) -> list[list[Found]]:
        """Finds the k best rows for each query text; see ``SearchIndex.search``."""
        smooth = self.smooths(fusion) if smooth is None else smooth
        scored = fusion is not None and fusion.kind == "scores"
        smoothed = (fusion.bm25_tokenizer if fusion else "unicode") if smooth else None
        nearest_rows = [] if scored else self.nearest_rows(vectors, max(k, FUSED) if fusion else k, smoothed)
        queries = self.queries(vectors) if scored else vectors
        found: list[list[Found]] = []
        for number, text in enumerate(texts):
            if not text.strip():
                found.append([])
            elif fusion is None:
                found.append(nearest_rows[number])
            elif scored:
                words = self.bm25(fusion.stop_words, tokenizer=fusion.bm25_tokenizer).scores(text)
                found.append(self._ranked(smoothed, queries[number], words, fusion, k))
            else:
                found.append(self._fused(text, nearest_rows[number], fusion, k))
        return found

    def nearest_rows(self, vectors: npt.NDArray[np.floating], k: int, smoothed: str | None) -> list[list[Found]]:
        """Returns the k best rows for each query vector.

        ``smoothed`` is the tokenizer of BM25 by which the neighbours were found; None: the vectors are not smoothed.
        """
        queries = self.queries(vectors)
        if smoothed:
            return [self._ranked(smoothed, query, None, None, k) for query in queries]
        best = self._best_places(queries, k)
        return [[(int(self.rows[place]), score, place) for place, score in hits] for hits in best]

    def _ranked(
        self, smoothed: str | None, query: Floats, words: Floats | None, fusion: Fusion | None, k: int
    ) -> list[Found]:
        if smoothed not in self._rankers:
            vectors, smoothing = self.vectors, None
            if smoothed:
                vectors, smoothing = self.unit_vectors, self.smoothing(tokenizer=smoothed)
            self._rankers[smoothed] = Ranker(vectors, self.rows, cosine=self.cosine, smoothing=smoothing)
        return [*self._rankers[smoothed].rank(query, words, fusion, k)] if len(self.rows) else []

    def _best_places(self, queries: Floats, k: int) -> list[list[tuple[int, float]]]:
        """Returns the k best rows for each query, each as the position and the score of its best vector."""
        total = len(self.vectors)
        found: list[list[tuple[int, float]]] = [[] for _ in queries]
        left, depth = np.arange(len(queries)), k
        while len(left):
            scores, places = nearest(self.vectors, queries[left], depth)
            short = []
            for query, line, numbers in zip(left.tolist(), scores.tolist(), places.tolist(), strict=True):
                best: dict[int, tuple[int, float]] = {}
                for place, score in zip(numbers, line, strict=True):
                    best.setdefault(int(self.rows[place]), (place, score))
                found[query] = list(best.values())[:k]
                if len(best) < k and depth < total:  # several passages of one row were found
                    short.append(query)
            left, depth = np.array(short, dtype=np.int64), 2 * depth
        return found

    def hits(self, found: Sequence[Found]) -> list[Hit]:
        """Returns the ids and texts of the rows that were found."""
        rows = [row for row, _, _ in found]
        hits = []
        for (row, score, place), name, text in zip(found, self.store.ids(rows), self.store.texts(rows), strict=True):
            if place is not None:
                _, start, end = self.places[place].item()
                text = text[start:end]
            hits.append(Hit(row, name, score, text))
        return hits

    def _fused(self, query: str, hits: Sequence[Found], fusion: Fusion, k: int) -> list[Found]:
        by_row = {row: place for row, _, place in hits}
        words = self.bm25(fusion.stop_words, tokenizer=fusion.bm25_tokenizer)
        rankings = [list(by_row), words.search(query, max(k, FUSED)).tolist()]
        return [(row, score, by_row.get(row)) for row, score in fuse(rankings, k)]


def check_smoothing(settings: Mapping[str, Any]) -> None:
    """Raises ``InputError`` if the vectors of an index with these settings cannot be smoothed."""
    reason = why_not_smoothed(settings)
    if reason:
        raise InputError(f"--smooth: {reason}")


def why_not_smoothed(settings: Mapping[str, Any]) -> str | None:
    """Returns why the vectors of an index with these settings cannot be smoothed; None if they can."""
    if settings.get("parts"):
        return "parts written by cse encode have no neighbours; build an index with cse search"
    if settings["passages"] is not None:
        return "needs one vector per row; leave it out, or leave out --passages"
    if settings["similarity"] != "cosine":
        return "the model compares by dot products, and only cosines can be smoothed; leave it out"
    return None

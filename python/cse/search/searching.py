"""Finds the rows of one state of an index for query vectors and query texts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..models.readability import Readability, readability, share_read
from ..tfidf.pieces import Pieces
from .bm25 import Bm25
from .fusion import Fusion
from .hybrid import CODE, READABLE, SUM, UNREADABLE, Ranker, Smoothing, fuse
from .joined_parts import PartsStore
from .store import Store, is_read_only, open_arrays, save_arrays
from .terms import SAMPLE, Terms, terms_for
from .tokens import check_tokens, combined, encode_tokens, inverse_document_frequency, max_sim
from .vectors import Doubles, Floats, TokenVectors, Unit, Vectors, nearest, unit

if TYPE_CHECKING:
    from ..models.cross_encoder import Reranker
    from ..models.running.inference import Encoder

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
# Number of texts whose tokens are counted to see whether the model reads them, and the share that it should read.
LONG_SAMPLE, LEAST_READ = 50, 0.5


@dataclass(frozen=True)
class Hit:
    """A row that was found."""

    row: int
    """Number of the row in the corpus, from 0."""
    id: str
    """Id of the row; its row number if the index has no ids."""
    score: float
    """Cosine (or dot product, if the model uses it) with the query; with ``hybrid``, the combined score, which is the
    logarithm of a probability by default; with ``rerank``, the score by which rows are ranked again."""
    text: str
    """Text of the row; if rows are cut into passages, the best passage (the whole text of a row found only by BM25)."""


class Searcher:
    """One state of an index, which does not change: its rows, and what is derived from them when it is first needed.

    The BM25 indexes, the neighbours of smoothing and the counts of tokens are stored in the folder, unless it cannot be
    changed or an update has replaced this state. Several threads may search at the same time.
    """

    def __init__(self, store: Store | PartsStore, encoder: Encoder) -> None:
        self.store, self.encoder = store, encoder
        self.vectors, self.row_of = store.vectors, store.row_of
        self.cosine = store.manifest["similarity"] == "cosine"
        self._derived: dict[str, Any] = {}
        self._lock = threading.RLock()

    @cached_property
    def unit_vectors(self) -> Vectors:
        """The vectors scaled to unit length; int8 vectors and those for dot products have other norms."""
        return self.vectors if self.cosine and not self.store.manifest["int8"] else Unit(self.vectors)

    def _get(self, name: str, read: Callable[[Any], Any], make: Callable[[], tuple[Any, Callable[[Any], None]]]) -> Any:
        """Returns data that follows from the rows, and is kept in a folder.

        Args:
            name: Name of the folder, in which ``{}`` stands for the hash of the rows.
            read: Reads the data from a folder.
            make: Returns the data, and a function that writes them to a folder.
        """
        with self._lock:
            if name not in self._derived:
                folder = self.store.folder / name.format(self.store.generation)
                if folder.exists():
                    try:
                        self._derived[name] = read(folder)
                    except InputError:
                        if self.store.is_current():
                            raise
                if name not in self._derived:
                    self._derived[name], save = make()
                    if self.store.is_current():
                        try:
                            save(folder)
                        except FileNotFoundError:  # an update has removed the folder in the meantime
                            pass
                        except OSError as error:
                            if not is_read_only(error):
                                raise
            return self._derived[name]

    def _texts(self, progress: Progress | None = None) -> Any:
        for start in range(0, self.store.rows, BLOCK):
            texts = self.store.texts(range(start, min(start + BLOCK, self.store.rows)))
            yield texts
            if progress:
                progress(len(texts))

    @cached_property
    def sample(self) -> list[str]:
        """The texts of at most ``SAMPLE`` rows, evenly spread, by which the language is guessed."""
        step = max(1, self.store.rows // SAMPLE)
        return list(self.store.texts(range(0, self.store.rows, step)[:SAMPLE]))

    @cached_property
    def readability(self) -> Readability:
        """How the tokenizer of the model cuts the words of the texts."""
        return readability(self.encoder.tokenizer, self.sample)

    @cached_property
    def read(self) -> tuple[float, int]:
        """Mean share of a text that the model reads at once, and the most tokens of a text; see ``share_read``."""
        return share_read(self.encoder, self.sample[:: max(1, len(self.sample) // LONG_SAMPLE)])

    @property
    def warnings(self) -> list[str]:
        """What the model does not read of the texts, in sentences."""
        warnings = [self.readability.warning(str(self.encoder.given[0]))]
        share, tokens = self.read
        if share < LEAST_READ and self.store.manifest["passages"] is None:
            warnings.append(
                f"the model reads only the first {tokens} tokens of a row, on average {share:.0%} of it; to search "
                f"all of it, build the index with --passages {max(8, (tokens + 2) // 4)}, or max for fewer vectors"
            )
        return list(filter(None, warnings))

    def terms(self, fusion: Fusion) -> Terms:
        """Returns how BM25 splits the texts: what ``fusion`` says, with what is ``auto`` found from the texts."""
        name = f"terms {fusion.language} {fusion.stop_words} {fusion.bm25_tokenizer}"
        with self._lock:
            if name not in self._derived:
                terms = terms_for(self.sample, fusion.language, fusion.stop_words, fusion.bm25_tokenizer)
                if terms.tokenizer == "wordpieces":
                    terms = self.terms_of("none", terms.stop_words, "wordpieces")
                self._derived[name] = terms
            chosen: Terms = self._derived[name]
        return chosen

    def terms_of(self, language: str, stop_words: str, tokenizer: str) -> Terms:
        """Returns terms, with the pieces of the model's tokenizer if they are needed."""
        pieces = Pieces.of(self.encoder.tokenizer, self.encoder.given[0]) if tokenizer == "wordpieces" else None
        return Terms(language, stop_words, tokenizer, pieces)

    def weighted(self, fusion: Fusion) -> Fusion:
        """Returns how rankings are combined, with the weight of BM25 filled in."""
        if fusion.bm25_weight is not None:
            return fusion
        if fusion.kind == "scores":
            weight = SUM
        elif not self.readability.good or self.read[0] < LEAST_READ:
            weight = UNREADABLE
        else:
            weight = CODE if self.terms(fusion).tokenizer == "code" else READABLE
        return replace(fusion, bm25_weight=weight)

    def bm25(self, terms: Terms, progress: Progress | None = None) -> Bm25:
        """Returns the BM25 index of the texts; see ``SearchIndex.bm25``."""

        def make() -> tuple[Bm25, Any]:
            index = Bm25.build((text for texts in self._texts() for text in texts), progress, terms)
            return index, index.save

        name = f"bm25-{{}}-{terms.name}"
        index: Bm25 = self._get(name, lambda folder: Bm25.open(folder, terms, self.store.verify), make)
        return index

    def smoothing(self, terms: Terms, progress: Progress | None = None) -> Smoothing:
        """Returns the neighbours of the rows; see ``SearchIndex.smoothing``."""
        check_smoothing(self.store.manifest)
        vectors = self.unit_vectors

        def make() -> tuple[Smoothing, Any]:
            bm25, rows = self.bm25(terms), self.row_of

            def lexical(places: npt.NDArray[np.int64]) -> Doubles:
                scores = bm25.all_scores(self.store.texts(rows[places].tolist()))
                return scores if len(rows) == self.store.rows else scores[:, rows]

            built = Smoothing.build(vectors, lexical, progress)
            return built, lambda folder: save_arrays(folder, near=built.near, norms=built.norms)

        result: Smoothing = self._get(
            f"smooth-{{}}-{terms.name}",
            lambda folder: Smoothing(vectors, *open_arrays(folder, "near", "norms", verify=self.store.verify)),
            make,
        )
        return result

    def token_idf(self, progress: Progress | None = None) -> Doubles:
        """Returns the inverse document frequency of each token; see ``SearchIndex.token_idf``."""

        def make() -> tuple[npt.NDArray[np.int64], Any]:
            from ..models.tokens import token_lists

            model = check_tokens(self.encoder)
            counts = np.zeros(len(model.tokenizer), dtype=np.int64)
            for texts in self._texts(progress):
                for ids in token_lists(model.tokenizer, texts, model.max_seq_length)["input_ids"]:
                    counts[np.unique(ids)] += 1
            return counts, lambda folder: save_arrays(folder, rows=counts)

        counts = self._get("tokens-{}", lambda folder: open_arrays(folder, "rows", verify=self.store.verify)[0], make)
        return inverse_document_frequency(counts, self.store.rows)

    def search(
        self,
        texts: Sequence[str],
        vectors: npt.NDArray[np.floating],
        k: int,
        fusion: Fusion | None = None,
        smooth: bool | None = None,
        rerank: int = 0,
        batch_size: int = 64,
        reranker: Reranker | None = None,
    ) -> list[list[Hit]]:
        """Finds the k best rows for each query, given its text and its vector; see ``SearchIndex.search``."""
        smooth = self.smooths(fusion) if smooth is None else smooth
        fusion = None if fusion is None else self.weighted(fusion)
        terms = self.terms(fusion or Fusion()) if fusion or smooth else Terms()
        smoothed = terms if smooth else None
        queries = unit(vectors) if self.cosine else vectors.astype(np.float32)
        wanted = max(k, rerank)
        by_vectors: list[list[Found]] = [[] for _ in texts]
        if fusion is None or fusion.kind == "rrf":
            depth = wanted if fusion is None else max(wanted, FUSED)
            if smoothed:
                by_vectors = [self._ranked(smoothed, query, None, None, depth) for query in queries]
            else:
                by_vectors = self._nearest(queries, depth)
        tokens = None
        if rerank and reranker is None and texts:
            basis = None
            if self.store.manifest.get("tokens"):
                folder = self.store.folder / self.store.manifest["basis"]
                (basis,) = open_arrays(folder, "axes", verify=self.store.verify)
            prompt = self.encoder.query_prompt
            tokens = encode_tokens(self.encoder, texts, basis, prompt=prompt, batch_size=batch_size)
        answers = []
        for number, text in enumerate(texts):
            best = by_vectors[number]
            if not text.strip():
                best = []
            elif fusion is not None:
                words = self.bm25(terms)
                if fusion.kind != "rrf":
                    best = self._ranked(smoothed, queries[number], words.scores(text), fusion, wanted)
                else:
                    by_row = {row: place for row, _, place in best}
                    rankings = [list(by_row), words.search(text, max(wanted, FUSED)).tolist()]
                    best = [(row, score, by_row.get(row)) for row, score in fuse(rankings, wanted)]
            if rerank and best:
                if reranker is not None:
                    values = reranker.score(text, [hit.text for hit in self._hits(best)], batch_size)
                else:
                    assert tokens is not None
                    values = self._by_tokens(tokens[number], best, batch_size)
                order = np.argsort(-values, kind="stable")[:k]
                best = [(best[at][0], float(values[at]), best[at][2]) for at in order.tolist()]
            answers.append(self._hits(best))
        return answers

    def smooths(self, fusion: Fusion | None = None) -> bool:
        """Returns whether the smoothed vectors are searched by default."""
        as_built = self.store.manifest.get("smooth")
        if as_built is not None:
            return bool(as_built)
        if fusion is None or fusion.kind == "rrf" or self.store.rows > SMOOTHED:
            return False
        return why_not_smoothed(self.store.manifest) is None and self.terms(fusion).tokenizer != "code"

    def _ranked(
        self, smoothed: Terms | None, query: Floats, words: Floats | None, fusion: Fusion | None, k: int
    ) -> list[Found]:
        """Ranks by combined scores; ``smoothed`` are the terms by which the neighbours were found, or None."""
        if not len(self.row_of):
            return []
        smoothing = self.smoothing(smoothed) if smoothed else None
        name = f"ranker {smoothed.name if smoothed else None}"
        with self._lock:
            if name not in self._derived:
                vectors = self.unit_vectors if smoothed else self.vectors
                self._derived[name] = Ranker(vectors, self.row_of, cosine=self.cosine, smoothing=smoothing)
        return [*self._derived[name].rank(query, words, fusion, k)]

    def _nearest(self, queries: Floats, k: int) -> list[list[Found]]:
        """Returns the k rows with the best vectors for each query."""
        results: list[list[Found]] = [[] for _ in queries]
        left, depth = np.arange(len(queries)), k
        while len(left):
            scores, places = nearest(self.vectors, queries[left], depth)
            short = []
            for query, line, numbers in zip(left.tolist(), scores.tolist(), places.tolist(), strict=True):
                best: dict[int, Found] = {}
                for place, score in zip(numbers, line, strict=True):
                    row = int(self.row_of[place])
                    best.setdefault(row, (row, score, place))
                results[query] = list(best.values())[:k]
                if len(best) < k and depth < len(self.vectors):  # several passages of one row were found
                    short.append(query)
            left, depth = np.array(short, dtype=np.int64), 2 * depth
        return results

    def _by_tokens(self, query: TokenVectors, best: list[Found], batch_size: int) -> Doubles:
        """Returns scores of the rows that were found, by the vectors of the tokens of the query."""
        if isinstance(self.store, Store) and self.store.manifest.get("tokens"):
            documents = self.store.tokens([row for row, _, _ in best])
        else:
            texts, prompt = [hit.text for hit in self._hits(best)], self.encoder.document_prompt
            documents = encode_tokens(self.encoder, texts, prompt=prompt, batch_size=batch_size)
        similarities = max_sim(query, documents, self.token_idf())
        return combined(np.array([score for _, score, _ in best]), similarities)

    def _hits(self, best: Sequence[Found]) -> list[Hit]:
        """Returns the ids and texts of the rows that were found."""
        rows, spans = [row for row, _, _ in best], self.store.spans
        hits = []
        for (row, score, place), name, text in zip(best, self.store.ids(rows), self.store.texts(rows), strict=True):
            if place is not None and spans is not None:
                start, end = spans[place].tolist()
                text = text[start:end]
            hits.append(Hit(row, name, score, text))
        return hits


def check_smoothing(settings: Mapping[str, Any]) -> None:
    """Raises ``InputError`` if the vectors of an index with these settings cannot be smoothed."""
    reason = why_not_smoothed(settings)
    if reason:
        raise InputError(f"--smooth {reason}")


def why_not_smoothed(settings: Mapping[str, Any]) -> str | None:
    """Returns why the vectors of an index with these settings cannot be smoothed; None if they can."""
    if settings.get("parts"):
        return "needs neighbours, which parts written by cse encode do not have; build an index with cse search"
    if settings["passages"] is not None:
        return "needs one vector per row; leave it out, or leave out --passages"
    if settings["similarity"] != "cosine":
        return "needs a model that compares by cosines, and this one compares by dot products; leave it out"
    return None

"""What the suite ``retrieval`` evaluates: a model with the options of ``cse search``, BM25 alone, or a TREC run file.

Documents are ranked by ``SearchIndex``, so that the scores are those of ``cse search`` with the same options. Rows of
the index are in descending order of id, and so are, therefore, documents of equal score, as in trec_eval.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, check_integer, check_switch, shown
from ..options import options_of
from . import EVALUATIONS
from .base import Encodes
from .trec import read_run

if TYPE_CHECKING:
    from ..models.cross_encoder import Reranker
    from ..models.running.inference import Encoder
    from ..search.fusion import Fusion
    from ..search.index import SearchIndex

BM25 = "bm25"
"""Name of the system that ranks by BM25 alone."""
RUN = "run:"
"""Beginning of the name of a system whose rankings are in a TREC run file."""

Progress = Callable[[int], None]
Texts = Mapping[str, str]


@dataclass(frozen=True)
class System:
    """A model and the options with which ``SearchIndex.search`` ranks documents in the suite ``retrieval``.

    Other suites ignore the options.
    """

    model: str | PathLike[str] | Encodes
    """A model, as for ``cse.evaluate``; ``"bm25"``: BM25 alone, without a model (a folder of this name: ``./bm25``);
    ``"run:FILE"``: the rankings of a TREC run file."""
    hybrid: bool | Fusion = False
    """See ``SearchIndex.search``."""
    smooth: bool | None = None
    """See ``SearchIndex.search``."""
    rerank: int = 0
    """See ``SearchIndex.search``; at least the 100 documents of recall@100 are ranked again."""
    reranker: str | Reranker | None = None
    """With ``rerank``: a cross-encoder, or its folder or name; see ``SearchIndex.search``."""
    tokens: int = 0
    """With ``rerank`` by tokens: see ``SearchIndex.build``."""
    one_vector: bool = False
    """Rank by the vectors of ``cse.search.one_vector.encode_one_vector``, without the other options."""

    @property
    def fusion(self) -> Fusion | None:
        """How the scores of vectors and BM25 are combined; None without ``hybrid``."""
        from ..search.fusion import Fusion

        return Fusion.of(self.hybrid)

    @property
    def fixed(self) -> str:
        """Why options have no effect on a system without a model; "" for a model."""
        name = self.model if isinstance(self.model, str) else ""
        why = "which ranks by words alone" if name == BM25 else "which holds rankings" if name.startswith(RUN) else ""
        return why and f"{name}, {why}"

    def ranker(self) -> ByWords | FromRun | None:
        """Returns what ranks documents without a model; None if the system has a model."""
        if not self.fixed:
            return None
        return ByWords() if self.model == BM25 else FromRun(str(self.model).removeprefix(RUN))

    @property
    def flags(self) -> list[str]:
        """The options as flags of ``cse eval``; empty for a system that ranks by embeddings alone."""
        flags = []
        if fusion := self.fusion:
            options = [option for option in options_of(type(fusion)) if option.opt.help]
            used = [(option, getattr(fusion, option.name)) for option in options]
            changed = [f"{option.flag} {value}" for option, value in used if value != option.default]
            flags += ["--hybrid", *changed]
        if self.one_vector:
            flags.append("--one-vector")
        if self.smooth is not None:
            flags.append("--smooth" if self.smooth else "--no-smooth")
        if self.rerank:
            name = getattr(self.reranker, "name", self.reranker) or "tokens"
            flags += [f"--rerank {name}", *([f"--tokens {self.tokens}"] if self.tokens else [])]
        return flags

    @property
    def model_key(self) -> Any:
        """A key that is the same for systems with the same model."""
        return fspath(self.model) if isinstance(self.model, (str, PathLike)) else id(self.model)

    @property
    def key(self) -> Any:
        """A key that is the same for equal systems."""
        return self.model_key, self.fusion, self.smooth, self.rerank, self.reranker, self.tokens, self.one_vector


def as_system(model: Any) -> System:
    """Returns a system; a model becomes one that ranks by embeddings alone."""
    return model if isinstance(model, System) else System(model)


def check_systems(
    systems: Sequence[System],
    suites: str | Sequence[str],
    options: Mapping[str, Mapping[str, Any]] | None,
    dims: Sequence[int] | None,
) -> None:
    """Raises ``InputError`` for systems that the suites cannot evaluate, or that need a package that is missing."""
    names = [suites] if isinstance(suites, str) else suites
    if options is not None:
        tables = [options, *(options.values() if isinstance(options, Mapping) else ())]
        if not all(isinstance(table, Mapping) for table in tables):
            raise InputError(f"options: must hold one table of options per suite, got {shown(options)}")
    ranks = {name: EVALUATIONS.get(name, "--suite").ranks for name in names}
    other = next((name for name, ranking in ranks.items() if not ranking), None)
    by_passages = any("passages" in (options or {}).get(name, {}) for name, ranking in ranks.items() if ranking)
    if by_passages and all(system.fixed for system in systems):
        raise InputError(f"--passages has no effect on {systems[0].fixed}; leave it out")
    for system in systems:
        for option, number in {"rerank": system.rerank, "tokens": system.tokens}.items():
            check_integer(number, option, 0)
        check_switch(system.smooth, "smooth")
        if system.fixed:
            name = system.model
            if other is not None:
                raise InputError(
                    f"{name}: has no embeddings for --suite {other}; use only --suite retrieval, or a model"
                )
            if system.flags:
                raise InputError(f"{system.flags[0]} has no effect on {system.fixed}; leave it out")
            if dims:
                raise InputError(f"--dims: {name} has no dimensions; leave out one of them")
        elif system.flags and not any(ranks.values()):
            flag = system.flags[0]
            raise InputError(f"{flag} applies only to --suite retrieval; add it, or leave out {flag}")
        if system.one_vector and (by_passages or dims):
            raise InputError("--one-vector cannot be combined with --passages or --dims; leave one of them out")
        if system.smooth and by_passages:
            raise InputError("--smooth needs one vector per document; leave it out, or leave out --passages")
        if system.model == BM25 or system.fusion or system.one_vector:
            from ..search.bm25 import library

            library()


class ByWords:
    """Ranks documents by BM25 alone, with the terms of ``SearchIndex.search(hybrid=True)``."""

    name = BM25

    def encode(self, texts: Sequence[str], **settings: Any) -> Any:
        """Raises ``InputError``: there are no embeddings."""
        raise InputError(f"{self.name}: has no embeddings; use a model")

    def rank_documents(
        self, queries: Texts, documents: Texts, progress: Progress | None = None, depth: int = 100, **settings: Any
    ) -> list[dict[str, float]]:
        """Returns the documents with the highest positive scores; further settings have no effect."""
        from ..search.bm25 import Bm25
        from ..search.terms import terms_for

        ids = sorted(documents, reverse=True)
        index = Bm25.build((documents[key] for key in ids), progress, terms_for([documents[key] for key in ids]))
        if progress is not None:
            progress(len(queries))
        scored = [(index.scores(query), index.search(query, depth).tolist()) for query in queries.values()]
        return [{ids[row]: float(scores[row]) for row in rows} for scores, rows in scored]


class FromRun(ByWords):
    """The rankings of a TREC run file; the texts of queries and documents are not needed."""

    def __init__(self, path: str) -> None:
        self.name, self._rankings = RUN + path, read_run(path)

    def rank_documents(
        self, queries: Texts, documents: Texts, progress: Progress | None = None, depth: int = 100, **settings: Any
    ) -> list[dict[str, float]]:
        """Returns the first ``depth`` documents of each query; {} for a query that is not in the file.

        Raises ``InputError`` if none is.
        """
        if not any(query in self._rankings for query in queries):
            raise InputError(f"{self.name}: holds none of the judged queries; do the ids match?")
        if progress is not None:
            progress(len(queries) + len(documents))
        return [dict(islice(self._rankings.get(query, {}).items(), depth)) for query in queries]


class Indexed:
    """Search indexes of a model, one per collection, and cross-encoders by name.

    Args:
        tokens: Dimensions of the vectors of tokens to store, unless a system that ranks by them says otherwise.
    """

    def __init__(self, tokens: int = 0) -> None:
        self._tokens = tokens
        self._indexes: dict[Any, tuple[Texts, SearchIndex]] = {}  # with the documents, so that their id stays theirs
        self._rerankers: dict[str, Reranker] = {}

    def get(
        self,
        encoder: Encoder,
        system: System,
        documents: Texts,
        passages: int | None,
        progress: Progress | None,
    ) -> tuple[list[str], SearchIndex]:
        """Returns the ids of the documents in the order of the rows, and the index, which is built in the first call.

        The index is in a temporary folder, and is deleted together with this object.
        """
        from ..search.index import SearchIndex

        ids = sorted(documents, reverse=True)
        tokens = system.tokens if system.rerank and system.reranker is None else self._tokens
        key = (id(documents), encoder.embedding_dim, passages, tokens)
        if key not in self._indexes:
            size = "max" if passages == 0 else passages
            texts = [documents[document] for document in ids]
            index = SearchIndex.build(encoder, texts, passages=size, tokens=tokens, progress=progress)
            self._indexes[key] = documents, index
        elif progress is not None:
            progress(len(ids))
        return ids, self._indexes[key][1]

    def reranker(self, system: System, encoder: Encoder) -> Reranker | None:
        """Returns the cross-encoder of a system, which is loaded in the first call; None if it has none."""
        if not isinstance(system.reranker, str):
            return system.reranker
        if system.reranker not in self._rerankers:
            from ..models.cross_encoder import Reranker

            loaded = Reranker(system.reranker, device=str(encoder.device), precision=encoder.precision)
            self._rerankers[system.reranker] = loaded
        return self._rerankers[system.reranker]


class Searched:
    """Wraps an encoder so that the suite ``retrieval`` ranks documents by ``SearchIndex.search``.

    Args:
        encoder: A ``cse.Encoder``, or ``Replayed`` (``run.py``).
        system: The options of the search.
        indexes: Indexes of the encoder that several systems share.
    """

    def __init__(self, encoder: Any, system: System, indexes: Indexed) -> None:
        self.encoder, self.system, self.indexes = encoder, system, indexes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def rank_documents(
        self,
        queries: Texts,
        documents: Texts,
        progress: Progress | None = None,
        depth: int = 100,
        passages: int | None = None,
    ) -> list[dict[str, float]]:
        """Returns the ``depth`` best documents for each query and their scores; blank documents are never found."""
        from ..search.tokens import check_tokens

        system = self.system
        if system.one_vector:
            return self._by_one_vector(queries, documents, progress, depth)
        reranker = self.indexes.reranker(system, self.encoder)
        if system.rerank and reranker is None:
            check_tokens(self.encoder)
        ids, index = self.indexes.get(self.encoder, system, documents, passages, progress)
        rerank = max(system.rerank, depth) if system.rerank else 0
        options: dict[str, Any] = {"hybrid": system.fusion or False, "smooth": system.smooth, "rerank": rerank}
        results = index.search(queries.values(), depth, **options, reranker=reranker, progress=progress)
        return [{ids[hit.row]: hit.score for hit in hits} for hits in results]

    def _by_one_vector(
        self, queries: Texts, documents: Texts, progress: Progress | None, depth: int
    ) -> list[dict[str, float]]:
        """Ranks by inner products of the vectors of ``encode_one_vector``, which are written to a temporary folder."""
        from ..models.opening import open_encoder
        from ..search.one_vector import encode_one_vector

        ids = sorted((name for name, text in documents.items() if text.strip()), reverse=True)
        with tempfile.TemporaryDirectory(prefix="cse-one-vector-", ignore_cleanup_errors=True) as folder:
            encode_one_vector(self.encoder, [documents[name] for name in ids], folder)
            vectors = np.load(Path(folder, "vectors.npy"))
            asked = open_encoder(folder, device=str(self.encoder.device)).encode(list(queries.values()))
        if progress is not None:
            progress(len(queries) + len(documents))
        rankings = []
        for query in asked:
            scores = vectors @ query
            best = np.argsort(-scores, kind="stable")[: depth if query.any() else 0]
            rankings.append({ids[row]: float(scores[row]) for row in best.tolist()})
        return rankings

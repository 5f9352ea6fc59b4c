"""What the suite ``retrieval`` evaluates: a model with hybrid ranking, BM25 alone, or a TREC run file.

Documents are ranked by ``SearchIndex``, so that the scores are the same as in ``cse search`` with the same options. Rows of
the index, and therefore documents of equal score, are in descending order of id, as in trec_eval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.pairs import number_of
from ..errors import InputError, shown
from ..io import write_text
from ..options import options_of
from . import EVALUATIONS
from .base import Encodes, Progress, read_lines

if TYPE_CHECKING:
    from ..search.fusion import Fusion

BM25 = "bm25"
"""Name of the system that ranks by BM25 alone."""
RUN = "run:"
"""Beginning of the name of a system whose rankings are in a TREC run file."""

Texts = Mapping[str, str]


@dataclass(frozen=True)
class System:
    """A model, and how it ranks documents in the suite ``retrieval``."""

    model: str | PathLike[str] | Encodes
    """A model, as for ``cse.evaluate``; ``"bm25"``: BM25 alone, without a model (a folder of this name: ``./bm25``);
    ``"run:FILE"``: the rankings of a TREC run file."""
    hybrid: bool | Fusion = False
    """See ``SearchIndex.search``."""

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

    @property
    def flags(self) -> list[str]:
        """The options as flags of ``cse eval``; empty for a system that ranks by embeddings alone."""
        if (fusion := self.fusion) is None:
            return []
        used = [(option, getattr(fusion, option.name)) for option in options_of(type(fusion)) if option.opt.help]
        return ["--hybrid", *(f"{option.flag} {value}" for option, value in used if value != option.default)]

    @property
    def model_key(self) -> Any:
        """A key that is the same for systems with the same model."""
        return fspath(self.model) if isinstance(self.model, (str, PathLike)) else id(self.model)

    @property
    def key(self) -> Any:
        """A key that is the same for equal systems."""
        return self.model_key, self.fusion


def as_system(model: Any) -> System:
    """Returns a system; a model becomes one that ranks by embeddings alone."""
    return model if isinstance(model, System) else System(model)


def check_systems(
    systems: Sequence[System], suites: str | Sequence[str], options: Mapping[str, Any] | None, dims: int | None
) -> None:
    """Raises ``InputError`` for systems that the suites cannot evaluate, or that need a package that is missing."""
    names = [suites] if isinstance(suites, str) else suites
    ranks = {name: EVALUATIONS.get(name, "--suite").ranks for name in names}
    other = next((name for name in names if not ranks[name]), None)
    by_passages = any("passages" in (options or {}).get(name, {}) for name in names if ranks[name])
    faults: list[tuple[Any, str]] = []
    if by_passages and all(system.fixed for system in systems):
        faults.append((True, f"--passages has no effect on {systems[0].fixed}; omit --passages"))
    for system in systems:
        name, flag = system.model, next(iter(system.flags), "")
        if system.fixed:
            alone = f"{name}: has no embeddings for --suite {other}; use only --suite retrieval, or a model"
            faults += [
                (other, alone),
                (flag, f"{flag} has no effect on {system.fixed}; omit {flag}"),
                (dims, f"--dims: {name} has no dimensions; leave out one of them"),
            ]
        elif not any(ranks.values()):
            faults.append((flag, f"{flag} applies only to --suite retrieval; add it, or leave out {flag}"))
        if system.model == BM25 or system.fusion:
            from ..search.bm25 import library

            library()
    for fault, message in faults:
        if fault:
            raise InputError(message)


class ByWords:
    """Ranks documents by BM25 alone, with the terms of ``SearchIndex.search(hybrid=True)``."""

    name = BM25

    def rank_documents(
        self, queries: Texts, documents: Texts, progress: Progress | None = None, depth: int = 100, **settings: Any
    ) -> list[dict[str, float]]:
        """Returns the documents with the highest positive scores; further settings have no effect."""
        from ..search.bm25 import Bm25, terms_for

        ids = sorted(documents, reverse=True)
        texts = [documents[key] for key in ids]
        index = Bm25.build(texts, progress, terms_for(texts))
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
        """Returns the first ``depth`` documents of each query; {} for a query that is not in the file."""
        if not any(query in self._rankings for query in queries):
            raise InputError(f"{self.name}: holds none of the judged queries; do the ids match?")
        if progress is not None:
            progress(len(queries) + len(documents))
        return [dict(islice(self._rankings.get(query, {}).items(), depth)) for query in queries]


class Searched:
    """Wraps a ``cse.Encoder`` so that the suite ``retrieval`` ranks documents by ``SearchIndex.search``."""

    def __init__(self, encoder: Any, fusion: Fusion) -> None:
        self.encoder, self.fusion = encoder, fusion

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
        """As the function ``rank_documents`` of ``retrieval.py``, by hybrid search; blank documents are never found."""
        from ..search.index import SearchIndex

        ids = sorted(documents, reverse=True)
        size = "max" if passages == 0 else passages
        index = SearchIndex.build(self.encoder, [documents[key] for key in ids], passages=size, progress=progress)
        results = index.search(queries.values(), depth, hybrid=self.fusion, progress=progress)
        return [{ids[hit.row]: hit.score for hit in hits} for hits in results]


def _strict(ranking: Mapping[str, float]) -> dict[str, float]:
    """Returns a ranking with scores that differ in float32, which is what programs such as trec_eval order by."""
    before, scores = np.float32(np.inf), {}
    for document, score in ranking.items():
        before = min(np.float32(score), np.nextafter(before, np.float32(-np.inf)))
        scores[document] = float(before)
    return scores


def write_run(path: str | Path, rankings: Mapping[str, Mapping[str, float]], name: str = "cse") -> None:
    """Writes rankings by query to a run file; raises ``InputError`` if an id holds white space."""
    for key in (key for query, ranking in rankings.items() for key in (query, *ranking)):
        if re.search(r"\s", key) or not key:
            raise InputError(f"--run {path}: the id {shown(key)} holds white space or is empty; change it")
    lines = [
        f"{query} Q0 {document} {rank} {np.float32(score)} {name}\n"
        for query, ranking in rankings.items()
        for rank, (document, score) in enumerate(_strict(ranking).items(), 1)
    ]
    write_text(path, "".join(lines))


def read_run(path: str | Path) -> dict[str, dict[str, float]]:
    """Reads the rankings of a run file by query, by descending scores (in float32), then descending ids."""
    rankings: dict[str, dict[str, float]] = {}
    for number, line in read_lines(Path(path)):
        fields = line.split()
        if len(fields) != 6:
            raise InputError(
                f"{path}: line {number} must have six fields (query, Q0, document, rank, score, name of the system), "
                f"separated by white space, got {len(fields)}"
            )
        if number_of(fields[4]) is None:
            raise InputError(f"{path}: line {number}: the score must be a finite number, got {shown(fields[4])}")
        ranking = rankings.setdefault(fields[0], {})
        if fields[2] in ranking:
            raise InputError(f"{path}: line {number} repeats the document {shown(fields[2])} of query {fields[0]}")
        ranking[fields[2]] = float(fields[4])
    return {
        query: dict(sorted(ranking.items(), key=lambda item: (np.float32(item[1]), item[0]), reverse=True))
        for query, ranking in rankings.items()
    }

"""Encoders and rankings of cse as models of mteb, and its tasks as a suite.

A ``cse.Encoder`` is a model of mteb as it is. ``SearchModel`` adds the rankings of ``ranking.py``::

    mteb.evaluate(SearchModel(System("minilm", hybrid=True)), mteb.get_tasks(["SciFact"]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from ..errors import InputError, shortened
from ..models.running.inference import Encoder
from ..options import Opt
from .base import Encodes, Evaluation, Report
from .ranking import Searched, System
from .retrieval import DEPTH, METRICS, ranker_of
from .trec import strict


class SearchModel:
    """The ``SearchProtocol`` of mteb for an encoder or a ranking, with the rankings of the suite ``retrieval``.

    With ``rerank``, only the first 100 documents of a query are returned.

    Args:
        model: A ``System``, or what it takes as its model; or an encoder with a method ``rank_documents``.
    """

    def __init__(self, model: Any) -> None:
        from mteb.models import ModelMeta

        from .run import opened

        name = getattr(model, "name", "")
        if not callable(getattr(model, "rank_documents", None)):
            name, model = opened(model)
        system = model.system if isinstance(model, Searched) else System(model)
        self._depth = DEPTH if system.rerank else None
        self._rank = ranker_of(model)
        self._documents: dict[str, str] = {}
        about = {"name": f"cse/{name.replace('/', '_') or 'encoder'}", "revision": "none"}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=about)
        """The description of the model in mteb."""

    def index(self, corpus: Any, **settings: Any) -> None:
        """Keeps the documents, a ``datasets.Dataset`` with columns id, text and optionally title; see mteb."""
        self._documents = {str(row["id"]): f"{row.get('title') or ''} {row['text'] or ''}".strip() for row in corpus}

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **settings: Any) -> dict[str, Any]:
        """Returns the scores of at most ``top_k`` documents by query and document; see mteb.

        Raises ``InputError`` for tasks that give the documents to rank, and for queries that are conversations.
        """
        if top_ranked is not None:
            raise InputError("mteb: a task for reranking gives the documents to rank; use a task for retrieval")
        asked = {str(row["id"]): row["text"] for row in queries}
        if not all(isinstance(text, str) for text in asked.values()):
            raise InputError("mteb: the queries of this task are conversations; use one whose queries are texts")
        for row in queries if "instruction" in queries.column_names else ():
            asked[str(row["id"])] += f" {row['instruction'] or ''}".rstrip()
        ranked = self._rank(asked, self._documents, depth=min(top_k, self._depth or top_k))
        return {query: strict(ranking) for query, ranking in zip(asked, ranked, strict=True)}


@dataclass(frozen=True)
class MtebOptions:
    tasks: Annotated[tuple[str, ...], Opt("names of tasks of mteb, such as SciFact")] = ()


class Mteb(Evaluation):
    """Tasks of mteb, with the data that mteb downloads."""

    Options = MtebOptions
    ranks = True
    summary = "the scores of tasks of mteb, as mteb computes them (--mteb TASK)"

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        try:
            import mteb
        except ImportError:
            raise InputError("--mteb needs mteb, which is not installed; run pip install 'cse[mteb]'") from None
        if not options.tasks:
            raise InputError("--mteb: name a task of mteb, such as --mteb SciFact")
        self.tasks = []
        for name in options.tasks:
            try:
                self.tasks.append(mteb.get_task(name))
            except KeyError as error:
                raise InputError(f"--mteb {name}: {str(error.args[0]).removeprefix('KeyError: ')}") from None

    def work(self) -> int:
        return len(self.tasks)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        """Returns a report with one row for each task, split and subset: its main score and others, x 100.

        Raises ``InputError`` if a task that ranks no documents is to be evaluated with options of search or without a
        model, or if its data cannot be loaded.
        """
        import mteb
        from mteb.abstasks.retrieval import AbsTaskRetrieval

        rows: list[dict[str, Any]] = []
        for task in self.tasks:
            name = task.metadata.name
            if isinstance(task, AbsTaskRetrieval) and task.metadata.type != "Reranking":
                model: Any = SearchModel(encoder)
            elif isinstance(encoder, Encoder):
                model = encoder
            else:
                raise InputError(f"--mteb {name} ranks no documents; it needs a model without options of search")
            try:
                task.load_data()
            except Exception as error:  # the libraries that load data may raise anything
                why = shortened(" ".join(str(error).split()), 200)
                raise InputError(f"--mteb {name}: its data cannot be loaded ({why}); check the connection") from None
            settings: dict[str, Any] = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
            (result,) = mteb.evaluate(model, tasks=[task], **settings).task_results
            for split, subsets in result.scores.items():
                for scores in subsets:
                    subset = "" if scores["hf_subset"] == "default" else f", {scores['hf_subset']}"
                    row = {"task": f"{name} ({split}{subset})", "metric": task.metadata.main_score}
                    row["score"] = 100 * float(scores["main_score"])
                    known = {metric: scores.get(metric.replace("@", "_at_")) for metric in METRICS}
                    rows.append({**row, **{metric: 100 * float(x) for metric, x in known.items() if x is not None}})
            task.unload_data()
            if progress is not None:
                progress(1)
        return Report(rows)

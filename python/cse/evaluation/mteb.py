"""Tasks of mteb as a suite. A ``cse.Encoder`` is a model of mteb as it is: ``mteb.evaluate(encoder, tasks)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..encoder.encoder import Encoder
from ..errors import InputError, shortened
from .base import Adapted, Encodes, Evaluation, Report
from .options import MtebOptions
from .retrieval import METRICS


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
        """Returns a report with one row for each task, split and subset: its main score and others, x 100."""
        import mteb

        model: Any = encoder.wrapped if isinstance(encoder, Adapted) else encoder
        if not isinstance(encoder, (Encoder, Adapted)):
            raise InputError("--mteb evaluates embeddings; name a model, and omit options of ranking")
        rows: list[dict[str, Any]] = []
        for task in self.tasks:
            name = task.metadata.name
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

"""The report of a run: one HTML page without scripts or external resources."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from shlex import quote
from typing import Any

import tomli_w

from ..classifier import described
from ..encoder.saving import LOADED, LOADED_BY_CSE
from ..errors import InputError, visible
from ..evaluation import verdict
from ..evaluation.verdict import NOT_JUDGED
from ..io import dumps, repaired
from ..progress import duration
from .curves import Material
from .runs import StoredRun, flat
from .style import Panel, drawn

# Names of the scores in a log, for the page; others are shown as they are.
SCORES = {
    "spearman": "Spearman's correlation x 100",
    "mrr": "Mean reciprocal rank of the other half",
    "found_first": "Other half found first",
    "alignment": "Alignment (lower is better)",
    "uniformity": "Uniformity (lower is better)",
    "cos_syn": "Cosine to synthetic negatives",
}
ABSENT = "-"
SPANS = {"text": "spans", "augmented": "augmented_spans"}


@dataclass(frozen=True)
class Page:
    html: str
    changes: list[dict[str, Any]]
    """Scores in the log, before training and of best/; empty if there was no evaluation."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Names of the plots and sections that are not on the page, with the reasons."""


def report_page(material: Material) -> Page:
    """Returns the report page of a run; plots and sections that cannot be made are listed with the reasons."""
    from jinja2 import Environment, StrictUndefined

    run, result = material.run, material.run.result or {}
    left_out: dict[str, str] = {}

    def attempt(name: str, make: Callable[[], list[Any]]) -> list[Any]:
        try:
            return make()
        except (InputError, OSError) as error:
            left_out[name] = str(error)
            return []

    def figures(*kinds: str) -> list[dict[str, Any]]:
        panels: list[Panel] = []
        for kind in kinds:
            panels += attempt(kind, partial(material.panels, kind)) if kind in material.kinds else []
        # An image that holds its own SVG data.
        sources = [f"data:image/svg+xml;base64,{b64encode(drawn([panel], 'svg')).decode()}" for panel in panels]
        return [
            {"title": panel.title, "caption": panel.caption, "source": source}
            for panel, source in zip(panels, sources, strict=True)
        ]

    pairs = figures("pairs")
    stored = result.get("neighbours", [])
    neighbours, changed, total = material.compared.neighbours() if pairs else (stored, 0, 0)
    unfinished = {"word": NOT_JUDGED, "why": f"the run has not finished: its log ends at step {run.step:,}"}
    judged = result.get("verdict", {**unfinished, "measures": [], "notes": []})
    changes = _changes(run)
    took = f" in {duration(result['seconds'])}" if result else ""
    done = f"{took}, not counting evaluations; best/ is from step {run.best['step']:,}" if result else ""
    version = run.environment.get("versions", {}).get("cse")
    loaded = LOADED_BY_CSE if run.config.get("pooler") == "mask" else LOADED
    resources = files("cse") / "resources"
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    template = environment.from_string((resources / "report.html").read_text(encoding="utf8"))
    html = template.render(
        css=(resources / "report.css").read_text(encoding="utf8"),
        version=f" with cse {version}" if version else "",
        run=run,
        verdict={**judged, "measures": verdict.table(judged, beside=False)},
        beside={name: f"{score:.2f}" for name, score in judged.get("beside", {}).items()},
        changes=[_cells(change) for change in changes],
        base=run.config.get("model", ""),
        took=took,
        sts={name: ABSENT if score is None else f"{score:.2f}" for name, score in result.get("sts", {}).items()},
        notes=result.get("notes", []),
        facts={**_facts(run), "steps done": f"{run.step:,}{done}"},
        given=_texts(run.given),
        settings=tomli_w.dumps({name: value for name, value in run.config.items() if name != "given"}),
        environment=_texts(run.environment),
        curves=figures("training", "cosines", "alignment"),
        methods=figures("focal"),
        held_out=pairs,
        predicted=figures("labels"),
        labels=_labels(result.get("classifier")),
        examples=attempt("positives and negatives", lambda: _examples(run)),
        explain=_explain(run),
        neighbours=neighbours,
        changed=changed,
        total=total,
        usage=loaded.replace("this/folder", str(run.folder / "best")),
        left_out=left_out,
    )
    return Page(repaired(html), changes, left_out)


def _shown(value: Any) -> Any:
    """Returns a value of the page, in which a text of anybody has no characters that a browser would obey."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _changes(run: StoredRun) -> list[dict[str, Any]]:
    """Returns the scores that both the evaluation before training and of best/ have, as records."""
    before, best = run.evaluations[0] if run.evaluations else {}, run.best
    return [
        {"name": SCORES.get(name, name), "before": value, "after": best[name], "difference": best[name] - value}
        for name, value in before.items()
        if name not in ("step", "event", "mrr_se") and value is not None and best.get(name) is not None
    ]


def _labels(about: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the facts and the table of the predicted labels; empty for a run without labels."""
    return {} if about is None else {"facts": described.facts(about), "table": described.table(about)}


def _cells(change: dict[str, Any]) -> list[str]:
    """Returns the table cells of a record of ``_changes``, with two decimals if the score is x 100."""
    digits = 2 if max(abs(change["before"]), abs(change["after"])) > 5 else 4
    signs = {"before": "", "after": "", "difference": "+"}
    return [change["name"], *(f"{change[name]:{sign}.{digits}f}" for name, sign in signs.items())]


def _facts(run: StoredRun) -> dict[str, str]:
    """Returns the stored summary of the model and the data."""
    if run.texts is not None:
        facts: dict[str, str] = run.texts["facts"]
        return facts
    return {name: _text(run.config.get(name)) for name in ("model", "loss", "positive", "negatives", "corpus")}


def _texts(table: dict[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in flat(table).items()}


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or ABSENT
    return value or ABSENT if isinstance(value, str) else ABSENT if value is None else dumps(value)


def _examples(run: StoredRun) -> list[dict[str, Any]]:
    """Returns the stored examples of each method, with their texts split by ``_parts``."""
    role = {run.config.get("positive"): "Positives"} | {name: "Negatives" for name in run.config.get("negatives", ())}
    methods: dict[str, dict[str, Any]] = {}
    for example in run.stored_texts()["examples"]:
        name = example["method"]
        method = methods.setdefault(name, {"title": f"{role.get(name, 'Texts')}: {name}", "examples": []})
        parts = {form: _parts(example[form], example[spans]) for form, spans in SPANS.items()}
        method["examples"].append({**parts, "further": example["further"]})
    return list(methods.values())


def _parts(text: str, spans: Sequence[Sequence[int]]) -> list[tuple[str, bool]]:
    """Splits a text at spans of replaced words; returns each part, and whether it is one of the spans."""
    parts, at = [], 0
    for start, end in spans:
        parts += [(text[at:start], False), (text[start:end], True)]
        at = end
    return [part for part in [*parts, (text[at:], False)] if part[0]]


def _explain(run: StoredRun) -> str | None:
    """Returns the command that explains UNA's choices in its first stored example; None if UNA has no example."""
    for example in (run.texts or {}).get("examples", []):
        if example["method"] == "una":
            own = run.folder / "tfidf"  # of a run for which the index was built
            index = own if own.exists() else run.config.get("tfidf", "tfidf")
            return f"cse explain {quote(example['text'])} --tfidf {quote(str(index))}"
    return None

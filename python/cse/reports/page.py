"""The report of a run: one HTML page without scripts or external resources."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any

import tomli_w

from ..encoder.saving import LOADED, LOADED_BY_CSE
from ..errors import InputError
from ..evaluation import verdict
from ..evaluation.verdict import NOT_JUDGED
from ..io import dumps
from ..progress import duration
from .held_out import Change, neighbours
from .pictures import KINDS, Material, kinds_of
from .runs import StoredRun
from .style import Panel, drawn

# Kinds of plots in the section on training, one tuple per row of plots.
CURVES = (("training",), ("cosines", "alignment"))


@dataclass(frozen=True)
class Page:
    html: str
    changes: list[dict[str, Any]]
    """Scores on held-out texts before and after training; empty if no texts were encoded."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Names of the plots and sections that are not on the page, with the reasons."""


def report_page(material: Material) -> Page:
    """Returns the report page of a run; plots and sections that cannot be made are listed with the reasons."""
    from jinja2 import Environment, StrictUndefined

    run = material.run
    left_out: dict[str, str] = {}

    def attempt(name: str, make: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return make()
        except InputError as error:
            left_out[name] = str(error)
            return otherwise

    def figures(kinds: Sequence[str]) -> list[dict[str, Any]]:
        panels: list[Panel] = []
        for kind in kinds:
            panels += attempt(kind, partial(KINDS[kind], material), [])
        return [{"title": panel.title, "caption": panel.caption, "source": _source(panel)} for panel in panels]

    methods = [kind for kind in kinds_of(material) if kind in ("focal", "ranks")]
    compared = attempt("changes on held-out texts", lambda: material.compared, None)
    near, changed, total = ([], 0, 0) if compared is None else neighbours(compared)
    changes: list[Change] = [] if compared is None else compared.changes
    resources = files("cse") / "resources"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((resources / "report.html").read_text(encoding="utf8"))
    version = run.environment.get("versions", {}).get("cse")
    loaded = LOADED_BY_CSE if run.config.get("pooler") == "mask" else LOADED
    html = template.render(
        css=(resources / "report.css").read_text(encoding="utf8"),
        version=f" with cse {version}" if version else "",
        run=run,
        verdict=_verdict(run),
        changes=[_cells(change) for change in changes],
        logged=[] if changes else _logged(run),
        sets=bool(run.config.get("dev")),
        base=run.config.get("model", ""),
        took=_took(run),
        sts=(run.result or {}).get("sts", {}),
        notes=(run.result or {}).get("notes", []),
        facts=_facts(run),
        given=_flat(run.given),
        settings=tomli_w.dumps({name: value for name, value in run.config.items() if name != "given"}),
        environment=_flat(run.environment),
        curves=[figures(kinds) for kinds in CURVES],
        methods=figures(methods),
        held_out=figures(["pairs"]),
        examples=attempt("positives and negatives", lambda: _examples(run), []),
        explain=_explain(run),
        neighbours=near,
        stored_neighbours=[] if compared is not None else (run.result or {}).get("neighbours", []),
        changed=changed,
        total=total,
        usage=loaded.replace("this/folder", str(run.folder / "best")),
        left_out=left_out,
    )
    records = [{**vars(change), "difference": change.difference} for change in changes]
    return Page(html, records, left_out)


def _source(panel: Panel) -> str:
    """Returns a panel as the address of an image that holds its own SVG data."""
    return f"data:image/svg+xml;base64,{b64encode(drawn([panel], 'svg')).decode()}"


def _verdict(run: StoredRun) -> dict[str, Any]:
    """Returns the word of the verdict, why it was given, the table cells of the measures, and the notes."""
    if run.result is None:
        unfinished = f"the run has not finished: its log ends at step {run.step:,}"
        return {"word": NOT_JUDGED, "why": unfinished, "measures": [], "notes": []}
    stored: dict[str, Any] = run.result["verdict"]
    return {**stored, "measures": [verdict.cells(record) for record in stored["measures"]]}


def _cells(change: Change) -> dict[str, str]:
    digits = 2 if max(abs(change.before), abs(change.after)) > 5 else 4

    def number(value: float, form: str) -> str:
        return f"{value:{form}.{digits}f}" if math.isfinite(value) else "none"

    return {
        "name": change.name + ("" if change.better > 0 else " (lower is better)"),
        "before": number(change.before, ""),
        "after": number(change.after, ""),
        "difference": number(change.difference, "+"),
    }


def _logged(run: StoredRun) -> list[dict[str, str]]:
    """Returns the scores before training, and those of best/, from the log; used if no texts were encoded."""
    if not run.evaluations:
        return []
    before, best = run.evaluations[0], run.best
    names = [name for name in before if name not in ("step", "event") and isinstance(before[name], (int, float))]
    return [
        {"name": name, "before": f"{before[name]:.4f}", "after": f"{best[name]:.4f}"}
        for name in names
        if best.get(name) is not None
    ]


def _facts(run: StoredRun) -> dict[str, str]:
    """Returns the stored summary of the model and the data, and the number of steps done.

    Older runs stored no summary; some of their settings are returned instead.
    """
    if run.texts is not None:
        facts: dict[str, str] = run.texts["facts"]
    else:
        config = run.config
        facts = {name: _text(config.get(name)) for name in ("model", "loss", "positive", "negatives", "corpus")}
    done = {"steps done": f"{run.step:,}"}
    if run.result is not None:
        done["steps done"] += f"{_took(run)}, not counting evaluations; best/ is from step {run.best['step']:,}"
    return {**facts, **done}


def _took(run: StoredRun) -> str:
    """Returns the duration of the training steps as a phrase; "" if the run has not ended."""
    return "" if run.result is None else f" in {duration(run.result['seconds'])}"


def _flat(table: dict[str, Any]) -> dict[str, str]:
    """Returns the values of a table as text, by name; values of nested tables have names like ``una.beta``."""
    values: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            values |= {f"{name}.{key}": _text(item) for key, item in value.items()}
        else:
            values[name] = _text(value)
    return values


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return value if isinstance(value, str) else "none" if value is None else dumps(value)


def _examples(run: StoredRun) -> list[dict[str, Any]]:
    """Returns the stored examples of each method, with their texts split by ``_parts``."""
    if run.texts is None:
        raise InputError(
            f"{run.folder}: has no data.json with examples, because an older version of cse made the run; train again"
        )
    role = {run.config.get("positive"): "Positives"} | {name: "Negatives" for name in run.config.get("negatives", ())}
    methods: dict[str, dict[str, Any]] = {}
    for example in run.texts["examples"]:
        name = example["method"]
        method = methods.setdefault(name, {"title": f"{role.get(name, 'Texts')}: {name}", "examples": []})
        method["examples"].append(
            {
                "text": _parts(example["text"], example["spans"]),
                "augmented": _parts(example["augmented"], example["augmented_spans"]),
                "further": example["further"],
            }
        )
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
    texts = [example["text"] for example in (run.texts or {}).get("examples", []) if example["method"] == "una"]
    if not texts:
        return None
    quoted = texts[0].replace("'", "'\\''")
    return f"cse explain '{quoted}' --tfidf {run.config.get('tfidf', 'tfidf')}"

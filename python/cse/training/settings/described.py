"""What a model card and the messages of a run say about its settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...encoder.saving import public_name
from ...evaluation import EVALUATIONS
from ...losses import CONTRASTIVE, TEACHER
from ...options import conditions
from .flat import to_toml
from .names import SETTINGS
from .resolve import Resolved


def recipe_reason(settings: Resolved, family: str | None) -> str:
    """Returns a text that says where the values that were not given come from, and why."""
    preset = settings.given.get("preset")
    if preset is not None and (preset, family) != ("encoder", "encoder"):
        return f"preset {preset}"
    if family != "encoder":
        return f"defaults of {family}"
    said = {"keep-similarities": "its similarities are kept", TEACHER: "it learns the embeddings of the teacher"}
    kept = [text for name, text in said.items() if name in (settings.loss.loss, *settings.loss.loss_terms)]
    cut = ["short passages of the rows are the positives"] if settings.methods.positive == "spans" else []
    why = " and ".join([*kept, *cut])
    return f"encoder: the model is already a sentence encoder{f', so {why}' if why else ''}"


def public_toml(settings: Resolved) -> str:
    """Returns the settings as TOML without those that name data, and with paths without their folders."""
    private = {name for name, option in SETTINGS.items() if option.opt.private}
    needs = {name: {need.option for need in conditions(option.opt.needs)} for name, option in SETTINGS.items()}
    changed: dict[str, Any] = {name: SETTINGS[name].default for name in SETTINGS if ({name} | needs[name]) & private}
    changed |= {"model": public_name(settings.model.model), "imports": _without_folder(settings.methods.imports)}
    options = {
        name: {key: _without_folder(value) for key, value in table.items()}
        for name, table in settings.options.items()
        if name not in EVALUATIONS  # of --judge, which names data
    }
    if settings.data.pairs:  # these values are valid only with pairs
        changed["positive"] = "dropout"
        options.get(CONTRASTIVE, {}).pop("hard_negative_weight", None)
    return to_toml(replace(settings, options=options).changed(**changed).values(), None)


def public_text(settings: Resolved, text: str) -> str:
    """Returns a description of methods in which the paths of options have no folders, as in ``public_toml``."""
    for value in (value for table in settings.options.values() for value in table.values()):
        if isinstance(value, str) and value:
            text = text.replace(value, _without_folder(value))
    return text


def _without_folder(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_without_folder(item) for item in value)
    if not isinstance(value, str) or "://" in value:
        return value
    # An encoder may be KIND:FILE, or MODEL@FILE for whitening.
    return "".join(public_name(part) if "/" in part else part for part in re.split("([:@])", value))

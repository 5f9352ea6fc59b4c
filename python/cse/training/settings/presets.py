"""The recipes and the defaults in ``presets/``.

``defaults.toml`` holds the defaults of each model family; a preset is a table of another file. This module imports
neither NumPy nor torch, so that the command line starts quickly.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any

from ...losses import CONTRASTIVE_LOSSES
from ...registry import declared


@cache
def _presets() -> dict[str, dict[str, Any]]:
    """Returns the presets of this package, and of the packages that the entry points of ``cse.presets`` name."""
    presets = {}
    for package in ("cse.presets", *(point.value for point in declared("cse.presets"))):
        try:
            places = sorted(files(package).iterdir(), key=lambda place: place.name)
        except ImportError:  # the package was removed; a preset of it is unknown
            continue
        for place in places:
            if not place.name.endswith(".toml") or place.name == "defaults.toml":
                continue
            tables = tomllib.loads(place.read_text(encoding="utf8"))
            shared = tables.pop("all")
            for model, values in tables.items():
                presets[f"{place.name.removesuffix('.toml')}-{model}"] = {**shared, **values}
    presets["encoder"] = families()["encoder"]
    return presets


@cache
def families() -> dict[str, dict[str, Any]]:
    """Returns the defaults of each model family; those in ``all`` apply to every family."""
    return {family: table for family, table in _defaults().items() if family != "when"}


def is_published(preset: str | None) -> bool:
    """Returns whether a preset is the recipe of a paper, and not of a model family."""
    return preset is not None and preset.partition("-")[0] not in families()


def defaults(
    family: str, loss: str | None = None, terms: Collection[str] = (), *, recipe: bool = True
) -> dict[str, Any]:
    """Returns the default settings of a model family with a loss, which is one of them; see ``defaults.toml``.

    ``loss`` is None if the user chose none, and ``terms`` are the loss terms that the user added, one of which may be
    the loss then. ``recipe``: whether the recipe of the family applies, which chooses a loss; it does not with labelled
    pairs, with the preset of a paper, and with a loss that is not contrastive.
    """
    chosen = [table["values"] for table in conditions(family) if recipe and table.get("pairs") is False]
    added = [table["values"] for table in conditions(family) if recipe and table.get("term") in terms]
    loss = loss or next((values["loss"] for values in (*added, *chosen)), "standard")
    values = dict(families()[family])
    for own in chosen if loss in CONTRASTIVE_LOSSES else ():
        values |= own
    for own in (table["values"] for table in conditions(family) if table.get("loss") == loss):
        values |= own
    return {**values, "loss": loss}


def conditions(family: str) -> list[dict[str, Any]]:
    """Returns the tables ``when`` of a family: ``loss``, ``pairs`` or ``term``, and the values that apply then."""
    return [table for table in _defaults()["when"] if table["family"] == family]


@cache
def _defaults() -> dict[str, Any]:
    return tomllib.loads((files("cse") / "presets" / "defaults.toml").read_text(encoding="utf8"))


def preset_names() -> list[str]:
    """Returns the names of the presets: published recipes (``simcse-bert-base``), ``encoder``, ``encoder-queries``."""
    return sorted(_presets())


def preset_values(name: str) -> dict[str, Any]:
    """Returns the values of a preset."""
    return _presets()[name]

"""The presets: published recipes, each a table of a file in ``presets/``; and ``encoder``, the defaults of sentence
encoders (``defaults``). This module imports neither NumPy nor torch, so that the command line starts quickly.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from ...registry import declared
from .defaults import FAMILIES


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
            if not place.name.endswith(".toml"):
                continue
            tables = tomllib.loads(place.read_text(encoding="utf8"))
            shared = tables.pop("all")
            for model, values in tables.items():
                presets[f"{place.name.removesuffix('.toml')}-{model}"] = {**shared, **values}
    presets["encoder"] = FAMILIES["encoder"]
    return presets


def is_published(preset: str | None) -> bool:
    """Returns whether a preset is the recipe of a paper, and not of a model family."""
    return preset is not None and preset.partition("-")[0] not in FAMILIES


def preset_names() -> list[str]:
    """Returns the names of the presets: published recipes (``simcse-bert-base``), ``encoder``, ``encoder-queries``."""
    return sorted(_presets())


def preset_values(name: str) -> dict[str, Any]:
    """Returns the values of a preset."""
    return _presets()[name]

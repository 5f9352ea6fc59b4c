"""The cells of a table: expanded into runs, trained and scored one by one, and kept in a folder.

A cell is a row, a column if columns are settings, and a seed. Its file ``CELL/seed-N.json`` is written when it is
scored; an interrupted run stays in ``CELL/seed-N/`` and is resumed from its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..io import dumps, write_text
from .suites import score_columns
from .tables import Recipe, Row, Table, merged

if TYPE_CHECKING:
    from ..training.callbacks import Callback
    from ..training.train_config import TrainConfig

__all__ = ["Cell", "Inputs", "cells_of", "config_of", "read_cell", "run_cell"]

MODELS_OF = {"diffcse": "generator", "dclr": "model", "substitution": "model"}
"""Options of methods that name a further model."""
SYNONYMS = ("eda-synonym", "eda-insert")
"""Positives that take synonyms from the file ``--file synonyms=PATH`` where it is given, else from WordNet."""
# Development sets by which the papers select, by preset; those that are not here: STS-B.
DEV = {"scd": ("sickr.dev.tsv",), "dclr": ("stsb.dev.tsv", "sickr.dev.tsv")}


@dataclass(frozen=True)
class Inputs:
    """What the runs of a table read."""

    data: Path
    """Folder of the evaluation data."""
    corpus: Path | None = None
    """Sentences to train on; None: only encoders that are not trained can be scored."""
    pairs: Path | None = None
    """Labelled pairs of the supervised rows."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files and models by name."""
    device: str = "auto"
    precision: str = "auto"
    threads: int = 0
    max_steps: int | None = None
    """Limit of the steps of every run; None: those of the recipes. A table that is cut short is not the papers'."""
    model: str | None = None
    """A model in place of every model of the recipes; for trials of the whole table."""
    batch_size: int | None = None
    """Rows of a batch in place of those of the recipes; for trials."""
    partial: bool = False
    """Accept incomplete evaluation data, and evaluate transfer tasks with two folds; for trials."""


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    table: Table
    row: Row
    column: str | None
    """None: the run has scores of all columns."""
    recipe: Recipe
    seed: int | None
    """None for encoders that are not trained."""

    @property
    def folder(self) -> str:
        """Name of its folder."""
        name = self.row.name if self.column is None else f"{self.row.name}, {self.column}"
        return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")

    @property
    def name(self) -> str:
        """Name for people."""
        column = "" if self.column is None else f", {self.column}"
        return f"{self.row.name}{column}" + ("" if self.seed is None else f", seed {self.seed}")

    def path(self, place: Path) -> Path:
        """Returns its file."""
        return place / self.folder / ("scores.json" if self.seed is None else f"seed-{self.seed}.json")

    def lacks(self, inputs: Inputs) -> str | None:
        """Returns which flag is missing for this cell, or None."""
        for name in self.recipe.needs():
            if name not in inputs.files:
                return f"--file {name}=PATH"
        if self.recipe.labelled and inputs.pairs is None:
            return "--pairs FILE"
        if self.recipe.encoder is None and not self.recipe.labelled and inputs.corpus is None:
            return "--corpus FILE"
        return None


def cells_of(table: Table, rows: Sequence[Row], seeds: Sequence[int]) -> list[Cell]:
    """Returns the cells of some rows, one row complete before the next; of a row, one column before the next."""
    return [
        Cell(table, row, column, recipe, seed)
        for row in rows
        for column, recipe in row.recipes.items()
        for seed in ((None,) if recipe.encoder is not None else seeds)
    ]


def filled(value: Any, inputs: Inputs) -> Any:
    """Returns a value of a recipe with the user's files in their places."""
    if isinstance(value, str):
        for name, path in inputs.files.items():
            value = value.replace("{" + name + "}", path)
        return value
    if isinstance(value, Mapping):
        return {key: filled(each, inputs) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(each, inputs) for each in value]
    return value


def settings_of(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Returns the values of ``TrainConfig`` that decide the results of a cell."""
    from ..training.defaults import with_preset
    from ..training.train_config import TrainConfig

    recipe = cell.recipe
    found = {"preset": recipe.preset, "seed": cell.seed, **filled(dict(recipe.settings), inputs)}
    if recipe.preset is None:
        found["model"] = cell.row.model
        found.pop("preset")
    else:
        paper = (
            recipe.preset.removesuffix("-base").removesuffix("-large").removesuffix("-bert").removesuffix("-roberta")
        )
        found["dev"] = [str(_find(inputs.data, name)) for name in DEV.get(paper, ("stsb.dev.tsv",))]
    if inputs.model is not None:
        found["model"] = inputs.model
        methods = with_preset(TrainConfig(**{**source_of(cell, inputs), **found})).methods
        for method, option in MODELS_OF.items():
            if method in methods:
                found = merged(found, {method: {option: inputs.model}})
    if inputs.batch_size is not None:
        found["batch_size"] = inputs.batch_size
    if "synonyms" in inputs.files and found.get("positive") in SYNONYMS:
        found = merged(found, {found["positive"]: {"synonyms": inputs.files["synonyms"]}})
    if inputs.max_steps is not None:
        found |= {"max_steps": inputs.max_steps, "eval_every": inputs.max_steps}
    return found


def source_of(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Returns what a run is trained on: the corpus, or labelled pairs; a recipe may name another corpus."""
    return {"pairs": str(inputs.pairs)} if cell.recipe.labelled else {"corpus": str(inputs.corpus)}


def _find(data: Path, name: str) -> Path:
    from .suites import find

    return find(data, name)


def config_of(cell: Cell, inputs: Inputs, place: Path) -> TrainConfig:
    """Returns the configuration of the run of a cell; builds the TF-IDF index that it needs, if there is none yet."""
    from ..training.defaults import with_preset
    from ..training.train_config import TrainConfig

    given = settings_of(cell, inputs)
    config = TrainConfig(
        **{**source_of(cell, inputs), **given},
        output=str(place / cell.folder),
        name=f"seed-{cell.seed}",
        device=inputs.device,
        precision=inputs.precision,
        threads=inputs.threads,
    )
    completed = with_preset(config)
    if "una" in completed.negatives:
        tokenizer = completed.options.get("una", {}).get("tokenizer") or "unicode"  # that of cse build-tfidf
        config = config.replace(tfidf=str(_index(config.corpus, place / f"tfidf-{tokenizer}", tokenizer)))
    return config


def _index(corpus: Sequence[str], folder: Path, tokenizer: Any) -> Path:
    from ..tfidf.index import TfidfIndex

    if not (folder / "index.safetensors").exists():
        TfidfIndex.build(list(corpus), tokenizer=tokenizer).save(folder)
    return folder


def identity(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Returns what a stored cell must have been made with: the recipe, limits and models in place, hashes of files."""
    recipe = cell.recipe
    source = None if recipe.encoder is not None else inputs.pairs if recipe.labelled else inputs.corpus
    found: dict[str, Any] = {
        "preset": recipe.preset,
        "encoder": recipe.encoder,
        "pooler": recipe.pooler,
        **recipe.settings,
        "max_steps": recipe.settings.get("max_steps") if inputs.max_steps is None else inputs.max_steps,
        "model": cell.row.model if inputs.model is None else Path(inputs.model).name,
        "corpus": None if source is None else _hash(str(source)),
        **{f"file {name}": _hash(str(inputs.files[name])) for name in recipe.needs() if name in inputs.files},
    }
    normal: dict[str, Any] = json.loads(dumps(found))
    return normal


@cache
def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return path  # the name of a model


def read_cell(cell: Cell, inputs: Inputs, place: Path) -> dict[str, Any] | None:
    """Returns the stored cell, None if there is none; raises ``InputError`` if it was made with other settings."""
    path = cell.path(place)
    if not path.exists():
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
        before, now = stored["identity"], identity(cell, inputs)
    except (ValueError, KeyError):
        raise InputError(f"{path}: is not a cell of cse reproduce; remove it, or choose another folder -o") from None
    if before != now:
        name = next(key for key in sorted({*before, *now}) if before.get(key) != now.get(key))
        raise InputError(
            f"{path}: was made with {name} {before.get(name)}, not {now.get(name)}; choose another folder -o, or "
            "remove the cell"
        )
    return stored


def run_cell(
    cell: Cell, inputs: Inputs, place: Path, callback: Callback | None = None, keep_models: bool = False
) -> dict[str, Any]:
    """Trains and scores a cell, or resumes it, and stores the result.

    Args:
        cell: The cell.
        inputs: What the runs read.
        place: Folder of the cells.
        callback: Called during training.
        keep_models: Keep the folder of the run; else only scores, settings and times are kept.

    Returns:
        The stored cell.
    """
    from ..models.inference import Encoder

    recipe, started = cell.recipe, time.perf_counter()
    seconds, steps = 0.0, 0
    if recipe.encoder is not None:
        name = inputs.model or filled(recipe.encoder, inputs)
        encoder = Encoder(name, pooler=recipe.pooler, device=inputs.device)
    else:
        result = _train(cell, inputs, place, callback)
        seconds, steps = result.seconds, result.steps
        encoder = Encoder(result.folder / "best", device=inputs.device)
    columns = cell.table.columns
    scores = score_columns(encoder, cell.table.suite, columns, inputs.data, inputs.partial)
    del encoder
    record = {
        "row": cell.row.name,
        "column": cell.column,
        "seed": cell.seed,
        "scores": scores,
        "identity": identity(cell, inputs),
        "steps": steps,
        "train_seconds": round(seconds, 3),
        "seconds": round(time.perf_counter() - started, 3),
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": {each: version(each) for each in ("cse", "torch", "transformers")},
    }
    path = cell.path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dumps(record, indent=1) + "\n")
    if recipe.encoder is None and not keep_models:
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    stored: dict[str, Any] = json.loads(dumps(record))
    return stored


def _train(cell: Cell, inputs: Inputs, place: Path, callback: Callback | None) -> Any:
    """Trains the run of a cell, from its last checkpoint if there is one."""
    from ..training.leftovers import has_checkpoint
    from ..training.loop import resumed_config, train

    folder = cell.path(place).with_suffix("")
    if folder.exists() and has_checkpoint(folder):
        return train(resumed_config(folder), callback, resume=folder)
    if folder.exists():
        shutil.rmtree(folder)  # of a run that was killed before its first checkpoint
    return train(config_of(cell, inputs, place), callback)

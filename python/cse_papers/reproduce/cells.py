"""The runs of a table: their names, folders and configurations.

A cell is one row with one seed and, if the columns stand for settings, one column. If the recipe names an encoder, the
encoder is scored without training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .inputs import SENTENCES, SYNONYMS, Inputs, is_made
from .scores import find, hash_file
from .tables import Recipe, Row, Table, merged

if TYPE_CHECKING:
    from cse.training.settings.given import TrainConfig

MODELS_OF = {"diffcse": "generator", "dclr": "model", "substitution": "model", "rankcse": "teachers"}
"""Method options that name a further model, or two teachers."""
FROM_SYNONYMS = ("eda-synonym", "eda-insert")
"""Positives that take synonyms from the file ``--file synonyms=PATH`` if it is given, else from WordNet."""
STSB = ("stsb.dev.tsv",)
DEV = {"scd": ("sickr.dev.tsv",), "dclr": (*STSB, "sickr.dev.tsv")}
"""Development sets by which papers select checkpoints, by the first part of the preset's name. Default: ``STSB``."""


@dataclass(frozen=True)
class Cell:
    """One run of a table, or one encoder that is scored without training."""

    table: Table
    row: Row
    column: str | None
    """None: one run gives the scores of all columns."""
    recipe: Recipe
    seed: int | None
    """None for encoders that are not trained."""

    @property
    def folder(self) -> str:
        """Name of the cell's folder; the cells of all seeds share it."""
        name = self.row.name if self.column is None else f"{self.row.name}, {self.column}"
        return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")

    @property
    def name(self) -> str:
        """Name of the cell in messages."""
        column = "" if self.column is None else f", {self.column}"
        return f"{self.row.name}{column}" + ("" if self.seed is None else f", seed {self.seed}")

    def path(self, place: Path) -> Path:
        """Returns the file of the cell."""
        return place / self.folder / ("scores.json" if self.seed is None else f"seed-{self.seed}.json")

    def lacks(self, inputs: Inputs) -> str | None:
        """Returns the first flag that is needed for this cell but was not given, or None."""
        for name in self.recipe.needs():
            if name not in inputs.files and not is_made(name):
                stems = SENTENCES[name][0] if name in SENTENCES else ()
                made = f", or {', '.join(f'{stem}.tsv' for stem in stems)} in --data" if stems else ""
                return f"--file {name}=PATH{made}"
        if self.recipe.labelled and inputs.pairs is None and "pairs" not in self.recipe.settings:
            return "--pairs FILE"
        trained = self.recipe.encoder is None and not self.recipe.labelled and "corpus" not in self.recipe.settings
        if trained and inputs.corpus is None:
            return "--corpus FILE"
        return None


def cells_of(table: Table, rows: Sequence[Row], seeds: Sequence[int]) -> list[Cell]:
    """Returns the cells of some rows, row by row, and within a row column by column."""
    return [
        Cell(table, row, column, recipe, seed)
        for row in rows
        for column, recipe in row.recipes.items()
        for seed in ((None,) if recipe.encoder is not None else seeds)
    ]


def filled(value: Any, inputs: Inputs) -> Any:
    """Returns a value of a recipe, with placeholders replaced by the user's files."""
    if isinstance(value, str):
        for name, path in inputs.files.items():
            value = value.replace("{" + name + "}", path)
        return value
    if isinstance(value, Mapping):
        return {key: filled(item, inputs) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(item, inputs) for item in value]
    return value


def encoder_of(recipe: Recipe, inputs: Inputs) -> str:
    """Returns the name of the encoder of a recipe without training, as in ``cse eval``, with the user's files."""
    kind, colon, what = str(recipe.encoder).rpartition(":")
    model, at, rest = what.partition("@")
    if inputs.model is not None and not model.startswith("{"):
        model = inputs.model
    return str(filled(f"{kind}{colon}{model}{at}{rest}", inputs))


def settings_of(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Returns the values of ``TrainConfig`` that, with ``source_of``, determine the results of a cell."""
    from cse.training.settings.given import TrainConfig
    from cse.training.settings.resolve import with_preset

    recipe = cell.recipe
    settings = {"preset": recipe.preset, "seed": cell.seed, **filled(dict(recipe.settings), inputs)}
    if recipe.preset is None:
        settings["model"] = cell.row.model
        settings.pop("preset")
    else:
        names = DEV.get(recipe.preset.split("-")[0], STSB)
        settings["dev"] = list(inputs.dev) or [str(find(inputs.data, name)) for name in names]
    if inputs.model is not None:
        settings["model"] = inputs.model
        methods = with_preset(TrainConfig(**{**source_of(cell, inputs), **settings})).methods
        for method, option in MODELS_OF.items():
            if method in methods and not recipe.names_model(method, option):
                settings = merged(
                    settings, {method: {option: [inputs.model] * 2 if option == "teachers" else inputs.model}}
                )
    if inputs.batch_size is not None:
        settings["batch_size"] = inputs.batch_size
    if SYNONYMS in inputs.files and settings.get("positive") in FROM_SYNONYMS:
        settings = merged(settings, {settings["positive"]: {"synonyms": inputs.files[SYNONYMS]}})
    if inputs.max_steps is not None:
        settings |= {"max_steps": inputs.max_steps, "eval_every": inputs.max_steps}
    return settings


def source_of(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Returns what a run is trained on: the pairs or the corpus that its recipe names, else those of the user."""
    kind, path = ("pairs", inputs.pairs) if cell.recipe.labelled else ("corpus", inputs.corpus)
    return {kind: filled(cell.recipe.settings.get(kind, str(path)), inputs)}


def config_of(cell: Cell, inputs: Inputs, place: Path) -> TrainConfig:
    """Returns the configuration of the run of a cell. The TF-IDF index that it may name is not built here."""
    from cse.training.settings.given import TrainConfig

    config = TrainConfig(
        **{**source_of(cell, inputs), **settings_of(cell, inputs)},
        output=str(place / cell.folder),
        name=f"seed-{cell.seed}",
        device=inputs.device,
        precision=inputs.precision,
        threads=inputs.threads,
    )
    if index := index_of(config):
        tokenizer, texts = index
        config = config.replace(tfidf=str(place / f"tfidf-{tokenizer}-{'-'.join(map(hash_file, texts))}"))
    return config


def index_of(config: TrainConfig) -> tuple[Any, list[str]] | None:
    """Returns the tokenizer of the TF-IDF index of a run, and the files that it counts; None without UNA and UDA."""
    from cse.training.settings.resolve import with_preset

    completed = with_preset(config)
    if "una" not in completed.negatives and completed.positive != "uda":
        return None
    paraphrases = [config.options["parallel"]["file"]] if config.positive == "parallel" else []
    # The default is that of cse build-tfidf.
    return completed.options.get("una", {}).get("tokenizer") or "unicode", [*config.corpus, *paraphrases]

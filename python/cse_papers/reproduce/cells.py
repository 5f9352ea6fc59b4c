"""Trains, scores and stores the cells of a table.

A cell is one row with one seed and, if the columns stand for settings, one column. If the recipe names an encoder, the
encoder is scored without training. ``FOLDER`` below is ``Cell.folder``, the same for all seeds. The file
``FOLDER/seed-N.json`` (``FOLDER/scores.json`` without training) is written when the cell is scored. An interrupted run
stays in ``FOLDER/seed-N/`` and is resumed from its last checkpoint; so is one that ``cse train`` has made there with
the same settings (``cse reproduce TABLE --print-commands``), which is kept.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.errors import InputError
from cse.io import dumps, locked, read_json, write_text

from .inputs import SENTENCES, SYNONYMS, Inputs, is_made
from .masked import weights_key
from .suites import Recipe, Row, Scorer, Table, find, hash_file, merged

if TYPE_CHECKING:
    from cse.training.callbacks import Callback
    from cse.training.settings.given import TrainConfig

MODELS_OF = {"diffcse": "generator", "dclr": "model", "substitution": "model"}
"""Method options that name a further model."""
FROM_SYNONYMS = ("eda-synonym", "eda-insert")
"""Positives that take synonyms from the file ``--file synonyms=PATH`` if it is given, else from WordNet."""
RESULT = "result.json"
"""The file that a run writes at its end."""
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


@dataclass
class Plan:
    """The cells of some rows of a table."""

    stored: dict[str, list[dict[str, Any]]]
    """Stored cells by the name of the row."""
    wanted: list[Cell]
    """Cells to be run, in order."""
    notes: dict[str, str]
    """Why cells of a row are neither stored nor run, by the name of the row."""

    def add(self, cell: Cell, record: dict[str, Any]) -> None:
        """Adds the record of a cell that has been run and stored."""
        self.stored.setdefault(cell.row.name, []).append(record)


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
                settings = merged(settings, {method: {option: inputs.model}})
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


def identity(cell: Cell, inputs: Inputs, scorer: Scorer) -> dict[str, Any]:
    """Returns what determines the scores of a cell: recipe, step limit, precision, model, and hashes of files."""
    from cse.encoder.device import device_name, pick_device, pick_precision

    recipe, device = cell.recipe, pick_device(inputs.device)
    source = {} if recipe.encoder is not None else source_of(cell, inputs)
    dev = [] if recipe.preset is None else settings_of(cell, inputs)["dev"]
    index = None if recipe.encoder is not None else index_of(config_of(cell, inputs, Path()))
    counted = index[1][1:] if index else []
    values: dict[str, Any] = {
        "preset": recipe.preset,
        "encoder": recipe.encoder,
        "pooler": recipe.pooler,
        **recipe.settings,
        **({} if inputs.batch_size is None else {"batch_size": inputs.batch_size}),
        "max_steps": recipe.settings.get("max_steps") if inputs.max_steps is None else inputs.max_steps,
        "model": cell.row.model if inputs.model is None else weights_key(inputs.model),
        "corpus": None,
        **{name: hash_file(path) for name, path in source.items()},
        **({"index": ["corpus", *map(hash_file, counted)]} if counted else {}),
        "dev": [hash_file(path) for path in dev],
        "precision": None if recipe.encoder else pick_precision(device, inputs.precision)[0],
        "evaluation data": scorer.hash(cell.column),
        **{
            f"file {name}": hash_file(str(inputs.files[name]))
            for name in recipe.needs()
            if name in inputs.files and not is_made(name)
        },
        **(
            {"file synonyms": hash_file(inputs.files[SYNONYMS])}
            if SYNONYMS in inputs.files and recipe.settings.get("positive") in FROM_SYNONYMS
            else {}
        ),
    }
    if cell.table.suite == "effects":  # whose runs are compared pair by pair; the dropout masks depend on the device
        values["device"] = device_name(device)
    if "imports" in recipe.settings:
        values["imports"] = [hash_code(path) for path in recipe.settings["imports"]]
    normal: dict[str, Any] = json.loads(dumps(values))
    return normal


def hash_code(path: str) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of the syntax tree of a Python file, so that a changed
    comment does not discard runs."""
    tree = ast.dump(ast.parse(Path(path).read_bytes(), path))
    return hashlib.sha256(tree.encode()).hexdigest()[:16]


def read_cell(cell: Cell, inputs: Inputs, scorer: Scorer, place: Path) -> dict[str, Any] | None:
    """Returns the record of a cell, or that of an equal stored run (``Inputs.stored``); None if there is none."""
    now = identity(cell, inputs, scorer)
    found = _read(cell.path(place), now)
    equal = (records.get((cell.row.name, cell.column, cell.seed)) for records in inputs.stored.values())
    return found or next((record for record in equal if record and record["identity"] == now), None)


def _read(path: Path, now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the record in a file, or None without a file; raises ``InputError`` if its identity is not ``now``."""
    if not path.exists():
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
        before = dict(stored["identity"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: was not written by cse reproduce; remove it, or choose another -o") from None
    if before != now:
        name = next(key for key in sorted({*before, *now}) if before.get(key) != now.get(key))
        raise InputError(
            f"{path}: was made with {name} {before.get(name)}, not {now.get(name)}; choose another folder with -o, "
            "or remove the cell"
        )
    return stored


def run_cell(
    cell: Cell,
    inputs: Inputs,
    scorer: Scorer,
    place: Path,
    callback: Callback | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep_models: bool = False,
) -> dict[str, Any]:
    """Trains the encoder of a cell, or resumes its training, scores it, and stores and returns the record."""
    from cse.encoder.encoder import Encoder

    recipe, started, used = cell.recipe, time.perf_counter(), time.process_time()
    made, seconds, steps = identity(cell, inputs, scorer), 0.0, 0
    path = cell.path(place)
    folder, whole = path.with_suffix(""), True
    keep_models = keep_models or (folder / RESULT).exists()  # probably made by cse train
    if recipe.encoder is not None:
        encoder = Encoder(encoder_of(recipe, inputs), pooler=recipe.pooler, device=inputs.device)
    else:
        seconds, steps, whole = _train(cell, inputs, place, callback)
        encoder = Encoder(folder / "best", device=inputs.device)
    trained = time.process_time()
    scores, draws = scorer.measure(encoder, progress, cell.column)
    del encoder
    record = {
        "row": cell.row.name,
        "column": cell.column,
        "seed": cell.seed,
        "scores": scores,
        "identity": made,
        "steps": steps,
        "train_seconds": round(seconds, 3),
        "seconds": round(time.perf_counter() - started, 3),
        # Not known of a run that another process has trained, or begun.
        "train_processor_seconds": round(trained - used, 3) if whole else None,
        "processor_seconds": round(time.process_time() - used, 3) if whole else None,
        "process_peak_bytes": peak_bytes(),
        "versions": {package: version(package) for package in ("cse", "torch", "transformers")},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dumps({**record, **({"draws": draws} if draws else {})}) + "\n")
    if not keep_models:
        shutil.rmtree(folder, ignore_errors=True)
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    return stored


def peak_bytes() -> int:
    """Returns the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # in bytes on macOS, in KiB elsewhere


def _train(cell: Cell, inputs: Inputs, place: Path, callback: Callback | None) -> tuple[float, int, bool]:
    """Trains the encoder of a cell, from the last checkpoint of its run if there is one; of a finished run, this only
    checks that its files have not changed. Returns the seconds and steps of the run, and whether all of it was trained
    here."""
    from cse.tfidf.index import TfidfIndex
    from cse.training.folder.find import CONFIG, check_free, list_checkpoints
    from cse.training.loop import resumed_config, train

    folder, config = cell.path(place).with_suffix(""), config_of(cell, inputs, place)
    if list_checkpoints(folder):
        _check_run(folder, config, type(config).from_toml(folder / CONFIG))
        _check_device(folder, inputs, cell.table.suite == "effects")
        resumed = train(resumed_config(folder), callback, resume=folder)
        return resumed.seconds, resumed.steps, False
    if folder.exists():
        check_free(folder)  # a run that was killed before its first checkpoint is replaced, and no other
    index = index_of(config)
    place.mkdir(parents=True, exist_ok=True)
    with locked(place, wait=True):  # other processes may need the same index
        if index and config.tfidf and not (Path(config.tfidf) / "index.safetensors").exists():
            TfidfIndex.build(index[1], tokenizer=index[0]).save(config.tfidf)
    trained = train(config, callback)
    return trained.seconds, trained.steps, True


def _check_device(folder: Path, inputs: Inputs, device: bool) -> None:
    """Raises ``InputError`` if a run was made in another precision than this command has or, with ``device``, on
    another device."""
    from cse.encoder.device import device_name, pick_device, pick_precision

    found = read_json(folder / "environment.json", dict[str, Any])
    own = pick_device(inputs.device)
    now = {"precision": pick_precision(own, inputs.precision)[0], **({"device": device_name(own)} if device else {})}
    for name, value in now.items():
        if found.get(name) != value:
            raise InputError(
                f"{folder}: was made with {name} {found.get(name)}, not {value}; give --{name}, choose another folder "
                "with -o, or remove the run"
            )


def _check_run(folder: Path, config: TrainConfig, stored: TrainConfig) -> None:
    """Raises ``InputError`` if a run was given other values that affect what it computes. Files that have changed are
    found when it is resumed."""
    from cse.reports.runs import NOT_COMPARED
    from cse.training.settings.flat import merge

    now, before = merge(config.values()), merge(stored.given or stored.values())
    names = sorted(name for name in {**now, **before}.keys() - NOT_COMPARED if now.get(name) != before.get(name))
    if names:
        raise InputError(
            f"{folder}: was made with {names[0]} {before.get(names[0])}, not {now.get(names[0])}; choose another "
            "folder with -o, or remove the run"
        )

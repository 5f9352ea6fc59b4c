"""Trains, scores and stores one cell.

``FOLDER`` below is ``Cell.folder``, the same for all seeds. The file ``FOLDER/seed-N.json`` (``FOLDER/scores.json``
without training) is written when the cell is scored. An interrupted run stays in ``FOLDER/seed-N/`` and is resumed from
its last checkpoint; so is one that ``cse train`` has made there with the same settings (``cse reproduce TABLE
--print-commands``), which is kept.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.errors import InputError
from cse.io import locked, read_json

from .cells import Cell, config_of, encoder_of, index_of
from .inputs import Inputs
from .scores import Scorer
from .stored import identity, write_cell

if TYPE_CHECKING:
    from cse.training.callbacks import Callback
    from cse.training.settings.given import TrainConfig

RESULT = "result.json"
"""The file that a run writes at its end."""


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
    stored = write_cell(path, {**record, **({"draws": draws} if draws else {})})
    if not keep_models:
        shutil.rmtree(folder, ignore_errors=True)
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

"""Checkpoints of the state of a training run, from which it can be resumed.

=========================  =======================================================================================
``manifest.json``          XXH3-128 of every other file, by which damage is detected
``state.json``             counters, scores, fingerprints of the data
``config.toml``            the configuration of the run
``weights.safetensors``    parameters and buffers of encoders, loss terms and other methods
``optimizer.safetensors``  moments and step counts of AdamW, by parameter number
``generators.safetensors`` states of PyTorch's random number generators (for dropout), by rank
``selection.safetensors``  arrays of the label-free evaluation
``best/``                  the selected encoder; its weights are hard links to those in the run's best/, or copies
=========================  =======================================================================================

A checkpoint is written at the first evaluation in training, every ``--save-every`` steps, after a signal, and at the
end of the run; see ``loop.py``. The files are written to a temporary folder, which is then renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...encoder.device import generator_states, restore_generators
from ...errors import InputError
from ...io import check_files, contents, fresh_folder, hash_files, identity, read_json, remove_folder
from ..run import Run
from ..step.distributed import World
from ..step.state import TrainState
from .find import CONFIG, MANIFEST, damage, list_checkpoints, read_manifest
from .lock import FOLDER

BEST = "best"
STATE = "state.json"
FILES = ("weights", "optimizer", "generators", "selection")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read and verified."""

    folder: Path
    state: dict[str, Any]
    """The contents of ``state.json``."""
    tensors: dict[str, dict[str, Tensor]]
    """The contents of the ``.safetensors`` files by name: ``weights``, ``optimizer``, ``generators``, ``selection``."""

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder.parent.parent

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.state["step"])


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads and verifies a checkpoint; raises ``TornCheckpoint`` if it is damaged."""
    with damage(folder):
        stored, names = read_manifest(folder), contents(folder) - {MANIFEST}
        if stored.keys() != names:
            raise ValueError(f"{min(stored.keys() ^ names)} is missing, or is not listed in the manifest")
        check_files(folder, stored, stored)
        state = read_json(folder / STATE, dict[str, Any])
        return Checkpoint(folder, state, {name: load_file(_part(folder, name)) for name in FILES})


def save_checkpoint(run: Run, keep: int, world: World) -> None:
    """Writes the checkpoint of the current step in the folder of a run. Called by every rank.

    The latest ``keep`` checkpoints remain. Checkpoints of later steps, which exist if the run was resumed from an
    earlier checkpoint, are deleted as well. If a file cannot be written, earlier checkpoints remain.
    """
    generators = {}
    for name, values in generator_states(run.device).items():
        for rank, generator in enumerate(world.collect(values)):
            generators[f"{rank}.{name}"] = generator
    if not world.is_main:
        return
    state, target, best = run.state, run.folder / FOLDER / f"step-{run.state.step:08d}", run.folder / BEST
    selection, arrays = state.selector.state()
    files = {
        "weights": state.weights(),
        "optimizer": _moments(state.optimizer),
        "generators": generators,
        # Copies: if the first evaluation is also the last, their arrays share memory, which safetensors rejects.
        "selection": {name: torch.tensor(array) for name, array in arrays.items()},
    }
    record = {
        **state.counters(),
        "selection": selection,
        "saturation": {"note": state.saturation.note, "first": state.saturation.first},
        "data": run.data,
        "ranks": world.size,
    }
    with fresh_folder(target) as fresh:
        if best.is_dir():
            shutil.copytree(best, fresh / BEST, copy_function=_link)
        for part, tensors in files.items():
            save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, _part(fresh, part))
        # json.dumps writes NaN, which standard JSON does not allow; only cse reads this file, with json.loads.
        for name, text in ((STATE, json.dumps(record) + "\n"), (CONFIG, run.config.to_toml())):
            (fresh / name).write_text(text, encoding="utf8")
        hashes = hash_files(fresh, _known_hashes(run.folder))
        (fresh / MANIFEST).write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf8")
    remove_others(target, keep)


def remove_others(checkpoint: Path, keep: int) -> None:
    """Removes the checkpoints of a run except for the last ``keep`` up to this one."""
    checkpoints = list_checkpoints(checkpoint.parent.parent)
    own = checkpoints.index(checkpoint) + 1
    for other in [*checkpoints[: max(own - keep, 0)], *checkpoints[own:]]:
        remove_folder(other)


def restore_best(checkpoint: Checkpoint, run: Path) -> None:
    """Replaces the run's best/ with the checkpoint's, because a later step may have been selected since."""
    stored, best = checkpoint.folder / BEST, run / BEST
    if not stored.is_dir():
        return
    with fresh_folder(best) as fresh:
        shutil.copytree(stored, fresh, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """Makes a hard link to weights, whose files are never modified in place; copies files that a user may edit.

    Weights are also copied if the file system does not support hard links.
    """
    try:
        if source.endswith(".safetensors"):
            os.link(source, target)
            return
    except OSError:
        pass
    shutil.copy2(source, target)


def load_state(checkpoint: Checkpoint, state: TrainState, device: str, rank: int) -> None:
    """Restores a checkpoint into the initial state of a run.

    If the run has more ranks than before, the generators of the new ranks keep their initial states. Raises
    ``InputError`` if the checkpoint belongs to another model.
    """
    saved = checkpoint.tensors
    current = state.weights()
    if {name: tensor.shape for name, tensor in current.items()} != {k: v.shape for k, v in saved["weights"].items()}:
        raise InputError(f"{checkpoint.folder}: has weights of another model; restore the model the run began with")
    with torch.no_grad():
        for name, values in current.items():
            values.copy_(saved["weights"][name])
    _restore_moments(state.optimizer, saved["optimizer"])
    own = {name.split(".")[1]: tensor for name, tensor in saved["generators"].items() if name.startswith(f"{rank}.")}
    if own:
        restore_generators(own, device)
    record = checkpoint.state
    vars(state).update({name: record[name] for name in state.counters()}, viewed=Counter(record["viewed"]))
    state.saturation.note, state.saturation.first = record["saturation"]["note"], record["saturation"]["first"]
    state.selector.restore(record["selection"], {name: tensor.numpy() for name, tensor in saved["selection"].items()})


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    moments = optimizer.state_dict()["state"]
    return {f"{number}.{name}": values for number, table in moments.items() for name, values in table.items()}


def _restore_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]) -> None:
    moments: dict[int, dict[str, Tensor]] = {}
    for key, values in saved.items():
        number, _, name = key.partition(".")
        moments.setdefault(int(number), {})[name] = values
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})


def _part(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"


def _known_hashes(run: Path) -> dict[tuple[int, ...], str]:
    """Returns the hashes of the weight files in best/ of the latest checkpoint, by the ``identity`` of each file."""
    for folder in list_checkpoints(run)[-1:]:
        try:
            stored = read_manifest(folder)
            weights = [name for name in stored if name.startswith(f"{BEST}/") and name.endswith(".safetensors")]
            return {identity(folder / name): stored[name] for name in weights}
        except (OSError, ValueError):
            pass
    return {}

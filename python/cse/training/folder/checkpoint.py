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

The files are written to a temporary folder, which is then renamed.
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
from ...io import check_files, contents, fresh_folder, hash_files, read_json, remove_folder
from ..run import Run
from ..step.distributed import World
from ..step.state import TrainState
from .find import CONFIG, FOLDER, MANIFEST, damage, list_checkpoints, read_manifest

BEST = "best"
STATE = "state.json"
FILES = ("weights", "optimizer", "generators", "selection")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read and verified."""

    folder: Path
    state: dict[str, Any]  # the contents of state.json
    tensors: dict[str, dict[str, Tensor]]  # the contents of the .safetensors files, by name

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
        return Checkpoint(folder, state, {name: load_file(folder / f"{name}.safetensors") for name in FILES})


def save_checkpoint(run: Run, keep: int, world: World) -> None:
    """Writes the checkpoint of the current step in the folder of a run. Called by every rank."""
    generators = {}
    for name, values in generator_states(run.device).items():
        for rank, generator in enumerate(world.collect(values)):
            generators[f"{rank}.{name}"] = generator
    if not world.is_main:
        return
    state, target, best = run.state, run.folder / FOLDER / f"step-{run.state.step:08d}", run.folder / BEST
    selection, arrays = state.selector.state()
    moments = state.optimizer.state_dict()["state"]
    files = {
        "weights": state.weights(),
        "optimizer": {f"{number}.{name}": x for number, table in moments.items() for name, x in table.items()},
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
            tensors = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
            save_file(tensors, fresh / f"{part}.safetensors")
        # json.dumps writes NaN, which standard JSON does not allow; only cse reads this file, with json.loads.
        for name, text in ((STATE, json.dumps(record) + "\n"), (CONFIG, run.config.to_toml())):
            (fresh / name).write_text(text, encoding="utf8")
        hashes = hash_files(fresh)
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
    """Makes a hard link to weights, whose files are never modified in place; copies files that a user may edit."""
    try:
        if source.endswith(".safetensors"):
            return os.link(source, target)
    except OSError:  # a file system without hard links
        pass
    shutil.copy2(source, target)


def load_state(checkpoint: Checkpoint, state: TrainState, device: str, rank: int) -> None:
    """Restores a checkpoint into the initial state of a run."""
    saved = checkpoint.tensors
    current = state.weights()
    if {name: tensor.shape for name, tensor in current.items()} != {k: v.shape for k, v in saved["weights"].items()}:
        raise InputError(f"{checkpoint.folder}: has weights of another model; restore the model the run began with")
    with torch.no_grad():
        for name, values in current.items():
            values.copy_(saved["weights"][name])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, values in saved["optimizer"].items():
        number, _, name = key.partition(".")
        moments.setdefault(int(number), {})[name] = values
    state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": moments})
    own = {name.split(".")[1]: tensor for name, tensor in saved["generators"].items() if name.startswith(f"{rank}.")}
    if own:
        restore_generators(own, device)
    record = checkpoint.state
    vars(state).update({name: record[name] for name in state.counters()}, viewed=Counter(record["viewed"]))
    state.saturation.note, state.saturation.first = record["saturation"]["note"], record["saturation"]["first"]
    state.selector.restore(record["selection"], {name: tensor.numpy() for name, tensor in saved["selection"].items()})

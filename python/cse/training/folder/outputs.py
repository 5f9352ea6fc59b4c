"""The folder of a run: its lock, the encoders saved in it, and checkpoints, from which the run can be resumed.

A checkpoint is a folder ``checkpoints/step-N`` with these files, which are written to a temporary folder first:

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
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ... import io
from ..._core import __version__
from ...classifier import described
from ...classifier.fitted import Fitted
from ...data.corpus import IN_MEMORY
from ...encoder.device import device_name, generator_states, restore_generators
from ...encoder.encoder import Encoder
from ...encoder.saving import model_card, save_encoder
from ...encoder.taught import write_taught
from ...errors import InputError
from ...evaluation.kept import write_judges
from ...evaluation.verdict import Verdict, markdown
from ..run import Run
from ..settings.declared import Output
from ..settings.resolve import Resolved
from ..step.ranks import World
from . import find
from .find import CONFIG, FOLDER, MANIFEST

BEST = "best"
STATE = "state.json"
FILES = ("weights", "optimizer", "generators", "selection")


def named_folder(output: Output) -> Path:
    """Returns the folder of a run that was given a name; raises ``InputError`` if the name is invalid or in use."""
    name = str(output.name)
    if not name.isprintable() or not name.strip() or "/" in name or name in (".", ".."):
        raise InputError(f"--name: {name!r} cannot be the name of a folder; use letters, digits, - and _")
    find.check_free(Path(output.output) / name)
    return Path(output.output) / name


def choose_folder(settings: Resolved) -> Path:
    """Returns the folder of a new run; raises ``InputError`` for a name that is invalid or in use."""
    if settings.output.name is not None:
        return named_folder(settings.output)
    return next(folder for folder in numbered_folders(settings) if not folder.exists())


def numbered_folders(settings: Resolved) -> Iterator[Path]:
    """Yields the folders of runs with these settings that were given no name, in the order in which they are used."""
    output = settings.output
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(settings.model.model).name) or "model"
    stem = "-".join([stem, settings.loss.loss, *settings.methods.negatives, f"seed{output.seed}"])
    for number in count(1):
        yield Path(output.output) / (stem if number == 1 else f"{stem}-{number}")


@contextmanager
def run_folder(run: Run, world: World) -> Iterator[Path]:
    """Creates and locks the folder of a run; deletes it if the run fails before the end of its first step.

    The folder of a resumed run exists and is locked already. Ranks other than 0 only receive the path.
    """
    resumed = run.state.step > 0
    with ExitStack() as held:
        run.folder = Path(world.agreed(lambda: str(run.folder if resumed else _claimed(run, held))))
        try:
            yield run.folder
        except BaseException:
            if world.is_main and run.state.step == 0:
                with suppress(OSError):
                    find.clear(run.folder)
                    run.folder.rmdir()
            raise


def _claimed(run: Run, held: ExitStack) -> Path:
    """Creates, locks and returns the folder of a new run; empties the folder of an unsaved run with the same name."""
    while True:
        try:
            run.folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder = choose_folder(run.settings)
            if folder == run.folder:  # the name was given, and nothing has been saved there
                break
            run.folder = folder
    held.enter_context(find.locked(run.folder))
    if not find.is_unsaved(run.folder):  # another process has started a run in it
        raise InputError(f"--name: {run.folder} exists; choose another name")
    find.clear(run.folder)
    io.remove_leftovers(run.folder.parent)
    return run.folder


@contextmanager
def opened(resume: Path, world: World) -> Iterator[Checkpoint]:
    """Context manager that locks a run, removes what killed processes left in it, and then reads its checkpoint."""
    with ExitStack() as held:

        def lock() -> str:
            run = find.find_checkpoint(resume).parent.parent
            held.enter_context(find.locked(run))
            find.files_of(run)
            for folder in (run, run / FOLDER):
                io.remove_leftovers(folder)
            return str(find.find_checkpoint(resume))

        yield read_checkpoint(Path(world.agreed(lock)))


class Selection(TypedDict):
    """What ``Selector.state`` returns."""

    records: list[dict[str, float | None]]
    best_step: int
    collapsed: list[int]
    misses: int
    before: NotRequired[list[tuple[str, str]]]


class Saturation(TypedDict):
    note: str | None
    first: list[float]


class Fingerprints(TypedDict, total=False):
    """What ``check_same`` compares."""

    files: dict[str, str]


class State(TypedDict):
    """The contents of state.json."""

    step: int
    sentences: int
    seconds: float
    viewed: dict[str, int]
    selection: Selection
    saturation: Saturation
    data: Fingerprints


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
    with find.damage(folder):
        stored, names = io.read_json(folder / MANIFEST, dict[str, str]), io.contents(folder) - {MANIFEST}
        if stored.keys() != names:
            raise ValueError(f"{min(stored.keys() ^ names)} is missing, or is not listed in the manifest")
        io.check_files(folder, stored, stored)
        state = io.read_json(folder / STATE, State)
        return Checkpoint(folder, {**state}, {name: load_file(folder / f"{name}.safetensors") for name in FILES})


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
    with io.fresh_folder(target) as fresh:
        if best.is_dir():
            io.copy_files(best, fresh / BEST, io.contents(best), link_weights=True)
        for part, tensors in files.items():
            tensors = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
            save_file(tensors, fresh / f"{part}.safetensors")
        # json.dumps writes NaN, which standard JSON does not allow; only cse reads this file, with json.loads.
        for name, text in ((STATE, json.dumps(record) + "\n"), (CONFIG, run.settings.to_toml())):
            (fresh / name).write_text(text, encoding="utf8")
        hashes = io.hash_files(fresh)
        (fresh / MANIFEST).write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf8")
    remove_others(target, keep)


def remove_others(checkpoint: Path, keep: int) -> None:
    """Removes the checkpoints of a run except for the last ``keep`` up to this one."""
    checkpoints = find.list_checkpoints(checkpoint.parent.parent)
    own = checkpoints.index(checkpoint) + 1
    for other in [*checkpoints[: max(own - keep, 0)], *checkpoints[own:]]:
        io.remove_folder(other)


def restore_best(checkpoint: Checkpoint, run: Path) -> None:
    """Replaces the run's best/ with the checkpoint's, because a later step may have been selected since."""
    if (stored := checkpoint.folder / BEST).is_dir():
        with io.fresh_folder(run / BEST) as fresh:
            io.copy_files(stored, fresh, io.contents(stored), link_weights=True)


def load_state(checkpoint: Checkpoint, run: Run, rank: int) -> None:
    """Restores a checkpoint into the initial state of a run."""
    saved, state = checkpoint.tensors, run.state
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
        restore_generators(own, run.device)
    record = checkpoint.state
    vars(state).update({name: record[name] for name in state.counters()}, viewed=Counter(record["viewed"]))
    state.saturation.note, state.saturation.first = record["saturation"]["note"], record["saturation"]["first"]
    arrays = {name: tensor.numpy() for name, tensor in saved["selection"].items()}
    state.selector.restore(record["selection"], arrays)
    run.judge.restore(checkpoint.run, record["selection"].get("before", []), arrays)


def card(run: Run, step: int, verdict: str = "", classifier: str = "") -> str:
    """Returns the model card of the encoder of a step; ``verdict`` and ``classifier`` are Markdown."""
    selector = run.state.selector
    columns = {"spearman": ["spearman"], "mrr": ["mrr", "mrr_se"]}.get(selector.scorer.metric or "", [])
    return model_card(
        run.state.encoder,
        **run.card,
        step=step,
        columns=[*columns, "alignment", "uniformity"] if columns else [],
        scores=selector.records,
        verdict=verdict,
        classifier=classifier,
    )


def save(run: Run, name: str) -> None:
    """Saves the encoder with a model card in the subfolder ``name`` of the run."""

    def terms(folder: Path) -> None:
        for term in run.state.terms.values():
            term.save(folder)

    save_encoder(run.state.encoder, run.folder / name, card(run, run.state.step), terms)


def load_best(run: Run) -> Encoder:
    """Returns the encoder in best/ as a user would load it, without the MLP head unless the head is kept."""
    return load(run, run.folder / BEST)


def load(run: Run, model: str | Path) -> Encoder:
    """Returns an encoder on the device of a run."""
    with torch.random.fork_rng(devices=[]):  # dropout goes on with the state of the generator
        return Encoder(model, device=run.device)


def save_card(run: Run, verdict: Verdict, fitted: Fitted | None) -> None:
    """Writes the model card of best/ with the verdict and what is known about the classifier."""
    best, selector = run.folder / BEST, run.state.selector
    if best.is_dir():
        text = markdown(verdict.to_dict())
        if selector.teaching and selector.share:
            text = f"The weights are averaged with the base model's (weight {selector.share:.0%}).\n\n{text}"
        labels = "" if fitted is None else described.markdown(described.record(fitted))
        io.write_text(best / "README.md", card(run, selector.best_step, text, labels))


def describe(run: Run) -> None:
    """Writes config.toml, environment.json, and data.json, from which ``cse report`` shows what was trained on."""
    packages = ("transformers", "tokenizers", "numpy", "scipy", "safetensors")
    versions = {"cse": __version__, "python": platform.python_version(), "torch": torch.__version__}
    environment = {
        "versions": versions | {package: version(package) for package in packages},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(run.device),
        "precision": run.forward.precision,
        "precision_reason": run.reason,
    }
    data = {
        "facts": run.facts,
        "examples": [asdict(example) for example in run.examples],
        "held_out": run.state.selector.scorer.held_out,
        "synthetic": run.state.selector.scorer.negatives,
    }
    if sets := run.state.selector.scorer.pairs:
        data["dev"] = {
            name: {"left": pairs.left, "right": pairs.right, "gold": pairs.gold.tolist()}
            for name, pairs in sets.items()
        }
    write_taught(run.folder, run.taught)
    in_memory = any(source["path"] == IN_MEMORY for source in run.sources)
    write_judges(run.folder, run.judge.evaluations, run.judge.suites, run.sources, inline=in_memory)
    io.write_text(run.folder / CONFIG, run.settings.to_toml())
    io.write_text(run.folder / "environment.json", io.dumps(environment, indent=2) + "\n")
    io.write_text(run.folder / "data.json", io.dumps(data) + "\n")

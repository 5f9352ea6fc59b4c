"""The folder of a run: its lock, and the encoders saved in it."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..._core import __version__
from ...encoder.base import NotFinite
from ...encoder.device import device_name
from ...encoder.encoder import Encoder
from ...encoder.saving import model_card, save_encoder
from ...errors import InputError
from ...evaluation.base import Sample
from ...evaluation.sts import score_pairs
from ...evaluation.verdict import NOT_JUDGED, Verdict, markdown
from ...io import remove_leftovers, write_text
from ..callbacks import Callback
from ..run import Run
from ..step.distributed import World
from .checkpoint import Checkpoint, read_checkpoint
from .find import FOLDER, check_free, check_links, clear, find_checkpoint, is_unsaved, locked


def choose_folder(config: Any) -> Path:
    """Returns the folder of a new run; raises ``InputError`` for a name that is invalid or in use."""
    parent = Path(config.output)
    name: str | None = config.name
    if name is not None:
        if not name.isprintable() or not name.strip() or "/" in name or name in (".", ".."):
            raise InputError(f"--name: {name!r} cannot be the name of a folder; use letters, digits, - and _")
        check_free(parent / name)
        return parent / name
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model).name) or "model"
    stem = "-".join([stem, config.loss, *config.negatives, f"seed{config.seed}"])
    number = 1
    while (folder := parent / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


@contextmanager
def opened(resume: Path, world: World) -> Iterator[Checkpoint]:
    """Context manager that locks a run, removes what killed processes left in it, and then reads its checkpoint."""
    with ExitStack() as held:

        def lock() -> str:
            run = find_checkpoint(resume).parent.parent
            held.enter_context(locked(run))
            check_links(run)
            for folder in (run, run / FOLDER):
                remove_leftovers(folder)
            return str(find_checkpoint(resume))

        yield read_checkpoint(Path(world.agreed(lock)))


def card(run: Run, step: int, verdict: str = "") -> str:
    """Returns the model card of the encoder of a step; ``verdict`` is Markdown."""
    selector = run.state.selector
    columns = {"spearman": ["spearman"], "mrr": ["mrr", "mrr_se"]}.get(selector.metric or "", [])
    return model_card(
        run.state.encoder,
        **run.card,
        step=step,
        columns=[*columns, "alignment", "uniformity"] if columns else [],
        scores=selector.records,
        verdict=verdict,
    )


def save(run: Run, name: str) -> None:
    """Saves the encoder with a model card in the subfolder ``name`` of the run."""

    def terms(folder: Path) -> None:
        for term in run.state.terms.values():
            term.save(folder)

    save_encoder(run.state.encoder, run.folder / name, card(run, run.state.step), terms)


def describe(run: Run) -> dict[str, Any]:
    """Returns the contents of ``data.json``, from which ``cse report`` shows what a run was trained on."""
    selector = run.state.selector
    return {
        "facts": run.facts,
        "examples": [asdict(example) for example in run.examples],
        "held_out": selector.held_out,
        "synthetic": selector.negatives,
    }


def load_best(run: Run) -> Encoder:
    """Returns the encoder in best/ as a user would load it, without the MLP head unless the head is kept."""
    with torch.random.fork_rng(devices=[]):  # dropout goes on with the state of the generator
        return Encoder(run.folder / "best", device=run.device)


def judged(run: Run, encoder: Encoder | None = None) -> list[Sample]:
    """Returns the samples of the measures of a run for the encoder in best/."""
    encoder = encoder or load_best(run)
    return [sample for measure in run.measures for sample in measure(encoder)]


def conclude(run: Run, callback: Callback) -> tuple[dict[str, float], Verdict]:
    """Judges best/; returns Spearman's correlation x 100 by STS task, and the verdict, which is added to its card."""
    selector, tasks = run.state.selector, run.evaluation.tasks
    changed = selector.best_step > 0 and bool(run.measures)
    encoder = None
    if tasks or changed:
        callback.on_status("evaluating best/")
        encoder = load_best(run)
    try:
        after = judged(run, encoder) if changed else []
        verdict = selector.verdict(after, judged=bool(run.measures), unjudged=run.unjudged)
    except InputError as error:  # its embeddings are not finite
        verdict = Verdict(NOT_JUDGED, str(error))
    if (run.folder / "best").is_dir():
        write_text(run.folder / "best" / "README.md", card(run, selector.best_step, markdown(verdict.to_dict())))
    scores = {}
    for task, pairs in tasks:
        assert encoder is not None
        try:
            scores[task.title] = score_pairs(encoder, pairs).spearman
        except NotFinite as error:
            callback.on_warning(f"{task.title}: {error}")
            scores[task.title] = math.nan
    return scores, verdict


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
                    clear(run.folder)
                    run.folder.rmdir()
            raise


def _claimed(run: Run, held: ExitStack) -> Path:
    """Creates, locks and returns the folder of a new run; empties the folder of an unsaved run with the same name."""
    while True:
        try:
            run.folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder = choose_folder(run.config)
            if folder == run.folder:  # the name was given, and nothing has been saved there
                break
            run.folder = folder
    held.enter_context(locked(run.folder))
    if not is_unsaved(run.folder):  # another process has started a run in it
        raise InputError(f"--name: {run.folder} exists; choose another name")
    clear(run.folder)
    remove_leftovers(run.folder.parent)
    return run.folder


def environment(run: Run) -> dict[str, Any]:
    """Returns versions, platform, processor, cores, threads, device, and the precision with the reason for it."""
    versions = {"cse": __version__, "python": platform.python_version(), "torch": torch.__version__}
    packages = ("transformers", "tokenizers", "numpy", "scipy", "safetensors")
    versions |= {package: version(package) for package in packages}
    return {
        "versions": versions,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(run.device),
        "precision": run.forward.precision,
        "precision_reason": run.reason,
    }

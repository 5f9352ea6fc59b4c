"""A teacher, then labels: ``--learn --teacher MODEL`` trains two runs, one after the other.

The first, in the folder NAME-teacher, learns the vectors of the teacher on all rows, without a label. The second, NAME,
begins with its encoder and learns the labels; the verdict compares with the encoder before both (``against``). All
encoders of its folds begin with the same one. With 100 labels, this gained 1.4 to 3.2 points more than labels alone on
four datasets (``benches/labels.py --teacher``).

With ``--tune-teacher``, a run before them, NAME-tuned, teaches MODEL the labels, and its encoder is the teacher. It is
not judged, and all three are trained anew for each fold, without its labels: otherwise these would come in through the
teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..encoder.resolve import find_model
from ..encoder.saving import public_name
from ..encoder.taught import run_of
from ..errors import InputError
from ..io import read_json
from ..losses import TEACHER
from .folder.find import CONFIG, list_checkpoints, resuming
from .folder.outputs import choose_folder, numbered_folders
from .folder.stored import resumed_config
from .inputs import models_of
from .settings.given import TrainConfig
from .settings.resolve import Resolved, resolve, with_preset
from .step.ranks import World

TABLE = ("corpus", "column", "encoding_errors", "max_line_bytes", "keep_duplicates")
"""The settings that say which rows a run has, and in what order."""
SHARED = (
    *(*TABLE, "cache", "imports", "model", "pooler", "prompt", "precision", "device", "threads", "seed", "output"),
    *("loggers", "log_every", "max_length", "batch_size", "accumulate", "chunk_size", "max_steps", "epochs", "compile"),
    "graphs",
)
"""The settings that the first run has too, if they were given; the others are of the second."""
SUFFIX, TUNED = "-teacher", "-tuned"
GUARD = {"most_lost": 1.0}
"""The first run is guarded as the second is."""

Train = Callable[[TrainConfig, "Path | None"], object]
"""Trains a run that is not judged, or resumes the one in a folder."""
Check = Callable[[TrainConfig], object]
"""Raises ``InputError`` if a run with this configuration cannot begin."""


def to_come(steps: int, further: int, tune: bool) -> str:
    """Returns what follows the first run, given the steps of the last one and how many encoders judge it, as text."""
    text = f"; then {'learning from it, and ' if tune else ''}{steps:,} steps with the labels"
    if not further:
        return text
    return f"{text}; {'all of it' if tune else 'these'} again for each of the {further} encoders that judge"


def is_sequence(config: TrainConfig) -> bool:
    """Returns whether labels and a teacher are to teach the encoder."""
    return config.learn and TEACHER in config.all_terms


def taught(config: TrainConfig, world: World, train: Train, check: Check = lambda _: None) -> TrainConfig:
    """Trains the first run, unless an earlier call has done so, and returns the configuration of the second.

    ``check`` is called before it with the configuration that the second would have without the first, since training
    may take long.
    """
    model = str(with_preset(config).model)
    options = {name: table for name, table in config.options.items() if name != TEACHER}
    terms = {
        name: tuple(term for term in getattr(config, name) if term != TEACHER)
        for name in ("loss_terms", "more_loss_terms")
        if name in config.values()
    }
    second = config.replace(**terms, options=options)
    name = second.name
    if name is None:
        settings = resolve(second, find_model)
        name = Path(world.agreed(lambda: str(_unnamed(settings, second)))).name
    check(second.replace(name=name, against=second.against or model, tune_teacher=False))
    shared = {key: value for key, value in config.values().items() if key in SHARED}
    teaching = {**GUARD, **config.options.get(TEACHER, {})}
    if config.tune_teacher:
        known = {key: value for key, value in shared.items() if key not in ("pooler", "prompt")}
        known |= {key: teaching[key] for key in ("model", "pooler", "prompt") if teaching.get(key) is not None}
        known |= {"labels": config.labels, "learn": True, "folds": config.folds, "name": f"{name}{TUNED}"}
        teaching["model"] = _once(TrainConfig(**known), train)
    begun = {"model": model, "name": f"{name}{SUFFIX}", "more_loss_terms": (TEACHER,), "options": {TEACHER: teaching}}
    best = _once(TrainConfig(**{**shared, **begun}), train)
    return second.replace(model=best, name=name, against=second.against or model)


def _unnamed(settings: Resolved, second: TrainConfig) -> Path:
    """Returns the folder of a second run that was given no name; raises ``InputError`` if the one before it is the same
    run, not finished."""
    used = [*takewhile(Path.exists, numbered_folders(settings))]
    last = used[-1] if used and list_checkpoints(used[-1]) else None
    apart = ("model", "against")  # what the first run determines

    def known(config: TrainConfig) -> dict[str, Any]:
        return {key: value for key, value in _compared(config).items() if key not in apart}

    if last is not None and not (last / "result.json").is_file() and known(_given(last)) == known(second):
        raise InputError(
            f"{last}: this run was interrupted; go on with {resuming(last)}, or give another run a --name of its own"
        )
    return choose_folder(settings)


def _once(config: TrainConfig, train: Train) -> str:
    """Trains a run, unless an earlier call has done so, and returns the folder of its encoder."""
    folder = Path(config.output) / str(config.name)
    finished = (folder / "result.json").is_file()
    if finished or list_checkpoints(folder):
        before, now = _compared(_given(folder)), _compared(config)
        if before != now:
            changed = min(key for key in {**before, **now} if before.get(key) != now.get(key))
            raise InputError(
                f"--name: {folder}, which was trained first, was trained with other values ({changed}); remove it, or "
                "choose another name"
            )
        if list_checkpoints(folder):  # none could be written if the disk was full
            train(resumed_config(folder), folder)
    else:
        train(config, None)
    return str(folder / "best")


def taught_without(config: TrainConfig, folder: Path, train: Train) -> str:
    """Trains the runs before that of ``config``, which has ``tune_teacher``, again beside the folder of a fold, by
    ``train``, which leaves the rows of the fold out; returns the folder of the encoder with which that run begins."""
    tuned, first = (_given(run) for run in _before(config))
    # Of the table of this run, whose rows the fold numbers, also if the runs before had another one.
    own = config if config.given is None else TrainConfig(**config.given)
    table = {name: getattr(own, name) for name in (*TABLE, "labels") if getattr(own, name) != getattr(tuned, name)}
    beside = {"output": str(folder.parent), **table}
    teacher = _once(tuned.replace(**beside, name=f"{folder.name}{TUNED}"), train)
    options = {TEACHER: {**first.options[TEACHER], "model": teacher}}
    beside.pop("labels", None)
    return _once(first.replace(**beside, name=f"{folder.name}{SUFFIX}", options=options), train)


def models_before(config: TrainConfig, base: str, models: Iterable[str]) -> list[str]:
    """Returns the models of a run, with those before the sequence in the place of ``base``, with which the run begins
    and which is trained anew for each fold: MODEL, the base of all, and whatever else the runs before name."""
    tuned, first = map(_given, _before(config))
    outside = [*models_of(tuned), *(each for each in models_of(first) if each != first.options[TEACHER]["model"])]
    return [each for model in models for each in (outside if model == base else [model])]


def begun_with(model: str, against: str | None) -> tuple[str, str]:
    """Returns the model with which the first run began, and what it learned, as a sentence, if ``model`` is its encoder
    and the second run is compared with that model; else ``model``, and ""."""
    first = run_of(model)
    given = None if first is None or not first.name.endswith(SUFFIX) else _given(first)
    if given is None or given.model != against or TEACHER not in given.options:
        return model, ""
    teacher, after = str(given.options[TEACHER].get("model")), ""
    tuned = run_of(teacher)
    if tuned is not None and tuned.name.endswith(TUNED):
        teacher, after = str(_given(tuned).model), ", after it had learned the labels"
    said = f"Before this run, the model learned the vectors of the teacher {public_name(teacher)}{after}."
    return str(given.model), said


def seconds_before(config: TrainConfig) -> float:
    """Returns how long the runs took that are trained anew for each fold."""
    return sum(float(read_json(run / "result.json", dict[str, Any])["seconds"]) for run in _before(config))


def _before(config: TrainConfig) -> tuple[Path, Path]:
    """Returns the folders of the runs before one that has ``tune_teacher``: that which taught the teacher the labels,
    and that which learned from it."""
    model = str(config.model)
    first = run_of(model)
    teacher = model if first is None else str(_given(first).options.get(TEACHER, {}).get("model"))
    tuned = None if first is None else run_of(teacher)
    if first is not None and tuned is not None and _given(tuned).learn:
        return tuned, first
    if Path(teacher).parent.name.endswith((SUFFIX, TUNED)) and not Path(teacher).exists():
        raise InputError(
            f"{teacher}: is gone, so that it cannot be trained anew for each fold; restore the folder of this run, or "
            "train all runs again with another --name"
        )
    raise InputError(
        f"--tune-teacher: {config.model} has not learned from a teacher that learned labels; name the teacher with "
        "--teacher MODEL, or omit --tune-teacher"
    )


def check(config: TrainConfig) -> None:
    """Raises ``InputError`` for ``tune_teacher`` without the runs before."""
    if config.tune_teacher:
        _before(config)


def _given(run: Path) -> TrainConfig:
    """Returns the values that were given for a run."""
    stored = TrainConfig.from_toml(run / CONFIG)
    return TrainConfig(**(stored.given or {}))


def _compared(config: TrainConfig) -> dict[str, Any]:
    """Returns the values that were given, without those of the folder and None, which a file does not hold."""
    values = config.values().items()
    return {key: value for key, value in values if key not in ("name", "output") and value is not None}

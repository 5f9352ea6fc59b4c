"""The configuration with which a run is resumed. This module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..folder.find import CONFIG, config_file, find_checkpoint
from .changes import check_changes, check_equal, may_change, same_value
from .config import SETTINGS, TrainConfig


def read_config(checkpoint: Path) -> TrainConfig:
    """Returns the configuration in the folder of a checkpoint; raises ``TornCheckpoint`` if the file is damaged."""
    return TrainConfig.from_toml(config_file(checkpoint))


def resumed_config(
    resume: str | Path,
    changes: dict[str, Any] | None = None,
    where: str = "--resume",
    remedy: str = "leave it out",
) -> TrainConfig:
    """Returns the configuration with which a run is resumed: the stored one with the changes in ``changes``.

    ``where`` and ``remedy`` are the beginning and the end of the message about a change that is not allowed.
    Raises ``InputError`` for a folder without a checkpoint, and for a change that is not allowed; see
    ``cse.options.Opt.may_change``.
    """
    folder = find_checkpoint(Path(resume))
    stored, file = read_config(folder), folder.parent.parent / CONFIG
    if file.exists():
        stored = check_equal(stored, TrainConfig.from_toml(file), str(file), "undo the change")
    if stored.precision == "auto":  # written by an older version, in which auto meant bf16 on CUDA, else fp32
        from ...encoder.device import pick_device

        cuda = pick_device(stored.device).startswith("cuda")
        stored = stored.replace(precision="bf16" if cuda else "fp32")
    # A value with which the run began is no change where it was resolved since, as a preset; so are other spellings of
    # paths, and auto, for which the run keeps the precision that was chosen when it began.
    begun = {} if stored.given is None else TrainConfig(**stored.given).values()
    kept = {name: value for name, value in begun.items() if name not in may_change()}
    kept |= {name: getattr(stored, name) for name, option in SETTINGS.items() if option.opt.paths}
    changes = {
        name: value
        for name, value in (changes or {}).items()
        if (name, value) != ("precision", "auto") and not (name in kept and same_value(name, value, kept[name]))
    }
    return check_changes(stored, changes, where, remedy)

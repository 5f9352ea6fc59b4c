"""The command ``cse train``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ...errors import InputError
from ...training.callbacks import score_text
from .. import options, printing
from ..options import group
from ..progress import ConsoleCallback, duration
from ..train_options import HEADINGS, given_values, setting_options

if TYPE_CHECKING:
    from ...training.settings.config import TrainConfig


class TrainCommand(options.GroupedCommand):
    """The command ``cse train``: its options are the settings of a run, then the options declared below."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        own, self.params = self.params, [each for each in self.params if isinstance(each, click.Argument)]
        self.params += [*setting_options(), *(each for each in own if each not in self.params)]
        self.headings = HEADINGS


@click.command("train", cls=TrainCommand)
@click.argument("corpus", nargs=-1)
@group("Model")
@options.option("--config", "config_file", metavar="FILE", help="config.toml of a run, to repeat that run.")
@group("Run")
@options.option(
    "--set",
    "settings",
    multiple=True,
    metavar="METHOD.OPTION=VALUE",
    help="Set an option of a method; see cse methods.",
)
@options.option("--resume", metavar="RUN", help="Resume or extend a run from its last checkpoint.")
@options.as_json
def train_command(
    as_json: bool, config_file: str | None, resume: str | None, settings: tuple[str, ...], **values: Any
) -> None:
    """Train an encoder on CORPUS (one sentence per line), or on the files the TF-IDF index was built from.

    The encoder is saved in the folder best/ of the run (see --output and --name), from which AutoModel and
    SentenceTransformer can load it. Values that are not given are taken from --preset, else from the defaults of the
    loss, else from the defaults of the model family. cse methods lists the augmentations and loss terms with their
    options, which are set in the configuration file or with --set, for example --set una.beta=0.3.
    """
    from ...registry import parse_setting
    from ...training.parts.data import check_source
    from ...training.settings.changes import repeated
    from ...training.settings.config import TrainConfig, read_toml
    from ...training.settings.precedence import merge, with_preset

    given, tables = given_values(values)
    for text in settings:
        method, option, value = parse_setting(text)
        tables.setdefault(method, {})[option] = value
    if resume is not None:
        _run(*_resumed(resume, {**given, **({"options": tables} if tables else {})}, config_file), as_json)
        return
    if "preset" in given and config_file:
        raise InputError("--preset: cannot be combined with --config; choose one")
    stored = read_toml(config_file) if config_file else {}
    base, before = repeated(stored, {**given, **({"options": tables} if tables else {})})
    # Validated before torch is imported, so that an invalid flag is reported immediately.
    config = with_preset(TrainConfig(**merge({**given, "options": tables}, base), given=before))
    check_source(config)
    _run(config, None, as_json)


def _resumed(resume: str, given: dict[str, Any], config_file: str | None) -> tuple[TrainConfig, str]:
    if config_file or "preset" in given:
        raise InputError("--resume: uses the configuration of the run; leave out --config and --preset")
    from ...training.loop import resumed_config

    return resumed_config(resume, given), resume


def _run(config: TrainConfig, resume: str | None, as_json: bool) -> None:
    from ...training.folder.leftovers import has_checkpoint
    from ...training.loop import train

    result = train(config, ConsoleCallback(), resume=resume)
    if int(os.environ.get("RANK", "0")):  # torchrun: rank 0 prints the result
        return
    resumable = has_checkpoint(result.folder)  # False if no checkpoint could be written
    lines = [
        f"{result.steps:,} steps in {duration(result.seconds)}"
        + (f", {result.synthetic_steps:,} of them with synthetic negatives" if result.synthetic_steps else ""),
        f"before  {score_text(result.before)}",
        f"after   {score_text(result.after)}",
        *result.notes,
        *printing.neighbours(result.neighbours),
        *([", ".join(f"{task} {score:.2f}" for task, score in result.sts.items())] if result.sts else []),
        *([f"train longer with: cse train --resume {result.folder} --max-steps N"] if resumable else []),
        f"{result.folder / 'best'}",
    ]
    printing.result(result.to_dict(), as_json, lines)

"""The command group ``cse``, and running it: messages of errors and interrupts, and the exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from .. import errors
from .._core import __version__, report_truncated_files
from ..background import STOPPING, handle_stops
from ..errors import EqualVectors, InputError, Interrupted, RunError, did_you_mean, sentence
from ..registry import declared, load
from . import printing

# The module of each command in cse.cli.commands, and its line of help: cse --help does not import the commands.
PLACES = {
    "build-tfidf": ("tfidf", "Build a TF-IDF index from a corpus."),
    "doctor": ("tfidf", "Check a corpus before training."),
    "merge-tfidf": ("tfidf", "Merge the indexes of several corpora."),
    "train": ("train", "Train a sentence encoder on a corpus."),
    "eval": ("evaluate", "Evaluate an encoder."),
    "compare": ("compare", "Compare encoders, with confidence intervals."),
    "runs": ("runs", "List the runs of a folder with their settings and scores."),
    "report": ("runs", "Write a report page about a run."),
    "augment": ("augment", "Write a synthetic hard negative for each sentence."),
    "explain": ("augment", "Show the TF-IDF score and the possible replacements of each word of a sentence."),
    "bench": ("augment", "Measure how fast hard negatives are made, compared with plain Python and nlpaug."),
    "encode": ("encode", "Encode sentences into embeddings."),
    "search": ("search", "Search the rows of a corpus by meaning."),
    "mine": ("search", "Make rows to train on from queries without labels."),
    "predict": ("predict", "Label the rows of a table by the classifier of a run."),
    "draw": ("predict", "Draw rows to label at random."),
    "export": ("export", "Export an encoder to ONNX, or make a fast static encoder of it."),
    "methods": ("methods", "List augmentations, loss terms and evaluations with their options."),
}
COMMANDS = {name: line for name, (_, line) in PLACES.items()}


class LazyGroup(click.Group):
    """A group that imports the module of a command only when the command is used.

    The entry points of the group ``cse.commands`` are commands of other packages, such as
    ``my-command = "my_package:my_command"``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted({point.name for point in declared("cse.commands")} - COMMANDS.keys())]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if name not in COMMANDS and not name.startswith("-") and name not in (known := self.list_commands(ctx)):
            ctx.fail(f"No such command {name!r}{did_you_mean(name, known)}.")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = import_module(f".commands.{PLACES[cmd_name][0]}", __package__)
            command: click.Command | None = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        else:
            points = [point for point in declared("cse.commands") if point.name == cmd_name]
            command = load(points[0], "command") if points else None
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. A broken pipe is handled here, because click would exit with code 1."""
        try:
            value = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return value
        except BrokenPipeError:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
            os._exit(141)  # if the signal is blocked

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = dict(COMMANDS)
        for name in self.list_commands(ctx)[len(COMMANDS) :]:
            try:
                command = self.get_command(ctx, name)
                lines[name] = command.get_short_help_str(limit=100) if command else ""
            except InputError as error:
                lines[name] = str(error)
        with formatter.section("Commands"):
            formatter.write_dl(list(lines.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cse")
def cli() -> None:
    """Train contrastive sentence embeddings on a corpus, with labels or without, and judge them on it.

    \b
    cse train sample --una                                      train an encoder        -> runs/<name>/
    cse train table.csv --column text --labels label            the labels judge it: better, worse or cannot tell
    cse train table.csv --column text --labels label --learn    a few labels also teach it
    cse compare runs/one runs/two                               is the second run better?
    """


REMOVED = {
    "--no-verify": "the checksum is always compared",
    "--verify": "the checksum is always compared",
    "--dry-run": "cse reproduce TABLE --print-commands prints what would run",
    "--int8": "quantize_dynamic of onnxruntime writes 8-bit weights; see docs/with.md",
    "--mteb": "mteb.evaluate takes a cse.Encoder; see docs/with.md",
}
"""Options of earlier versions, and what holds instead."""


def explained(error: click.ClickException) -> click.ClickException:
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    if removed := REMOVED.get(error.option_name):
        return click.UsageError(f"No such option {error.option_name}: {removed}.", ctx=error.ctx)
    parameters = error.ctx.command.get_params(error.ctx)
    flags = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("--")]
    meant = did_you_mean(error.option_name.replace("_", "-"), flags)
    return click.UsageError(f"No such option {error.option_name}{meant}.", ctx=error.ctx)


def said_by_another_rank(text: str) -> bool:
    """Returns whether another process of torchrun on this machine has reported this text, and so created a file."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    import hashlib

    name = f"cse-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
    try:
        with suppress(IndexError):
            open(Path(path).parents[1] / name, "x").close()
    except OSError as error:
        return isinstance(error, FileExistsError)
    return False


def main() -> NoReturn:
    """Runs a command and exits.

    Exit codes: 0, success; 1, internal error, a run that failed after it began, or an encoder whose vectors are all
    equal; 2, invalid input or flag, or a file
    that cannot be read or written; 129, 130, 143: ended by SIGHUP (a closed terminal), SIGINT or SIGTERM. If the reader
    of standard output closes the pipe, SIGPIPE ends the process (141 in a shell), as is usual for commands like
    ``cat``.
    """
    stopped_by = [signal.SIGINT]

    def stop(number: int, _: object) -> None:
        stopped_by.append(signal.Signals(number))
        raise KeyboardInterrupt  # handled like Ctrl-C, so that temporary files are removed

    errors.SPEAKS_OF_FLAGS = True
    show = warnings.showwarning

    def say(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, errors.ModelWarning):  # without the line of code
            printing.say(f"warning: {message}")
        else:
            show(message, category, *place)

    warnings.showwarning = say  # type: ignore[assignment]
    handle_stops(stop)
    report_truncated_files()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the encoding of the stream lacks is shown as \uXXXX
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    code = 0
    with suppress(KeyboardInterrupt):  # while a message is printed
        code = _run(stopped_by)
    for number in STOPPING:  # while Python ends, a KeyboardInterrupt would be ignored
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if len(stopped_by) > 1:  # Python also ignores a KeyboardInterrupt in a finalizer
        code = 128 + stopped_by[-1]
        text = "Interrupted." if stopped_by[-1] == signal.SIGINT else "Terminated."
        if not said_by_another_rank(text):
            with suppress(OSError):  # the terminal may be closed
                printing.echo(text, err=True)
    sys.exit(code)


def _run(stopped_by: list[signal.Signals]) -> int:
    try:
        code: Any = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error = explained(error)
        if not said_by_another_rank(error.format_message()):
            shown = io.StringIO()
            error.show(shown)
            printing.say(shown.getvalue().rstrip("\n"))
        return 2
    except (InputError, OSError, RunError) as error:
        rank = os.environ.get("RANK", "0")
        if not said_by_another_rank(sentence(error)):
            printing.echo(f"Error{'' if rank == '0' else f' on rank {rank}'}: {sentence(error)}", err=True)
        return 1 if isinstance(error, (RunError, EqualVectors)) else 2
    except (click.Abort, KeyboardInterrupt) as error:
        stopped = error.__cause__ if isinstance(error, click.Abort) else error
        if isinstance(stopped, Interrupted):
            return stopped.code
        stopped_by.append(stopped_by[-1])
    else:
        return code if isinstance(code, int) else 0
    return 0

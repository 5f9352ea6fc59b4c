"""The command line: imports the module of a command when it runs, and reports errors in one place."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import InputError, sentence

# Name -> help line, so that cse --help imports no command.
COMMANDS = {
    "build-tfidf": "Build a TF-IDF index from a corpus.",
    "doctor": "Check a corpus before it is used.",
    "merge-tfidf": "Merge the indexes of several corpora.",
    "train": "Train a sentence encoder on a corpus.",
    "eval": "Evaluate an encoder.",
    "augment": "Write a synthetic hard negative for each sentence.",
    "explain": "Show the TF-IDF, rank and replacements of each word of a sentence.",
    "encode": "Encode sentences into embeddings.",
    "methods": "List augmentations, loss terms and evaluations with their options.",
}


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a typical first use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports ``cse.cli.<name>``."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{cmd_name.replace('-', '_')}", __name__)
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; a broken pipe is handled here, since click would turn it into exit code 1."""
        try:
            value = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return value
        except BrokenPipeError:
            _end_by_sigpipe()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table above."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cse")
def cli() -> None:
    """Contrastive sentence embeddings: train an encoder on your own sentences.

    \b
    cse build-tfidf corpus.txt          build the index         -> tfidf/
    cse train --loss focal --una        train on it             -> runs/<name>/
    cse eval runs/<name>/best --data DIR                        evaluate it on STS
    """


def main() -> NoReturn:
    """Runs a command.

    Exit code 0: done; 2: a mistake in the input or a flag; 1: a fault of cse; 130: interrupted; 143: terminated. If the
    reader of standard output leaves early, the process ends by SIGPIPE, as ``cat`` does (141 in a shell).
    """
    terminated = []

    def stop(*_: object) -> None:
        terminated.append(True)
        raise KeyboardInterrupt  # the same way out as Ctrl-C: temporary files are removed

    signal.signal(signal.SIGTERM, stop)
    try:
        code: Any = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (InputError, OSError) as error:
        click.echo(f"Error: {sentence(error)}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Terminated." if terminated else "Interrupted.", err=True)
        sys.exit(143 if terminated else 130)
    sys.exit(code if isinstance(code, int) else 0)


def _end_by_sigpipe() -> NoReturn:
    """Ends the process quietly, as the shell expects of a filter whose reader has left."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(141)  # where the signal is blocked

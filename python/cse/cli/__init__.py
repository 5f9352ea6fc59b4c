"""The command line: a group that imports a command's module when it is called, and speaks of errors in one place."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import InputError, sentence

# name -> the line cse --help shows; written here so that help imports no command.
COMMANDS = {
    "build-tfidf": "Count a corpus into a TF-IDF index.",
    "doctor": "Look a corpus over before it is used.",
    "merge-tfidf": "Join the indexes of several corpora.",
    "train": "Train a sentence encoder on a corpus.",
    "eval": "Score an encoder on the STS tasks.",
    "augment": "Write a synthetic hard negative for each sentence.",
    "explain": "Show how UNA sees each word of a sentence.",
    "encode": "Turn sentences into vectors.",
}


class LazyGroup(click.Group):
    """Knows its commands by name; a command's module is imported when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a first walk through them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports ``cse.cli.<name>``."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{cmd_name.replace('-', '_')}", __name__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table above."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cse")
def cli() -> None:
    """Contrastive sentence embeddings, from a text file to a trained encoder.

    \b
    cse build-tfidf corpus.txt          count the corpus        -> tfidf/
    cse train --loss focal --una        train on it             -> runs/<name>/
    cse eval runs/<name>/best --data DIR                        score it on the STS tasks
    """


def main() -> NoReturn:
    """Runs a command: exit code 0 done, 2 the user's input or flags, 1 ours, 130 interrupted."""
    try:
        code: Any = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except BrokenPipeError:
        _close_output()
        sys.exit(0)
    except (InputError, OSError) as error:
        click.echo(f"Error: {sentence(error)}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _close_output() -> None:
    """Whoever read our output has left; Python would complain when it flushes at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

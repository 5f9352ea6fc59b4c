"""Runs the program; if a command fails or is interrupted, prints a message and sets the exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from ..errors import InputError, Interrupted, RunError, sentence
from .group import cli
from .mistakes import explained, said_by_another_rank

__all__ = ["main"]


def main() -> NoReturn:
    """Runs a command and exits.

    Exit codes: 0, success; 1, internal error, or a run that failed after it began; 2, invalid input or flag, or a file
    that cannot be read or written; 130, interrupted (SIGINT); 143, terminated (SIGTERM). If the reader of standard
    output closes the pipe, SIGPIPE ends the process (141 in a shell), as is usual for commands like ``cat``.
    """
    terminated = []

    def stop(*_: object) -> None:
        terminated.append(True)
        raise KeyboardInterrupt  # handled like Ctrl-C, so that temporary files are removed

    signal.signal(signal.SIGTERM, stop)
    try:
        code: Any = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error = explained(error)
        if not said_by_another_rank(error.format_message()):
            error.show()
        sys.exit(2)
    except (InputError, OSError, RunError) as error:
        # With torchrun, several ranks may fail. A message that several ranks share is printed
        # once. Messages of ranks above 0 name the rank.
        rank = os.environ.get("RANK", "0")
        if not said_by_another_rank(sentence(error)):
            click.echo(f"Error{'' if rank == '0' else f' on rank {rank}'}: {sentence(error)}", err=True)
        sys.exit(1 if isinstance(error, RunError) else 2)
    except (click.Abort, KeyboardInterrupt) as error:
        stopped = error.__cause__ if isinstance(error, click.Abort) else error
        if isinstance(stopped, Interrupted):
            sys.exit(stopped.code)
        text = "Terminated." if terminated else "Interrupted."
        if not said_by_another_rank(text):
            click.echo(text, err=True)
        sys.exit(143 if terminated else 130)
    sys.exit(code if isinstance(code, int) else 0)

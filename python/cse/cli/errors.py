"""Runs the program; if a command fails or is interrupted, prints a message and sets the exit code.

Also: suggestions for unknown options, and a check by which torchrun processes report a common error only once.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from ..errors import InputError, Interrupted, RunError, did_you_mean, sentence
from .group import cli

# Maps option names from other trainers (transformers, sentence-transformers) and from papers to options of cse.
OTHER_NAMES = {
    "alpha": "hard-negative-weight",
    "bs": "batch-size",
    "bf16": "precision",
    "dataset": "data",
    "eval-steps": "eval-every",
    "fp16": "precision",
    "gpu": "device",
    "gradient-accumulation-steps": "accumulate",
    "gradient-clip": "max-grad-norm",
    "learning-rate": "lr",
    "logging-steps": "log-every",
    "lr-scheduler-type": "lr-scheduler",
    "max-seq-length": "max-length",
    "model-name": "model",
    "model-name-or-path": "model",
    "num-epochs": "epochs",
    "num-train-epochs": "epochs",
    "num-workers": "threads",
    "output-dir": "output",
    "per-device-train-batch-size": "batch-size",
    "pooling": "pooler",
    "save-steps": "save-every",
    "save-total-limit": "keep-checkpoints",
    "scheduler": "lr-scheduler",
    "steps": "max-steps",
    "tau": "temperature",
    "temp": "temperature",
    "warmup-ratio": "warmup",
}


def explained(error: click.ClickException) -> click.ClickException:
    """Returns the error; for an unknown option, returns a new error that suggests a similar option if there is one."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    flags = [
        flag
        for parameter in error.ctx.command.get_params(error.ctx)
        for flag in parameter.opts
        if flag.startswith("--")
    ]
    name = error.option_name
    other = f"--{OTHER_NAMES.get(name.lstrip('-').replace('_', '-').lower(), '')}"
    meant = f" (did you mean {other}?)" if other in flags else did_you_mean(name, flags)
    return click.UsageError(f"No such option {name}{meant}.", ctx=error.ctx)


def said_by_another_rank(text: str) -> bool:
    """Returns whether another process that torchrun started on this machine has already reported this text.

    Invalid input is an error in every process, but is reported only once. The first call with a text marks it as
    reported by creating a file in the temporary folder that torchrun makes for the error files of its processes.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    import hashlib

    name = f"cse-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
    try:
        with suppress(IndexError), open(Path(path).parents[1] / name, "x"):
            return False
    except FileExistsError:
        return True
    except OSError:
        pass
    return False


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

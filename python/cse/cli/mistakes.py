"""Suggestions for unknown options, and a check by which torchrun processes report a common error only once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from ..errors import did_you_mean

__all__ = ["explained", "said_by_another_rank"]

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

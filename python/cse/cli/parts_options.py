"""Options of commands that can write one output part per input file.

This module does not import the code that makes the parts, so that ``--help`` is fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..errors import InputError
from . import options

__all__ = ["check_engine", "engine", "gpus_per_worker", "parts", "wants_parts"]

parts = options.option("--parts", "as_parts", is_flag=True, help="Write one part per input file, to the folder -o.")
engine = options.option(
    "--engine", default="local", metavar="local|ray", help="Run on this machine, or on a Ray cluster."
)
gpus_per_worker = options.option(
    "--gpus-per-worker", type=click.FloatRange(min=0), metavar="G", help="GPUs per Ray worker.", default_text="0"
)


def check_engine(name: str) -> None:
    """Raises ``InputError`` for an unknown engine."""
    if name not in ("local", "ray"):
        raise InputError(f"--engine: {name!r} is unknown; choose local or ray")


def wants_parts(as_parts: bool, engine: str, output: str | None, sentences: Sequence[str]) -> bool:
    """Returns whether a command makes parts; raises ``InputError`` for options that cannot be combined."""
    check_engine(engine)
    if not as_parts and engine == "local":
        return False
    flag = "--parts" if as_parts else f"--engine {engine}"
    if output is None:
        raise InputError(f"{flag}: writes a folder; name it with -o")
    if not sentences or "-" in sentences:
        raise InputError(f"{flag}: makes one part per file, and standard input is not a file; name the files")
    return True

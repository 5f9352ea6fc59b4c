"""Options that several commands share.

This module does not import the code that encodes texts or makes parts, so that ``--help`` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal

from .. import options as declared
from ..encoder.pooling import POOLERS
from ..errors import InputError
from ..options import Opt
from . import printing


def model_folder(name: str) -> str:
    """Returns a model name unchanged; for the folder of a run, prints and returns the path of its encoder, ``best``."""
    from ..encoder.resolve import best_of_run, check_local

    if ":" not in name:  # KIND:WHAT, of cse.encoder.encoders
        check_local(name)

    folder = best_of_run(name)
    if folder != name:
        printing.echo(f"{name}: the folder of a run; using {folder}", err=True)
    return folder


def check_corpus(files: Sequence[str], column: str | None) -> None:
    """Raises ``InputError`` for a file or column that is missing, before torch is imported; ``-`` is standard input."""
    from ..data import readers

    for item in readers.resolve(files or ["-"], column):
        if isinstance(item, str) and item != "-" and not os.path.exists(item):
            raise InputError(f"{item}: no such file; check the path")


def passage_size(text: str | None) -> int | str | None:
    """Returns the value of --passages: a number, ``max`` or None; raises ``InputError`` for any other value."""
    if text is None or text == "max":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--passages must be a number of tokens or max, got {text!r}") from None


def wants_parts(as_parts: bool, engine: str, output: str | None, sentences: Sequence[str]) -> bool:
    """Returns whether a command makes parts; raises ``InputError`` for options that cannot be combined."""
    if not as_parts and engine == "local":
        return False
    flag = "--parts" if as_parts else f"--engine {engine}"
    if output is None:
        raise InputError(f"{flag} writes a folder; name it with -o")
    if not sentences or "-" in sentences:
        raise InputError(f"{flag} makes one part per file, and standard input is not a file; name the files")
    return True


AsJson = Annotated[bool, Opt("Print one JSON object.", flag="--json")]
PoolerName = Annotated[declared.Pooler | None, Opt(f"Pooling: {', '.join(POOLERS)}.", default="the model's, else avg")]
FirstDims = Annotated[int | None, Opt("Keep only the first N dimensions.", "N", "all")]
AsParts = Annotated[bool, Opt("Write one part per input file, to the folder -o.", flag="--parts")]
Engine = Annotated[Literal["local", "ray"], Opt("Run on this machine, or on a Ray cluster.")]
IdColumn = Annotated[str | None, Opt("Column with the row ids, if CORPUS is a table.", "NAME", flag="--id")]
Passages = Annotated[
    str | None, Opt("Rank rows by their best passage of at most N tokens; max: the model's maximum length.", "N|max")
]
IndexFolder = Annotated[
    str | None,
    Opt("Folder of a cse search index to use or create.", "DIR", "embeddings are not stored", flag="--index"),
]

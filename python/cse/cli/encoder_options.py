"""Options of the commands that encode with a model."""

from __future__ import annotations

from ..errors import InputError
from .options import option

__all__ = ["parse_dims", "prompt"]

prompt = option(
    "--prompt", metavar="NAME|TEXT", help="Text before each sentence.", default_text="the model's default prompt"
)


def parse_dims(text: str | None) -> list[int]:
    """Returns numbers of dimensions separated by commas, in descending order; empty for None.

    Raises ``InputError`` for anything else, or a number below 1.
    """
    if text is None:
        return []
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise InputError(f"--dims {text}: must be numbers of dimensions separated by commas, like 256,128,64")
    return sorted(set(found), reverse=True)

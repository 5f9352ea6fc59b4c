"""Options of the commands that encode with a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import InputError
from .options import option

__all__ = ["evaluated_passages", "first_dims", "passage_size", "prompt"]

prompt = option(
    "--prompt",
    metavar="NAME|TEXT",
    help="Text to put before each sentence, or the name of one of the model's prompts.",
    default_text="the model's default prompt",
)

first_dims = option("--dims", type=int, metavar="N", help="Keep only the first N dimensions.", default_text="all")


def passage_size(text: str | None) -> int | str | None:
    """Returns the value of --passages: a number, ``max`` or None; raises ``InputError`` for any other value."""
    if text is None or text == "max":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--passages: must be a number of tokens or max, got {text!r}") from None


def evaluated_passages(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds ``--passages``, which sets the option ``passages`` of the suite ``retrieval``."""

    @functools.wraps(command)
    def call(*, passages: str | None, suites: tuple[str, ...], settings: tuple[str, ...], **values: Any) -> None:
        size = passage_size(passages)
        if size is not None:
            if "retrieval" not in suites:
                raise InputError("--passages: applies only to --suite retrieval; add it, or leave out --passages")
            settings = (*settings, f"retrieval.passages={0 if size == 'max' else size}")
        command(suites=suites, settings=settings, **values)

    return option(
        "--passages",
        metavar="N|max",
        help="Rank documents by their best passage of at most N tokens; max: the model's maximum length.",
    )(call)

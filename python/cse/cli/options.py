"""Options that several commands share, so that they are named and explained alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """A click option that shows its default."""
    settings.setdefault("show_default", True)
    return click.option(*names, **settings)


def reading(function: F) -> F:
    """How text is read."""
    for decorate in (
        option(
            "--max-line-bytes",
            default=1 << 20,
            type=click.IntRange(1, 2**40),
            metavar="N",
            help="Refuse longer rows.",
        ),
        option(
            "--encoding-errors",
            default="strict",
            metavar="strict|replace",
            help="What to do with bytes that are not UTF-8.",
        ),
    ):
        function = decorate(function)
    return function


def drawing(function: F) -> F:
    """How UNA's negatives are drawn."""
    for decorate in (
        option(
            "--radius",
            type=click.IntRange(1, 2**40),
            metavar="N",
            help="Draw from N ranks to either side.  [default: min(4000, V/100)]",
        ),
        option("--beta", default=0.5, help="About the share of words replaced, 0 to 1."),
    ):
        function = decorate(function)
    return function


surface = option("--surface", default="keep", metavar="keep|plain", help="Keep the text's form, or plain terms.")
tfidf = option("--tfidf", default="tfidf", metavar="DIR", help="Folder of the TF-IDF index.")
seed = option("--seed", default=0, type=click.IntRange(0, 2**64 - 1), metavar="N", help="Of every random choice.")
threads = option("--threads", default=0, type=click.IntRange(min=0), metavar="N", help="0: all cores.")
device = option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
pooler = option(
    "--pooler",
    metavar="NAME",
    help="cls, cls_before_pooler, avg, avg_top2, avg_first_last or avg_embed_last.  [default: the model's own]",
)
as_json = option("--json", "as_json", is_flag=True, show_default=False, help="Print one JSON object.")

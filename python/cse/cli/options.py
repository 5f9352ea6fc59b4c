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


def _all(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


threads = option("--threads", default=0, type=click.IntRange(min=0), metavar="N", help="0: all cores.")

# How text is read.
reading = _all(
    option("--column", metavar="NAME", help="Of .csv, .tsv, .jsonl and .parquet files: the one with the sentences."),
    option(
        "--encoding-errors",
        default="strict",
        metavar="strict|replace",
        help="What to do with bytes that are not UTF-8.",
    ),
    option("--max-line-bytes", default=1 << 20, type=click.IntRange(1, 2**40), metavar="N", help="Refuse longer rows."),
)

# What a term is.
words = _all(
    option("--tokenizer", default="unicode", metavar="unicode|whitespace|treebank", help="Word rules."),
    option("--lowercase/--no-lowercase", default=True, help="Lower-case terms."),
    option("--nfkc/--no-nfkc", default=False, help="Make compatibility forms one (Unicode NFKC)."),
)

# Which index, and how UNA's negatives are drawn from it.
drawing = _all(
    option("--tfidf", default="tfidf", metavar="DIR", help="Folder of the TF-IDF index."),
    option(
        "--min-df", default=0, type=click.IntRange(0, 2**40), metavar="N", help="Only terms in N sentences or more."
    ),
    option("--max-terms", type=click.IntRange(1, 2**32), metavar="N", help="Only the N most frequent terms."),
    option("--beta", default=0.5, help="About the share of words replaced, 0 to 1."),
    option(
        "--radius",
        metavar="N|P%",
        help="Draw from N ranks to either side, or P per cent of the V terms.  [default: min(4000, V/100)]",
    ),
    option("--step2", default="tfidf", metavar="tfidf|random", help="Which words: weighty ones, or any."),
    option("--step3", default="radius", metavar="radius|random", help="By what: a near rank, or any term."),
    option(
        "--surface",
        metavar="keep|plain",
        help="Keep the text's form, or plain terms.  [default: keep; treebank: plain]",
    ),
)

seed = option("--seed", default=0, type=click.IntRange(0, 2**64 - 1), metavar="N", help="Of every random choice.")
device = option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
pooler = option(
    "--pooler",
    metavar="NAME",
    help="cls, cls_before_pooler, avg, avg_top2, avg_first_last or avg_embed_last.  [default: the model's own]",
)
as_json = option("--json", "as_json", is_flag=True, show_default=False, help="Print one JSON object.")

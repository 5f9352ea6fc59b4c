"""The command ``cse explain``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..tfidf.index import TfidfIndex
from . import options, printing


@click.command("explain")
@click.argument("sentence")
@options.drawing
@options.seed
@options.option("--samples", default=4, type=click.IntRange(min=0), help="Number of sampled replacements per word.")
@options.as_json
def command(
    sentence: str, tfidf: str, min_df: int, max_terms: int | None, samples: int, as_json: bool, **drawing: Any
) -> None:
    """Show the TF-IDF, replacement probability, rank and sampled replacements of each word of SENTENCE."""
    printing.check_output()
    index = TfidfIndex.open(tfidf, min_df=min_df, max_terms=max_terms)
    words = index.explain(sentence, samples=samples, **drawing)
    radius = index.ranks(drawing["radius"])
    if as_json:
        value = {
            "sentence": sentence,
            "radius": radius,
            "terms": len(index),
            "words": [asdict(w) for w in words],
        }
        printing.result(value, True, [])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{len(index):,} terms, {printing.span(radius, len(index))}, beta {drawing['beta']:g}"
    table = Table(title=title, title_justify="left")
    for name in ("word", "df", "tf-idf", "p(replace)", "rank"):
        table.add_column(name, justify="left" if name == "word" else "right")
    table.add_column("samples", overflow="fold")
    unseen = "not in index" if min_df <= 1 and max_terms is None else "not in index or excluded"
    for word in words:
        table.add_row(
            Text(word.word),
            f"{word.df:,}" if word.seen else unseen,
            f"{word.score:.4f}",
            f"{word.p:.3f}",
            f"{word.rank:,}",
            Text(", ".join(word.samples) or ("-" if word.replaceable else "joined to another word: never replaced")),
        )
    Console().print(table)
    if not words:
        click.echo("The sentence has no words; cse augment would return it unchanged.")
    elif len({word.score for word in words}) == 1 and {drawing["replace_which"], drawing["replace_with"]} != {"random"}:
        click.echo("All words have the same score: one of them, chosen at random, is always replaced.")

"""The command ``cse duplicates``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import shortened
from . import corpus_index, options, printing
from .corpus_index import Encoding, by_row, stored
from .progress import counting
from .table_files import check_table, write_table

if TYPE_CHECKING:
    from ..search.index import SearchIndex

NAMES = ("row_a", "row_b", "cosine", "id_a", "id_b", "text_a", "text_b")


@click.command("duplicates")
@click.argument("model")
@click.argument("corpus", nargs=-1, required=True)
@options.option("--threshold", default=0.9, type=float, metavar="COSINE", help="Minimum cosine of a pair, -1 to 1.")
@options.option("-o", "--output", metavar="FILE", help="Write all pairs to this .csv or .jsonl file.")
@options.option(
    "--top",
    default=20,
    type=click.IntRange(min=0),
    metavar="N",
    help="Maximum number of groups to print, the largest first.",
)
@options.option("--id", "id_column", metavar="NAME", help="Column with the row ids, if CORPUS is a table.")
@stored
@corpus_index.encoding
def command(
    model: str,
    corpus: tuple[str, ...],
    threshold: float,
    output: str | None,
    top: int,
    id_column: str | None,
    folder: str | None,
    encoding: Encoding,
    as_json: bool,
) -> None:
    """Find rows of CORPUS with similar embeddings: all pairs with a cosine of at least --threshold, and their groups.

    Two rows are in the same group if they are connected by pairs, directly or through other rows. Every row is compared
    with every other, so the time is quadratic in the number of rows. Blank rows are left out.
    """
    printing.check_output()
    from ..search.pairs import Groups, check_threshold, near_pairs

    check_threshold(threshold)
    check_table(output)
    encoder = encoding.encoder(model)
    index = by_row(encoding.index(encoder, corpus, folder, id_column=id_column))
    started = time.perf_counter()
    count = 0
    with counting("comparing", len(index.vectors), "rows") as more:
        groups = Groups(len(index.vectors))

        def blocks() -> Iterator[tuple[Any, Any, Any]]:
            nonlocal count
            for first, second, cosines in near_pairs(index.unit_vectors, threshold, more):
                groups.add(first, second)
                count += len(first)
                yield index.rows[first], index.rows[second], cosines

        if output is None:
            for _ in blocks():
                pass
        else:
            write_table(output, NAMES, pair_records(blocks(), index))
    found = [index.rows[members] for members in groups.members()]
    seconds = time.perf_counter() - started
    redundant = sum(len(rows) - 1 for rows in found)
    if as_json:
        listed = [{"rows": rows.tolist(), "ids": index.ids(rows), "examples": index.texts(rows[:3])} for rows in found]
        summary = {
            "rows": len(index),
            "threshold": threshold,
            "pairs": count,
            "redundant_rows": redundant,
            "output": output,
            "seconds": round(seconds, 3),
            "groups": listed,
        }
        printing.result(summary, True, [])
        return
    for rows in found[:top]:
        click.echo(f"{len(rows):,} rows")
        for row, name, text in zip(rows[:5].tolist(), index.ids(rows[:5]), index.texts(rows[:5]), strict=True):
            click.echo(f"  {name if id_column else row}  {shortened(text)}")
        if len(rows) > 5:
            click.echo(f"  and {len(rows) - 5:,} more")
    printing.say(
        f"{count:,} pairs with a cosine of at least {threshold:g} in {seconds:.1f} s: {len(found):,} groups; "
        f"{redundant:,} of {len(index):,} rows would be removed if each group kept one row"
    )


def pair_records(blocks: Iterable[tuple[Any, Any, Any]], index: SearchIndex) -> Iterator[tuple[Any, ...]]:
    """Yields the two row numbers, the cosine, the two ids and the two texts of each pair."""
    for first, second, cosines in blocks:
        ids, texts = ([look(first), look(second)] for look in (index.ids, index.texts))
        yield from zip(first.tolist(), second.tolist(), cosines.tolist(), *ids, *texts, strict=True)

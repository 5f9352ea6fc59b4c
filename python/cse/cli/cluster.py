"""The command ``cse cluster``."""

from __future__ import annotations

import time

import click

from ..errors import InputError, shortened
from . import corpus_index, options, printing
from .corpus_index import Encoding, by_row, stored
from .progress import counting
from .table_files import check_table, write_table


@click.command("cluster")
@click.argument("model")
@click.argument("corpus", nargs=-1, required=True)
@options.option(
    "--method",
    default="kmeans",
    type=click.Choice(("kmeans", "hdbscan")),
    metavar="kmeans|hdbscan",
    help="kmeans: k-means with --groups groups; hdbscan: density-based groups of at least --min-size rows.",
)
@options.option(
    "--groups",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of groups, for kmeans.",
    default_text="sqrt(rows / 2), at least 2, at most 200",
)
@options.option(
    "--min-size",
    default=10,
    type=click.IntRange(min=2),
    metavar="N",
    help="Minimum number of rows per group, for hdbscan.",
)
@options.option(
    "--tfidf",
    metavar="DIR",
    help="TF-IDF index that scores the words of a group.",
    default_text="built from the corpus",
)
@options.option(
    "--words", default=6, type=click.IntRange(min=1), metavar="N", help="Number of words to print per group."
)
@options.option(
    "--examples", default=3, type=click.IntRange(min=0), metavar="N", help="Number of examples to print per group."
)
@options.option("-o", "--output", metavar="FILE", help="Write row, id and group to this .csv or .jsonl file.")
@options.option("--id", "id_column", metavar="NAME", help="Column with the row ids, if CORPUS is a table.")
@options.seed
@stored
@corpus_index.encoding
def command(
    model: str,
    corpus: tuple[str, ...],
    method: str,
    groups: int | None,
    min_size: int,
    tfidf: str | None,
    words: int,
    examples: int,
    output: str | None,
    id_column: str | None,
    seed: int,
    folder: str | None,
    encoding: Encoding,
    as_json: bool,
) -> None:
    """Group the rows of CORPUS by their embeddings, and print the size, words and examples of each group.

    The words of a group are the terms whose mean TF-IDF in the group most exceeds their mean TF-IDF in the rows of all
    groups. The examples are the rows nearest to the mean embedding of the group. Groups are numbered from 1, the
    largest first. With hdbscan, some rows may be in no group, and the time is quadratic in the number of rows.
    """
    printing.check_output()
    if groups is not None and method != "kmeans":
        raise InputError(
            "--groups: hdbscan finds the number of groups itself; leave out --groups, or use --method kmeans"
        )
    check_table(output)
    from ..tfidf.index import TfidfIndex

    weights = None if tfidf is None else TfidfIndex.open(tfidf)
    encoder = encoding.encoder(model)
    index = by_row(encoding.index(encoder, corpus, folder, id_column=id_column))
    from ..search.clusters import cluster, describe

    started = time.perf_counter()
    labels = cluster(index, method, groups=groups, smallest=min_size, seed=seed)
    with counting("reading words", len(labels), "rows") as more:
        found = describe(index, labels, weights, words=words, examples=examples, progress=more)
    seconds = time.perf_counter() - started
    left_out = int((labels < 0).sum())
    if output is not None:
        of_row = {int(row): number for number, each in enumerate(found, 1) for row in each.rows}
        rows = sorted(of_row)
        write_table(
            output, ("row", "id", "group"), zip(rows, index.ids(rows), map(of_row.__getitem__, rows), strict=True)
        )
    if as_json:
        listed = [
            {
                "group": number,
                "rows": len(each.rows),
                "words": each.words,
                "examples": index.texts(each.examples),
                "members": each.rows.tolist(),
            }
            for number, each in enumerate(found, 1)
        ]
        summary = {
            "rows": len(index),
            "method": method,
            "left_out": left_out,
            "output": output,
            "seconds": round(seconds, 3),
            "groups": listed,
        }
        printing.result(summary, True, [])
        return
    for number, each in enumerate(found, 1):
        click.echo(f"{number:4}  {len(each.rows):,} rows: {', '.join(each.words)}")
        for text in index.texts(each.examples):
            click.echo(f"        {shortened(text)}")
    unused = f", {left_out:,} rows in no group" if left_out else ""
    printing.say(f"{len(labels):,} rows by {method} in {seconds:.1f} s: {len(found):,} groups{unused}")

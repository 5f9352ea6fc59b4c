"""The command ``cse mine``."""

from __future__ import annotations

import time

import click

from ..errors import InputError
from . import corpus_index, options, printing
from .corpus_index import Encoding, by_row, stored
from .progress import counting
from .table_files import check_table, write_table

NAMES = ("anchor", "positive", "negative")


@click.command("mine")
@click.argument("model")
@click.argument("corpus", nargs=-1, required=True)
@options.option("--queries", required=True, metavar="FILE", help="Table with anchors and positives.")
@options.option("--columns", metavar="A,P", help="Columns of anchors and positives.", default_text="recognised by name")
@options.option("-o", "--output", required=True, metavar="FILE", help="The .csv or .jsonl file to write.")
@options.option("--ranks", default="1-100", metavar="FIRST-LAST", help="Ranks from which negatives are taken.")
@options.option(
    "--margin",
    default="0.05",
    metavar="COSINE|none",
    help="Minimum difference: cosine of the positive minus cosine of the negative.",
)
@options.option("--negatives", default=1, type=click.IntRange(min=1), metavar="N", help="Maximum negatives per pair.")
@options.option(
    "--by",
    default="encoder",
    type=click.Choice(("encoder", "bm25")),
    metavar="encoder|bm25",
    help="Rank the rows by cosine (encoder) or by BM25.",
)
@options.option(
    "--pick",
    default="top",
    type=click.Choice(("top", "random")),
    metavar="top|random",
    help="Which candidates to take: those ranked highest, or random ones.",
)
@options.seed
@stored
@corpus_index.encoding
def command(
    model: str,
    corpus: tuple[str, ...],
    queries: str,
    columns: str | None,
    output: str,
    ranks: str,
    margin: str,
    negatives: int,
    by: str,
    pick: str,
    seed: int,
    folder: str | None,
    encoding: Encoding,
    as_json: bool,
) -> None:
    """Find hard negatives in CORPUS for the pairs of --queries, and write triples for cse train --pairs.

    Negatives are rows of CORPUS that rank high in a search for the anchor. Two kinds of rows are left out: those with
    the text of the anchor or of one of its positives, and those whose cosine with the anchor exceeds the positive's
    cosine minus --margin, because many of them are positives too. Pairs without a negative are not written.
    """
    printing.check_output()
    from ..data.pairs import open_pairs
    from ..search.mining import Mining, parse_ranks

    check_table(output)
    mining = Mining(parse_ranks(ranks), parse_margin(margin), negatives, by, pick, seed)
    try:
        pairs = open_pairs([queries], columns.split(",") if columns else [])
        complete = pairs.complete()
    except InputError as error:
        raise InputError(str(error).replace("--pairs", "--queries")) from None
    anchors, positives = pairs.anchors.take(complete), pairs.positives.take(complete)
    if by == "bm25":
        from ..search.bm25 import library

        library()
    encoder = encoding.encoder(model)
    index = by_row(encoding.index(encoder, corpus, folder))
    if by == "bm25":
        with counting("BM25", len(index), "rows") as more:
            index.bm25(more)
    started = time.perf_counter()
    triples: list[tuple[str, str, str]] = []
    without = 0
    gaps: list[float] = []
    with counting("mining", len(anchors), "pairs") as more:
        for found in mining(index, anchors, positives, batch_size=encoding.batch_size, progress=more):
            without += not len(found.rows)
            gaps += (found.positive - found.cosines).tolist()
            triples += [(anchors[found.pair], positives[found.pair], text) for text in index.texts(found.rows)]
    if not triples:
        raise InputError(
            f"--ranks {ranks}, --margin {margin}: no pair has a negative; widen the ranks or lower the margin"
        )
    write_table(output, NAMES, triples)
    seconds = time.perf_counter() - started
    summary = {
        "output": output,
        "pairs": len(anchors),
        "triples": len(triples),
        "without": without,
        "mean_margin": round(sum(gaps) / len(gaps), 4),
        "seconds": round(seconds, 3),
    }
    if as_json:
        printing.result(summary, True, [])
        return
    printing.say(
        f"{len(triples):,} triples for {len(anchors):,} pairs in {seconds:.1f} s; {without:,} pairs have no negative "
        f"in ranks {ranks} that satisfies --margin; the positive's cosine is on average {summary['mean_margin']:.3f} "
        "above the negative's"
    )
    printing.say(f"train on them with cse train --pairs {output}")


def parse_margin(text: str) -> float | None:
    """Returns --margin as a number from -2 to 2, or None for ``none``; raises ``InputError`` for any other value."""
    if text == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -2 <= value <= 2:
        raise InputError(f"--margin: must be a difference of cosines, from -2 to 2, or none, got {text!r}")
    return value

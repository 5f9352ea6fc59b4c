"""The commands ``cse duplicates``, ``cse cluster`` and ``cse mine``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from ...errors import InputError, shortened
from ...options import If, Opt, Seed
from ...progress import counting
from .. import printing
from ..command import command
from ..corpus_index import Encoding, by_row
from ..options import AsJson, IdColumn, IndexFolder
from ..printing import check_table, write_table

if TYPE_CHECKING:
    from ...search.clusters import Cluster
    from ...search.index import SearchIndex
    from ...search.mining import Mining
    from ...search.pairs import Groups

Pairs = tuple[Any, Any, Any]
"""The first rows, the second rows and the cosines of some pairs; arrays of equal lengths."""

TRIPLES = ("anchor", "positive", "negative")
RANKS, MARGIN = "1-100", "0.05"
"""Values of --ranks and --margin for labelled pairs."""
HYBRID = If("by", ("hybrid",))

DUPLICATES_COLUMNS = ("row_a", "row_b", "cosine", "id_a", "id_b", "text_a", "text_b")


@command("duplicates")
def duplicates_command(
    model: str,
    corpus: tuple[str, ...],
    *,
    threshold: Annotated[float, Opt("Minimum cosine of a pair, -1 to 1.", "COSINE")] = 0.9,
    output: Annotated[str | None, Opt("Write all pairs to this .csv or .jsonl file.", "FILE", short="-o")] = None,
    top: Annotated[int, Ge(0), Opt("Maximum number of groups to print, the largest first.", "N")] = 20,
    id_column: IdColumn = None,
    folder: IndexFolder = None,
    encoding: Encoding,
    as_json: AsJson = False,
) -> None:
    """Find rows of CORPUS with similar embeddings: all pairs with a cosine of at least --threshold, and their groups.

    Two rows are in the same group if they are connected by pairs, directly or through other rows. Every row is compared
    with every other, so the time is quadratic in the number of rows. Blank rows are left out.
    """
    printing.check_output()
    from ...search.pairs import Groups, check_threshold, near_pairs

    check_threshold(threshold)
    check_table(output)
    encoder = encoding.encoder(model)
    index = by_row(encoding.index(encoder, corpus, folder, id_column=id_column))
    started = time.perf_counter()
    groups = Groups(len(index.vectors))
    with counting("comparing", len(index.vectors), "rows") as more:
        pairs = connected(near_pairs(index.unit_vectors, threshold, more), groups, index)
        if output is None:
            count = sum(len(cosines) for *_, cosines in pairs)
        else:
            count = write_table(output, DUPLICATES_COLUMNS, pair_records(pairs, index))
    parts = [index.rows[members] for members in groups.members()]
    seconds = time.perf_counter() - started
    redundant = sum(len(rows) - 1 for rows in parts)
    if as_json:
        listed = [{"rows": rows.tolist(), "ids": index.ids(rows), "examples": index.texts(rows[:3])} for rows in parts]
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
    for rows in parts[:top]:
        first = rows[:5]
        names = index.ids(first) if id_column else first.tolist()
        printing.echo(f"{len(rows):,} rows")
        for name, text in zip(names, index.texts(first), strict=True):
            printing.echo(f"  {name}  {shortened(text)}")
        if len(rows) > 5:
            printing.echo(f"  and {len(rows) - 5:,} more")
    printing.say(
        f"{count:,} pairs with a cosine of at least {threshold:g} in {seconds:.1f} s: {len(parts):,} groups; "
        f"{redundant:,} of {len(index):,} rows would be removed if each group kept one row"
    )


def connected(blocks: Iterable[Pairs], groups: Groups, index: SearchIndex) -> Iterator[Pairs]:
    """Adds pairs of vectors to the groups, and yields them with the numbers of their rows."""
    for first, second, cosines in blocks:
        groups.add(first, second)
        yield index.rows[first], index.rows[second], cosines


def pair_records(blocks: Iterable[Pairs], index: SearchIndex) -> Iterator[tuple[Any, ...]]:
    """Yields the two row numbers, the cosine, the two ids and the two texts of each pair."""
    for first, second, cosines in blocks:
        ids, texts = ([look(first), look(second)] for look in (index.ids, index.texts))
        yield from zip(first.tolist(), second.tolist(), cosines.tolist(), *ids, *texts, strict=True)


@command("cluster")
def cluster_command(
    model: str,
    corpus: tuple[str, ...],
    *,
    method: Annotated[
        Literal["kmeans", "hdbscan"],
        Opt("kmeans: k-means with --groups groups; hdbscan: density-based groups of at least --min-size rows."),
    ] = "kmeans",
    groups: Annotated[
        int | None,
        Ge(1),
        Opt(
            "Number of groups, for kmeans.",
            "N",
            "sqrt(rows / 2), at least 2, at most 200",
            needs=If("method", ("kmeans",)),
        ),
    ] = None,
    min_size: Annotated[
        int, Ge(2), Opt("Minimum number of rows per group, for hdbscan.", "N", needs=If("method", ("hdbscan",)))
    ] = 10,
    tfidf: Annotated[
        str | None, Opt("TF-IDF index that scores the words of a group.", "DIR", "built from the corpus")
    ] = None,
    words: Annotated[int, Ge(1), Opt("Number of words to print per group.", "N")] = 6,
    examples: Annotated[int, Ge(0), Opt("Number of examples to print per group.", "N")] = 3,
    output: Annotated[
        str | None, Opt("Write row, id and group to this .csv or .jsonl file.", "FILE", short="-o")
    ] = None,
    id_column: IdColumn = None,
    seed: Seed = 0,
    folder: IndexFolder = None,
    encoding: Encoding,
    as_json: AsJson = False,
) -> None:
    """Group the rows of CORPUS by their embeddings, and print the size, words and examples of each group.

    The words of a group are the terms whose mean TF-IDF in the group most exceeds their mean TF-IDF in the rows of all
    groups. The examples are the rows nearest to the mean embedding of the group. Groups are numbered from 1, the
    largest first. With hdbscan, some rows may be in no group, and the time is quadratic in the number of rows.
    """
    printing.check_output()
    check_table(output)
    from ...tfidf.index import TfidfIndex

    weights = None if tfidf is None else TfidfIndex.open(tfidf)
    encoder = encoding.encoder(model)
    index = by_row(encoding.index(encoder, corpus, folder, id_column=id_column))
    from ...search.clusters import cluster, describe

    started = time.perf_counter()
    labels = cluster(index, method, groups=groups, smallest=min_size, seed=seed)
    with counting("reading words", len(labels), "rows") as more:
        clusters = describe(index, labels, weights, words=words, examples=examples, progress=more)
    seconds = time.perf_counter() - started
    left_out = int((labels < 0).sum())
    if output is not None:
        of_row = {int(row): number for number, group in enumerate(clusters, 1) for row in group.rows}
        rows = sorted(of_row)
        table = zip(rows, index.ids(rows), map(of_row.__getitem__, rows), strict=True)
        write_table(output, ("row", "id", "group"), table)
    if as_json:
        summary = {
            "rows": len(index),
            "method": method,
            "left_out": left_out,
            "output": output,
            "seconds": round(seconds, 3),
            "groups": [group_record(number, item, index) for number, item in enumerate(clusters, 1)],
        }
        printing.result(summary, True, [])
        return
    for number, group in enumerate(clusters, 1):
        printing.echo(f"{number:4}  {len(group.rows):,} rows: {', '.join(shortened(word, 30) for word in group.words)}")
        for text in index.texts(group.examples):
            printing.echo(f"        {shortened(text)}")
    unused = f", {left_out:,} rows in no group" if left_out else ""
    printing.say(f"{len(labels):,} rows by {method} in {seconds:.1f} s: {len(clusters):,} groups{unused}")


def group_record(number: int, group: Cluster, index: SearchIndex) -> dict[str, Any]:
    """Returns a group as it is printed with --json."""
    return {
        "group": number,
        "rows": len(group.rows),
        "words": group.words,
        "examples": index.texts(group.examples),
        "members": group.rows.tolist(),
    }


@command("mine")
def mine_command(
    model: str,
    corpus: tuple[str, ...],
    *,
    queries: Annotated[
        str, Opt("Table with anchors and positives; with --by hybrid, a file of queries, one per row.", "FILE")
    ],
    columns: Annotated[
        tuple[str, ...],
        Opt("Columns of anchors and positives.", "A,P", "recognised by name", separator=",", excludes=HYBRID),
    ] = (),
    query_column: Annotated[
        str | None,
        Opt("With --by hybrid: column of the queries, if FILE is a table.", "NAME", needs=HYBRID),
    ] = None,
    output: Annotated[str, Opt("The .csv or .jsonl file to write.", "FILE", short="-o")],
    ranks: Annotated[
        str | None, Opt("Ranks from which negatives are taken.", "FIRST-LAST", "1-100; with --by hybrid, 21-60")
    ] = None,
    margin: Annotated[
        str | None,
        Opt(
            "Minimum difference between the score (a cosine) of the positive and that of the negative.",
            "DIFFERENCE|none",
            "0.05; with --relative-margin, none",
            excludes=HYBRID,
        ),
    ] = None,
    relative_margin: Annotated[
        float | None,
        Ge(0),
        Opt("Minimum difference, as a fraction of the positive's score.", "SHARE", "none", excludes=HYBRID),
    ] = None,
    max_score: Annotated[float | None, Opt("Maximum score of a negative.", "SCORE", "none", excludes=HYBRID)] = None,
    min_score: Annotated[float | None, Opt("Minimum score of a negative.", "SCORE", "none", excludes=HYBRID)] = None,
    rescore: Annotated[
        str | None,
        Opt("Cross-encoder that scores and ranks the rows at --ranks, instead of cosines.", "MODEL", excludes=HYBRID),
    ] = None,
    negatives: Annotated[int | None, Ge(1), Opt("Maximum negatives per pair.", "N", "1", excludes=HYBRID)] = None,
    output_format: Annotated[
        Literal["triplet", "n-tuple"] | None,
        Opt(
            "triplet: a row for each negative; n-tuple: a row for each pair with columns negative_1 to negative_N, "
            "without the pairs that have fewer negatives.",
            default="triplet",
            excludes=HYBRID,
        ),
    ] = None,
    by: Annotated[
        Literal["encoder", "bm25", "hybrid"],
        Opt("Rank the rows by cosine (encoder), by BM25, or by both (hybrid), which needs no positives."),
    ] = "encoder",
    pick: Annotated[
        Literal["top", "random"] | None,
        Opt(
            "Which candidates to take: those ranked highest, or random ones.",
            default="top",
            excludes=HYBRID,
        ),
    ] = None,
    rows: Annotated[
        int | None,
        Ge(2),
        Opt("With --by hybrid: number of rows to write.", "N", "1920, for 60 steps", needs=HYBRID),
    ] = None,
    seed: Seed = 0,
    folder: IndexFolder = None,
    encoding: Encoding,
    as_json: AsJson = False,
) -> None:
    """Find hard negatives in CORPUS for the pairs of --queries, and write triples for cse train --pairs.

    Negatives are rows of CORPUS that rank high in a search for the anchor. Two kinds of rows are left out: those with
    the text of the anchor or of one of its positives, and those whose cosine with the anchor exceeds the lowest cosine
    of a positive minus --margin, because many of them are positives too. Pairs without a negative are not written.

    With --by hybrid, the file of --queries holds only queries. Positives are passages of the first three rows in the
    ranking of cse search --hybrid, negatives are passages of the rows at --ranks, and half of the triples are made from
    CORPUS alone. Train on them with cse train --preset encoder-queries.
    """
    printing.check_output()
    check_table(output)
    every: dict[str, Any] = {"columns": columns or None, "query_column": query_column, "ranks": ranks, "margin": margin}
    every |= {"negatives": negatives, "pick": pick, "rows": rows, "relative_margin": relative_margin}
    every |= {"max_score": max_score, "min_score": min_score, "rescore": rescore, "output_format": output_format}
    settings = {name: value for name, value in every.items() if value is not None}

    def open_index() -> SearchIndex:
        return by_row(encoding.index(encoding.encoder(model), corpus, folder))

    if by == "hybrid":
        started, summary = from_queries(queries, settings, seed, output, encoding, open_index)
    else:
        started, summary = from_pairs(queries, settings, by, seed, output, encoding, open_index)
    summary["seconds"] = round(time.perf_counter() - started, 3)
    if as_json:
        printing.result(summary, True, [])
        return
    if by == "hybrid":
        printing.say(
            f"{summary['triples']:,} triples from {summary['queries']:,} queries in {summary['seconds']:.1f} s"
        )
        printing.say(f"train on them with cse train --pairs {output} --preset encoder-queries --model {model}")
        return
    printing.say(
        f"{summary['triples']:,} rows for {summary['pairs']:,} pairs in {summary['seconds']:.1f} s; "
        f"{summary['without']:,} pairs have too few negatives in ranks {settings.get('ranks', RANKS)}, in view of the "
        f"margin; the positive's score is on average {summary['mean_margin']:.3f} above the negative's"
    )
    printing.say(f"train on them with cse train --pairs {output}")


def from_queries(
    queries: str,
    settings: dict[str, Any],
    seed: int,
    output: str,
    encoding: Encoding,
    open_index: Callable[[], SearchIndex],
) -> tuple[float, dict[str, Any]]:
    """Writes triples that are made from queries; returns when the search began, and a summary."""
    from ...search.bm25 import library
    from ...search.fusion import Fusion
    from ...search.mining import QueryRows, parse_ranks
    from .search import prepare, read_queries

    ranks = parse_ranks(settings["ranks"]) if "ranks" in settings else QueryRows.ranks
    making = QueryRows(settings.get("rows", QueryRows.count), ranks, seed=seed)
    asked = [*dict.fromkeys(read_queries((), queries, settings.get("query_column"), encoding.reading))]
    library()
    index = open_index()
    prepare(index, {"hybrid": Fusion(), "rerank": 0, "reranker": None, "smooth": None})
    started = time.perf_counter()
    with counting("searching", min(len(asked), making.count // 2), "queries") as more:
        triples = making(index, asked, batch_size=encoding.batch_size, progress=more)
    write_table(output, TRIPLES, triples)
    return started, {"output": output, "queries": len(asked), "triples": len(triples)}


def from_pairs(
    queries: str,
    settings: dict[str, Any],
    by: str,
    seed: int,
    output: str,
    encoding: Encoding,
    open_index: Callable[[], SearchIndex],
) -> tuple[float, dict[str, Any]]:
    """Writes the negatives of labelled pairs; returns when the search began, and a summary."""
    from ...search.mining import Mining, parse_ranks

    ranks = settings.get("ranks", RANKS)
    margin = settings.get("margin", "none" if "relative_margin" in settings else MARGIN)
    count = settings.get("negatives", 1)
    limits = {name: settings[name] for name in ("relative_margin", "min_score", "max_score") if name in settings}
    mining = Mining(parse_ranks(ranks), parse_margin(margin), count, by, settings.get("pick", "top"), seed, **limits)
    anchors, positives = read_pairs(queries, settings.get("columns", ()))
    if by == "bm25":
        from ...search.bm25 import library

        library()
    index = open_index()
    if "rescore" in settings:
        mining = replace(mining, reranker=encoding.reranker(settings["rescore"], "--rescore"))
    if by == "bm25":
        with counting("BM25", len(index), "rows") as more:
            index.bm25(more)
    started = time.perf_counter()
    columns: tuple[str, ...] = TRIPLES
    if wide := settings.get("output_format") == "n-tuple":
        columns = (*TRIPLES[:2], *(f"negative_{number}" for number in range(1, count + 1)))
    rows, gaps, without = mine(mining, index, anchors, positives, wide, encoding.batch_size)
    if not rows:
        limit = "".join(f", --{name.replace('_', '-')} {value:g}" for name, value in limits.items())
        number = f"{count} negatives" if wide else "a negative"
        raise InputError(
            f"--ranks {ranks}, --margin {margin}{limit}: no pair has {number}; widen the ranks or lower the margin"
        )
    write_table(output, columns, rows)
    return started, {
        "output": output,
        "pairs": len(anchors),
        "triples": len(rows),
        "without": without,
        "mean_margin": round(sum(gaps) / len(gaps), 4),
    }


def read_pairs(queries: str, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the anchors and the positives of the rows of a table in which neither is blank."""
    from ...data.pairs import open_pairs

    try:
        pairs = open_pairs([queries], columns)
        complete = pairs.complete()
    except InputError as error:
        raise InputError(str(error).replace("--pairs", "--queries")) from None
    return pairs.anchors.take(complete), pairs.positives.take(complete)


def mine(
    mining: Mining, index: SearchIndex, anchors: list[str], positives: list[str], wide: bool, batch_size: int
) -> tuple[list[tuple[str, ...]], list[float], int]:
    """Finds the negatives of all pairs, and shows the progress.

    Returns the rows, with one negative each, or with ``wide`` all negatives of a pair; for each negative, the
    positive's score minus its score; and the number of pairs without a row.
    """
    rows: list[tuple[str, ...]] = []
    gaps: list[float] = []
    without = 0
    with counting("mining", len(anchors), "pairs") as more:
        for mined in mining(index, anchors, positives, batch_size=batch_size, progress=more):
            if len(mined.rows) < (mining.count if wide else 1):
                without += 1
                continue
            gaps += (mined.positive - mined.scores).tolist()
            texts, pair = index.texts(mined.rows), (anchors[mined.pair], positives[mined.pair])
            rows += [(*pair, *texts)] if wide else [(*pair, text) for text in texts]
    return rows, gaps, without


def parse_margin(text: str) -> float | None:
    """Returns --margin as a number, or None for ``none``; raises ``InputError`` for any other value."""
    from ...data.pairs import number_of

    if text == "none":
        return None
    if (value := number_of(text)) is None:
        raise InputError(f"--margin must be a difference of scores, or none, got {text!r}")
    return value

"""The command ``cse mine``."""

from __future__ import annotations

import time
from typing import Annotated

from annotated_types import Ge

from ...options import Opt, Seed
from ...progress import counting
from .. import printing
from ..command import command
from ..options import AsJson, Encoding, IndexFolder
from ..printing import check_table, write_table
from .search import prepare, read_queries


@command("mine")
def mine_command(
    model: str,
    corpus: tuple[str, ...],
    *,
    queries: Annotated[str, Opt("File of queries, one per row.", "FILE")],
    query_column: Annotated[
        str | None, Opt("Column with the queries, if the file of --queries is a table.", "NAME")
    ] = None,
    output: Annotated[str, Opt("The .csv or .jsonl file to write.", "FILE", short="-o")],
    ranks: Annotated[str, Opt("Ranks from which negatives are taken.", "FIRST-LAST")] = "21-60",
    rows: Annotated[int, Ge(2), Opt("Number of rows to write.", "N", "1920, for 60 steps")] = 1920,
    seed: Seed = 0,
    folder: IndexFolder = None,
    encoding: Encoding,
    as_json: AsJson = False,
) -> None:
    """Make triples to train on from CORPUS and the queries of --queries, which need no labels.

    Half of the triples have a query as the anchor; the positive is a passage of one of the first three rows in the
    ranking of cse search --hybrid, and the negative a passage of a row at --ranks. The other half is made from CORPUS
    alone: two spans of a row, and a span of another. Train on them with cse train --preset encoder-queries.
    """
    printing.check_output()
    check_table(output)
    from ...search.bm25 import library
    from ...search.fusion import Fusion
    from ...search.mining import QueryRows, parse_ranks

    making = QueryRows(rows, parse_ranks(ranks), seed=seed)
    asked = [*dict.fromkeys(read_queries((), queries, query_column, encoding.reading))]
    library()
    index = encoding.index(encoding.encoder(model), corpus, folder)
    prepare(index, Fusion())
    started = time.perf_counter()
    with counting("searching", min(len(asked), making.count // 2), "queries") as more:
        triples = making(index, asked, batch_size=encoding.batch_size, progress=more)
    write_table(output, ("anchor", "positive", "negative"), triples)
    seconds = round(time.perf_counter() - started, 3)
    summary = {"output": output, "queries": len(asked), "triples": len(triples), "seconds": seconds}
    if as_json:
        printing.result(summary, True, [])
        return
    printing.say(f"{len(triples):,} triples from {len(asked):,} queries in {seconds:.1f} s")
    printing.say(f"train on them with cse train --pairs {output} --preset encoder-queries --model {model}")

"""The commands ``cse search`` and ``cse mine``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from ..._core import is_blank
from ...data import readers
from ...data.written import write_table
from ...errors import InputError, sentence, shortened
from ...options import Opt, Seed
from ...progress import counting
from .. import printing
from ..command import Heading, command, given_options
from ..options import AsJson, Encoding, IdColumn, IndexFolder, Passages, Ranking, passage_size

if TYPE_CHECKING:
    from ...search.fusion import Fusion
    from ...search.index import Hit, SearchIndex


@command("search")
def search_command(
    model: str | None = None,
    corpus: tuple[str, ...] = (),
    *,
    output: Annotated[str, Heading("Index"), Opt("Folder of the index.", "DIR", short="-o")] = "search",
    id_column: Annotated[IdColumn, Opt(needs="corpus")] = None,
    passages: Annotated[Passages, Opt(needs="corpus")] = None,
    rebuild: Annotated[bool, Opt("Encode all rows again.", needs="corpus")] = False,
    queries: Annotated[
        tuple[str, ...], Heading("Queries"), Opt("A query; may be repeated.", "TEXT", flag="--query")
    ] = (),
    query_file: Annotated[
        str | None, Opt("File of queries, one per row; - is standard input.", "FILE", flag="--queries")
    ] = None,
    query_column: Annotated[
        str | None, Opt("Column with the queries, if the file of --queries is a table.", "NAME", needs="query_file")
    ] = None,
    top: Annotated[int, Ge(1), Opt("Number of rows per query.", "K")] = 10,
    ranked: Annotated[Ranking, Heading("Ranking")],
    encoding: Annotated[Encoding, Heading("Encoding and reading")],
    as_json: AsJson = False,
) -> None:
    """Search the rows of CORPUS by meaning, with the embeddings of MODEL.

    The first call encodes CORPUS into an index in the folder -o. Later calls with CORPUS update the index: they encode
    only rows with new texts, and drop rows that are no longer in CORPUS. If a call is interrupted, repeat it. Calls
    without CORPUS use the index as it is. MODEL may be the folder of an index, or be left out, which means the model
    with which that index (-o) was built. The search is exact.

    Without a query, the model is loaded once, and queries are read line by line and answered at once. On a terminal, an
    empty line ends the input; without CORPUS, standard input may also be a file or a pipe. With --json, each answer is
    one object on a line.
    """
    fusion = ranked.fusion
    printing.check_output()
    asked = read_queries(queries, query_file, query_column, encoding.reading, blank=True)
    kept: dict[str, Any] = {"passages": passage_size(passages), "id_column": id_column}
    given = model
    model, output, encoding = model_of(model, output, encoding)
    try:
        encoder = encoding.encoder(model)
    except (InputError, OSError) as error:
        raise error if model == given else InputError(f"{output}: was built with {model} ({sentence(error)})") from None
    started = time.perf_counter()
    if corpus:
        index = encoding.index(encoder, corpus, output, **kept, rebuild=rebuild)
    else:
        from ...search.index import SearchIndex

        index = SearchIndex.open(output, encoder)
    opened = time.perf_counter() - started
    printing.say(f"{output}: {len(index):,} rows, {index.shape[0]:,} vectors of {index.shape[1]} dimensions")
    prepare(index, fusion)
    typed = sys.stdin is not None and sys.stdin.isatty()
    similarity = str(getattr(index.encoder, "similarity_name", "cosine"))
    shown = partial(lines, score="score" if fusion else similarity, ids=index.has_ids)
    reads = sys.stdout.isatty() and not (corpus and as_json) if typed else sys.stdin is not None and not corpus
    if reads and not asked:
        count = 0
        for query in typed_queries(encoding.reading["encoding_errors"], as_json):
            started, count = time.perf_counter(), count + 1
            (hits,) = index.search([query], top, hybrid=fusion or False)
            if as_json:
                printing.result({"query": query, "hits": list(map(asdict, hits))}, True, [])
            else:
                printing.echo("\n".join(shown(hits) if typed else [query, *shown(hits), ""]))
            if typed:
                printing.say(f"{1000 * (time.perf_counter() - started):.0f} ms")
        if count or not as_json:
            return
    started = time.perf_counter()
    results: list[list[Hit]] = []
    if asked:
        with counting("encoding queries", len(asked), "queries") as more:
            results = index.search(asked, top, hybrid=fusion or False, batch_size=encoding.batch_size, progress=more)
    if as_json:
        times = {"index_seconds": round(opened, 3), "search_seconds": round(time.perf_counter() - started, 3)}
        pairs = [{"query": query, "hits": list(map(asdict, hits))} for query, hits in zip(asked, results, strict=True)]
        about = {"index": output, "rows": len(index), "vectors": index.shape[0], "embedding_dim": index.shape[1]}
        changes = asdict(index.changes) if index.changes else None
        printing.result({**about, "changes": changes, **times, "queries": pairs}, True, [])
        return
    for query, hits in zip(asked, results, strict=True):
        printing.echo("\n".join([query, *shown(hits), ""]))
    if asked and fusion is None:
        printing.say("ranked by meaning only; --hybrid also uses the words of the query")


def model_of(model: str | None, output: str, encoding: Encoding) -> tuple[str, str, Encoding]:
    from ...search.storage import ROWS, opened

    if model is not None and not (Path(model) / ROWS).exists():
        return model, output, encoding
    settings = opened(Path(output if model is None else model), check=False).arguments
    if model is not None:
        if "output" in given_options() and Path(output) != Path(model):
            raise InputError(f"-o {output}: {model} is an index too; leave out one of them, or name a model")
        output = model
    values = {name: value for name, value in settings.items() if getattr(encoding, name, 0) is None}
    return settings["model"], output, replace(encoding, **values)


def read_queries(
    queries: tuple[str, ...], file: str | None, column: str | None, reading: dict[str, Any], blank: bool = False
) -> list[str]:
    """Returns the queries of --query and --queries, with blank rows of the file only if ``blank`` is True."""
    if file is None:
        return [*queries]
    from ...data.corpus import Corpus

    inputs = readers.resolve(file, column, "--query-column")
    rows = Corpus.read(inputs, encoding_errors=reading["encoding_errors"], max_line_bytes=reading["max_line_bytes"])
    if not rows.word_counts().any():
        raise InputError(f"--queries {file} holds no query; write one per row")
    return [*queries, *(text for text in rows.take(range(len(rows))) if blank or not is_blank(text))]


def lines(hits: list[Hit], score: str = "cosine", ids: bool = False) -> list[str]:
    """Returns hits as the lines of a table, with its header. Without ids of its own, a row is counted from 1, as an
    editor counts the lines of a text file; JSON has its number from 0."""
    if not hits:
        return []
    name = "id" if ids else "row"
    cells = [hit.id if ids else f"{hit.row + 1:,}" for hit in hits]
    wide, score_wide = max(map(len, (name, *cells))), max(len(score), 7)
    rows = [
        f"{rank:4}  {hit.score:{score_wide}.4f}  {cell:>{wide}}  {shortened(hit.text)}"
        for rank, (hit, cell) in enumerate(zip(hits, cells, strict=True), 1)
    ]
    return [f"      {score:>{score_wide}}  {name:>{wide}}  text", *rows]


def prepare(index: SearchIndex, fusion: Fusion | None) -> None:
    """Prints what was found out about the texts, and builds BM25, if it is needed and missing, with the progress."""
    for note in index.warnings if fusion is None else index.notes:
        printing.say(note)
    if fusion is not None:
        with counting("BM25", len(index), "rows") as more:
            index.prepare(fusion, more)


def typed_queries(encoding_errors: str, as_json: bool) -> Iterator[str]:
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # makes the input line editable
        with suppress(EOFError):
            while query := input("" if as_json else "query: ").strip():
                yield query
            return
        printing.say()
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf8", encoding_errors).strip()
        except UnicodeDecodeError:
            raise InputError(
                f"standard input, line {number:,}: is not UTF-8; convert it, or add --encoding-errors replace"
            ) from None


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
    printing.check_suffix(output, ".csv", ".jsonl")
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

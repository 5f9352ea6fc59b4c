"""The commands ``cse search`` and ``cse similarity``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from ...data import readers
from ...errors import InputError, shortened
from ...options import Device, Imports, Opt, Precision, Prompt, Threads
from ...progress import counting
from .. import printing
from ..command import Heading, command, given_options
from ..corpus_index import Encoding, Ranking, load_encoder
from ..options import AsJson, FirstDims, IdColumn, Passages, PoolerName, passage_size

if TYPE_CHECKING:
    from ...search.fusion import Fusion
    from ...search.index import SearchIndex
    from ...search.searching import Hit


@command("search")
def search_command(
    model: str | None = None,
    corpus: tuple[str, ...] = (),
    *,
    output: Annotated[str, Heading("Index"), Opt("Folder of the index.", "DIR", short="-o")] = "search",
    id_column: Annotated[IdColumn, Opt(needs="corpus")] = None,
    passages: Annotated[Passages, Opt(needs="corpus")] = None,
    int8: Annotated[
        bool | None, Opt("Store int8 vectors.", default="as in an existing index, else no", needs="corpus")
    ] = None,
    rebuild: Annotated[bool, Opt("Encode all rows again.", needs="corpus")] = False,
    verify: Annotated[bool, Opt("Compare the files of the index with their hashes.")] = True,
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

    -o may be a folder written by cse encode --parts, whose parts are searched as one index; in this case, leave out
    CORPUS.
    """
    tokens = ranked.check().tokens
    if tokens is not None and not corpus:
        raise InputError("--tokens has no effect without CORPUS; add that, or leave --tokens out")
    printing.check_output()
    asked = read_queries(queries, query_file, query_column, encoding.reading, blank=True)
    asking = ranked.arguments(top)
    kept: dict[str, Any] = {"int8": int8, "passages": passage_size(passages), "tokens": tokens}
    kept |= {"id_column": id_column, "smooth": ranked.smooth}
    model, output, encoding = model_of(model, output, encoding)
    encoder = encoding.encoder(model)
    if asking["reranker"]:
        asking["reranker"] = encoding.reranker(asking["reranker"], "--rerank")
    started = time.perf_counter()
    if tokens:
        from ...search.tokens import check_tokens

        check_tokens(encoder)
        printing.say("--tokens: for a new index, the vocabulary of the model is encoded first; this takes a minute")
    if corpus:
        index = encoding.index(encoder, corpus, output, **kept, rebuild=rebuild, verify=verify)
    else:
        from ...search.index import SearchIndex

        index = SearchIndex.open(output, encoder, verify=verify)
    opened = time.perf_counter() - started
    printing.say(f"{output}: {len(index):,} rows, {index.shape[0]:,} vectors of {index.shape[1]} dimensions")
    prepare(index, asking)
    typed = sys.stdin is not None and sys.stdin.isatty()
    reads = sys.stdout.isatty() and not (corpus and as_json) if typed else sys.stdin is not None and not corpus
    if reads and not asked:
        count = 0
        for query in typed_queries(encoding.reading["encoding_errors"], as_json):
            started, count = time.perf_counter(), count + 1
            (hits,) = index.search([query], top, **asking)
            if as_json:
                printing.result({"query": query, "hits": list(map(asdict, hits))}, True, [])
            else:
                printing.echo("\n".join(lines(hits) if typed else [query, *lines(hits), ""]))
            if typed:
                printing.say(f"{1000 * (time.perf_counter() - started):.0f} ms")
        if count or not as_json:
            return
    started = time.perf_counter()
    results: list[list[Hit]] = []
    if asked:
        with counting("encoding queries", len(asked), "queries") as more:
            results = index.search(asked, top, **asking, batch_size=encoding.batch_size, progress=more)
    if as_json:
        times = {"index_seconds": round(opened, 3), "search_seconds": round(time.perf_counter() - started, 3)}
        pairs = [{"query": query, "hits": list(map(asdict, hits))} for query, hits in zip(asked, results, strict=True)]
        printing.result({**describe(index, output), **times, "queries": pairs}, True, [])
        return
    for query, hits in zip(asked, results, strict=True):
        printing.echo("\n".join([query, *lines(hits), ""]))
    if asked and not asking["hybrid"]:
        printing.say("ranked by meaning only; --hybrid also uses the words of the query")


def model_of(model: str | None, output: str, encoding: Encoding) -> tuple[str, str, Encoding]:
    """Returns the model, the folder of the index, and the settings for encoding.

    If MODEL is the folder of an index, or is left out, they are those with which the index was built. Raises
    ``InputError`` if there is no index.
    """
    from ...search.index import built_with

    settings = built_with(output if model is None else model)
    if settings is None:
        if model is None:
            raise InputError(f"{output}: no index there; make one with 'cse search MODEL CORPUS -o {output}'")
        return model, output, encoding
    if model is not None:
        if "output" in given_options() and Path(output) != Path(model):
            raise InputError(f"-o {output}: {model} is an index too; leave out one of them, or name a model")
        output = model
    values = {name: value for name, value in settings.items() if getattr(encoding, name, 0) is None}
    return settings["model"], output, replace(encoding, **values)


def describe(index: SearchIndex, folder: str) -> dict[str, Any]:
    """Returns the size of an index, and what the command changed in it."""
    return {
        "index": folder,
        "rows": len(index),
        "vectors": index.shape[0],
        "embedding_dim": index.shape[1],
        "changes": asdict(index.changes) if index.changes else None,
    }


def read_queries(
    queries: tuple[str, ...], file: str | None, column: str | None, reading: dict[str, Any], blank: bool = False
) -> list[str]:
    """Returns the queries of --query and --queries, with blank rows of the file only if ``blank`` is True.

    Raises ``InputError`` for a file with only blank rows.
    """
    if file is None:
        return [*queries]
    from ...data.corpus import Corpus

    inputs = readers.resolve(file, column, "--query-column")
    rows = Corpus.read(inputs, encoding_errors=reading["encoding_errors"], max_line_bytes=reading["max_line_bytes"])
    if not rows.word_counts().any():
        raise InputError(f"--queries {file} holds no query; write one per row")
    return [*queries, *(text for text in rows.take(range(len(rows))) if blank or text.strip())]


def lines(hits: list[Hit]) -> list[str]:
    """Returns one line per hit, with its rank, score, id and text."""
    wide = max((len(hit.id) for hit in hits), default=0)
    return [f"{rank:4}  {hit.score:.4f}  {hit.id:>{wide}}  {shortened(hit.text)}" for rank, hit in enumerate(hits, 1)]


def prepare(index: SearchIndex, asking: dict[str, Any]) -> None:
    """Builds what a search needs beside the vectors, if it is missing, and shows the progress."""
    fusion: Fusion | None = asking["hybrid"] or None
    for note in index.warnings if fusion is None else index.notes:
        printing.say(note)
    if fusion is not None:
        with counting("BM25", len(index), "rows") as more:
            index.prepare(fusion, smooth=False, bm25=more)
    if asking["rerank"] and asking["reranker"] is None:
        with counting("counting tokens", len(index), "rows") as more:
            index.token_idf(more)
    if index.smooths(fusion) if asking["smooth"] is None else asking["smooth"]:
        with counting("neighbours", index.shape[0], "rows") as more:
            index.prepare(fusion, smooth=True, neighbours=more)


def typed_queries(encoding_errors: str, as_json: bool) -> Iterator[str]:
    """Yields queries as they are typed in a terminal, until an empty line, or each line of standard input."""
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


@command("similarity")
def similarity_command(
    model: str,
    texts: Annotated[tuple[str, ...], Opt(blank=True)],
    *,
    columns: Annotated[
        tuple[str, ...], Opt("The two columns of text in the table.", "A,B", "recognised by name", separator=",")
    ] = (),
    batch_size: Annotated[int, Ge(1), Opt("Texts per forward pass.", "N")] = 64,
    pooler: PoolerName = None,
    prompt: Prompt = None,
    dims: FirstDims = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = 0,
    imports: Imports = (),
    as_json: AsJson = False,
) -> None:
    """Print the cosine similarity of two TEXTS, or of the two texts in each row of a table.

    For a table (a .csv, .tsv, .jsonl or .parquet file), one line is printed per row: the cosine and the two
    texts, separated by tabs.
    """
    printing.check_output()
    table = len(texts) == 1
    if table:
        if not readers.is_table(texts[0]):
            raise InputError(
                f"TEXTS: give two texts, or one table ({', '.join(readers.TABLES)}) with two columns of text"
            )
        left, right = read_columns(texts[0], columns)
    elif len(texts) == 2 and not columns:
        left, right = [texts[0]], [texts[1]]
    elif columns:
        raise InputError(
            f"--columns {','.join(columns)} names columns of a table; give one table, or leave out --columns"
        )
    else:
        raise InputError(f"TEXTS: {len(texts)} were given; give two texts, or one table with two columns of text")
    encoder = load_encoder(
        model, pooler=pooler, prompt=prompt, dims=dims, device=device, precision=precision, threads=threads
    )
    from ...search.pairs import cosines

    distinct = list(dict.fromkeys([*left, *right]))
    with counting("encoding", len(distinct), "texts") as more:
        vectors = encoder.encode(distinct, batch_size=batch_size, progress=more)
    number = {text: row for row, text in enumerate(distinct)}
    values = cosines(vectors, [number[text] for text in left], [number[text] for text in right])
    if as_json:
        pairs = [{"cosine": value, "a": a, "b": b} for value, a, b in zip(values.tolist(), left, right, strict=True)]
        printing.result({"model": model, "pairs": pairs}, True, [])
    elif table:
        for value, a, b in zip(values, left, right, strict=True):
            printing.echo("\t".join([f"{value:.4f}", *(" ".join(text.split()) for text in (a, b))]))
    else:
        printing.echo(f"{values[0]:.4f}")
        if not all(text.strip() for text in texts):
            printing.say("the embedding of a blank text is zero, so the cosine is 0")


def read_columns(path: str, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the texts of two columns of a table.

    The columns are those in ``columns``. By default, they are an anchor and a positive column recognised by name (see
    ``cse.data.pairs``), or else the only two columns of the table.
    """
    from ...data.pairs import ROLE_OF

    if not Path(path).exists():
        raise InputError(f"{path}: no such file; check the path")
    names = readers.column_names(path)
    if columns:
        chosen = list(columns)
    else:
        roles = [[name for name in names if ROLE_OF.get(name.lower()) == role] for role in ("anchor", "positive")]
        chosen = [role[0] for role in roles if len(role) == 1]
        chosen = chosen if len(chosen) == 2 else names
    if len(chosen) != 2 or any(names.count(name) != 1 for name in chosen):
        flag = f"--columns {','.join(columns)}: " if columns else ""
        has = ", ".join(names[:20])
        raise InputError(f"{flag}{path}: name the two columns of text with --columns A,B; its columns are {has}")
    left, right = (list(readers.column_values(path, name)) for name in chosen)
    if not left:
        raise InputError(f"{path}: has no rows; give at least one pair")
    return left, right

"""The command ``cse label``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from annotated_types import Ge, Gt, Le

from ...errors import InputError
from ...io import dumps, holds_files, read_json, write_text
from ...options import Opt, Seed
from ...progress import counting, duration
from .. import printing
from ..command import Heading, command
from ..corpus_index import Encoding, open_corpus, read_ids
from ..judging import in_terminal, on_page
from ..options import AsJson, IdColumn, Passages, passage_size
from ..printing import write_table
from .evaluate import compared_cells
from .search import read_queries

if TYPE_CHECKING:
    from ...data.corpus import Corpus
    from ...models.running.inference import Encoder

VERSION = 1
SETTINGS = "labels.json"
# Number of rows read at a time when the corpus is copied.
BLOCK = 4096


@command("label")
def label_command(
    old: str,
    new: str,
    documents: Annotated[str, Opt(metavar="INDEX|CORPUS")],
    *,
    query_file: Annotated[str, Heading("Judgements"), Opt("File of queries, one per row.", "FILE", flag="--queries")],
    query_column: Annotated[
        str | None, Opt("Column with the queries, if the file of --queries is a table.", "NAME")
    ] = None,
    output: Annotated[str, Opt("Folder of the judgements.", "DIR", short="-o")] = "labels",
    depth: Annotated[int, Ge(1), Le(1000), Opt("Documents from each ranking.", "N")] = 10,
    web: Annotated[bool, Opt("Judge on a web page of this machine, not in the terminal.")] = False,
    difference: Annotated[
        float, Gt(0), Opt("Estimate the number of queries that would find this difference in nDCG x 100.", "POINTS")
    ] = 3.0,
    seed: Seed = 0,
    id_column: Annotated[IdColumn, Heading("Encoding and reading")] = None,
    passages: Passages = None,
    encoding: Encoding,
    as_json: AsJson = False,
) -> None:
    """Compare the encoders OLD and NEW by judging the documents that they find.

    For each query, the first --depth documents of both rankings are shown in random order, without the encoder that
    found them. One key judges a document: y relevant, n not relevant, s skip; u takes back the last judgement, and q
    quits. Judgements are stored at once; repeat the command to continue. Further queries can be added to the end of
    FILE, and other encoders can be compared with the same folder: only documents without a judgement are shown.

    The third argument is a folder written by cse search, or a text file or table. The folder -o has the layout of BEIR,
    and can be used with cse eval and cse compare --suite retrieval --data DIR.
    """
    printing.check_output()
    from ...evaluation.labels import Judgements, Session, outcome, pool

    if old == new:
        raise InputError(f"OLD and NEW: {old} and {new} are the same encoder; name another one")
    folder = Path(output)
    queries = dict.fromkeys(read_queries((), query_file, query_column, encoding.reading))
    texts = {str(number): query for number, query in enumerate(queries, 1)}
    rows, ids, size = read_documents(documents, id_column, passages, encoding)
    settings = prepare(folder, rows, ids, texts, depth, seed)
    with closing(Judgements(folder / "judgements.jsonl")) as judgements:
        names = [rank(name, documents, rows, texts, depth, size, encoding, settings) for name in (old, new)]
        if names[0] == names[1]:
            raise InputError(f"OLD and NEW: {old} and {new} are the same encoder; name another one")
        write_text(folder / SETTINGS, dumps(settings))
        before, after = ({query: settings["rankings"][name][query] for query in texts} for name in names)
        pools = pool(before, after, ids, depth, seed)
        row_of = {key: row for row, key in enumerate(ids)}
        pooled = sorted({row_of[document] for entry in pools for document in entry.documents})
        shown = dict(zip((ids[row] for row in pooled), rows.take(pooled), strict=True))
        session = Session(pools, texts, shown, judgements)
        printing.say(f"{output}: {len(pools):,} queries, {session.left:,} documents to judge")
        try:
            (on_page if web else in_terminal)(session)
        finally:
            a, b = ({query: [ids[row] for row in hits] for query, hits in side.items()} for side in (before, after))
            seconds = judgements.typical_seconds()
            qrels, result = outcome(pools, judgements.values, a, b, depth, difference, seconds)
            judged = [f"{query}\t{key}\t{value}" for query, marks in qrels.items() for key, value in marks.items()]
            write_text(folder / "qrels" / "test.tsv", "\n".join(["query-id\tcorpus-id\tscore", *judged, ""]))
    record = {"old": old, "new": new, "output": output, **result}
    printing.result(record, as_json, [] if as_json else outcome_lines(record))


def read_documents(
    documents: str, id_column: str | None, passages: str | None, encoding: Encoding
) -> tuple[Corpus, list[str], int | str | None]:
    """Returns the rows of a corpus or of a search index, their ids, and the size of passages."""
    size = passage_size(passages)
    if Path(documents).is_dir():
        if id_column or passages or encoding.reading["column"]:
            raise InputError(f"{documents}: is an index; leave out --column, --id and --passages")
        from ...data.corpus import Corpus
        from ...search.index import opened

        store = opened(Path(documents))
        rows, ids, size = Corpus.from_texts(store.texts()), store.ids(), store.settings["passages"]
    else:
        rows = open_corpus([documents], **encoding.reading)
        ids = [str(row) for row in range(len(rows))] if id_column is None else read_ids([documents], id_column)
    rows.filled()
    if len(set(ids)) < len(ids) or any(not key or key.split() != [key] for key in ids):
        raise InputError(f"{documents}: ids must be distinct and without white space; choose another column with --id")
    return rows, ids, size


class Stored(TypedDict):
    """The content of the file ``SETTINGS``."""

    queries: dict[str, str]
    rankings: dict[str, dict[str, list[int]]]


def prepare(
    folder: Path, rows: Corpus, ids: Sequence[str], queries: dict[str, str], depth: int, seed: int
) -> dict[str, Any]:
    """Makes the folder with corpus and queries, or checks that it belongs to them; returns its settings."""
    digest = hashlib.sha256(rows.hashes().tobytes() + dumps(list(ids)).encode()).hexdigest()[:32]
    wanted = {"version": VERSION, "corpus": digest, "depth": depth, "seed": seed}
    known: dict[str, Any] = {}
    if (folder / SETTINGS).exists():
        remedy = "; name another folder with -o"
        known = {**read_json(folder / SETTINGS, Stored, remedy)}
        asked = list(known["queries"].items())
        for name, value in wanted.items():
            if known.get(name) != value:
                what = f"another {name}" if name in ("version", "corpus") else f"--{name} {known.get(name)}"
                raise InputError(f"{folder}: was made with {what}; name another folder with -o, or use the same")
        if asked != list(queries.items())[: len(asked)]:
            raise InputError(
                f"{folder}: the file of --queries does not begin with the queries of the folder; add queries at its "
                "end, or name another folder with -o"
            )
        ranked = [row for side in known["rankings"].values() for rows_of in side.values() for row in rows_of]
        if not all(0 <= row < len(rows) for row in ranked):
            raise InputError(f"{folder / SETTINGS}: rankings: holds a row that the corpus does not have{remedy}")
    elif folder.exists() and (not folder.is_dir() or holds_files(folder)):
        raise InputError(f"{folder}: holds other files; name a new folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**wanted, "queries": queries, "rankings": known.get("rankings", {})}
    write_text(folder / SETTINGS, dumps(settings))  # first: without it, a repeated command refuses the folder
    (folder / "qrels").mkdir(exist_ok=True)
    write_table(folder / "queries.jsonl", ("_id", "text"), queries.items())
    if not (folder / "corpus.jsonl").exists():
        filled = rows.filled()  # blank rows, which are never found, are left out
        blocks = (filled[start : start + BLOCK] for start in range(0, len(filled), BLOCK))
        records = ((ids[row], "", text) for block in blocks for row, text in zip(block, rows.take(block), strict=True))
        write_table(folder / "corpus.jsonl", ("_id", "title", "text"), records)
    return settings


def rank(
    model: str,
    documents: str,
    rows: Corpus,
    queries: dict[str, str],
    depth: int,
    size: int | str | None,
    encoding: Encoding,
    settings: dict[str, Any],
) -> str:
    """Adds the ranking of an encoder to ``settings``, unless it is there; returns the key of the ranking.

    If ``documents`` is an index of this encoder, it is searched; otherwise the rows are encoded into a temporary index.
    """
    from ...models.digest import model_digest
    from ...search.index import SearchIndex, opened

    encoder: Encoder = encoding.encoder(model)
    digest = model_digest(encoder)
    key = digest if size is None else f"{digest} in passages of {size} tokens"
    known: dict[str, list[int]] = settings["rankings"].setdefault(key, {})
    missing = {name: text for name, text in queries.items() if name not in known}
    if not missing:
        return key
    if Path(documents).is_dir() and opened(Path(documents)).settings["digest"] == digest:
        index = SearchIndex.open(documents, encoder)
    else:
        with counting(f"encoding with {model}", len(rows), "rows") as more:
            index = SearchIndex.build(encoder, rows, batch_size=encoding.batch_size, passages=size, progress=more)
    hits = index.search(missing.values(), depth, batch_size=encoding.batch_size)
    known |= {name: [hit.row for hit in ranking] for name, ranking in zip(missing, hits, strict=True)}
    return key


def outcome_lines(facts: dict[str, Any]) -> list[str]:
    """Prints the comparison as ``cse compare`` does; returns the lines that follow, with the queries still needed."""
    record = facts["comparison"]
    lines = [
        f"{facts['complete']:,} of {facts['queries']:,} queries are judged, with {facts['judgements']:,} judgements; "
        f"{facts['scored']:,} of them have a relevant document and are compared."
    ]
    if record is None:
        lines.append("A comparison needs at least two queries with a relevant document; judge more.")
    else:
        printing.table([compared_cells(record)], title=f"{facts['new']} against {facts['old']}")
        if facts["needed"] is None:
            lines.append("The two rankings have the same score for each of these queries.")
        else:
            seconds = facts["more_seconds"]
            time = "" if seconds is None else f", about {duration(seconds)}"
            more = f"{facts['more']:,} more ({facts['more_judgements']:,} judgements{time})"
            lines.append(
                f"A true difference of {facts['target']:g} points is found with a probability of 80 % with about "
                f"{facts['needed']:,} queries that have a relevant document: {more if facts['more'] else 'enough'}."
            )
            if not facts["decided"] and facts["needed_if_observed"] is not None:
                lines.append(
                    f"If the true difference is the observed one, {record['mean']:+.2f}, about "
                    f"{facts['needed_if_observed']:,} such queries are needed."
                )
    data = facts["output"]
    return [*lines, f"The judgements are in {data}, for cse eval and cse compare --suite retrieval --data {data}."]

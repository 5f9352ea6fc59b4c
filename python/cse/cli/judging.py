"""``cse compare A B CORPUS``: writes the texts that two encoders find, to be judged, and compares by the judgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..data import readers, tables
from ..errors import InputError
from ..progress import progress_of
from . import printing
from .corpus_index import open_corpus

if TYPE_CHECKING:
    from ..evaluation.ranking import System


def rankings(
    systems: Sequence[System], corpus: str, query_file: str, column: str | None, depth: int, **loading: Any
) -> list[dict[str, list[str]]]:
    """Returns, for each system, the first ``depth`` texts of the corpus for each query; equal rows are one text."""
    from ..data.corpus import Corpus
    from ..evaluation.base import counted
    from ..evaluation.retrieval import ranker_of
    from ..evaluation.run import opened

    if tables.is_table(query_file):
        raise InputError(f"--queries {query_file}: is a table; give a text file with one query per row")
    asked = Corpus.read(readers.resolve(query_file))
    try:
        queries = {query: query for query in asked.take(asked.filled())}
    except InputError:
        raise InputError(f"--queries {query_file} holds no query; write one per row") from None
    rows = open_corpus([corpus], column=column, encoding_errors="strict", max_line_bytes=1 << 20, cache=None)
    documents = {text: text for text in rows.take(rows.filled())}
    with progress_of("ranking", "texts") as progress:
        advance = counted(len(systems) * (len(queries) + len(documents)), progress)
        found = []
        for system in systems:
            ranked = ranker_of(opened(system, **loading))(queries, documents, advance, depth=depth)
            found.append({query: list(ranking)[:depth] for query, ranking in zip(queries, ranked, strict=True)})
    return found


def compare_by_judgements(
    labels: Sequence[str],
    sides: Sequence[dict[str, list[str]]],
    depth: int,
    pool_file: str | None,
    judged_file: str | None,
    as_json: bool,
    markdown: bool,
) -> None:
    """Writes the pool of two rankings, compares them by the judgements, or both, and prints the result."""
    from ..evaluation.labels import COLUMNS, key_of, outcome, pool, read_judgements

    old, new = sides
    judgements = {} if judged_file is None else read_judgements(judged_file)
    record: dict[str, Any] = {"a": labels[0], "b": labels[1], "pool": pool_file}
    lines = []
    if pool_file is not None:
        texts = [(query, text) for query, found in pool(old, new).items() for text in found]
        marked = ((*pair, judgements.get(key_of(*pair), "")) for pair in texts)
        count = printing.write_table(pool_file, COLUMNS, marked)
        left = sum(key_of(*pair) not in judgements for pair in texts)
        record |= {"texts": count, "to_judge": left}
        lines.append(
            f"{pool_file}: {len(old):,} queries, {left:,} texts to judge; write 1 (relevant) or 0 in the column "
            f"relevant, and repeat the command with --judged {pool_file} in place of --pool"
        )
    if judged_file is not None:
        record |= outcome(old, new, judgements, depth)
        if not as_json:
            if record["comparison"] is not None:
                title = f"{labels[1]} against {labels[0]}"
                printing.table([printing.compared_cells(record["comparison"])], title=title, markdown=markdown)
            lines += outcome_lines(record)
    printing.result(record, as_json, lines)


def outcome_lines(facts: dict[str, Any]) -> list[str]:
    """Returns the lines that follow the table, with the numbers of queries that are still needed."""
    record = facts["comparison"]
    lines = [
        f"{facts['complete']:,} of {facts['queries']:,} queries are judged, with {facts['judgements']:,} judgements; "
        f"{facts['scored']:,} of them have a relevant text and are compared."
    ]
    if record is None:
        return [*lines, "A comparison needs at least two queries with a relevant text; judge more."]
    if facts["needed"] is None:
        return [*lines, "The two rankings have the same score for each of these queries."]
    more = f"{facts['more']:,} more ({facts['more_judgements']:,} judgements)"
    lines.append(
        f"A true difference of {facts['target']:g} points is found with a probability of 80 % with about "
        f"{facts['needed']:,} queries that have a relevant text: {more if facts['more'] else 'enough'}."
    )
    if not facts["decided"] and facts["needed_if_observed"] is not None:
        lines.append(
            f"If the true difference is the observed one, {record['mean']:+.2f}, about "
            f"{facts['needed_if_observed']:,} such queries are needed."
        )
    return lines

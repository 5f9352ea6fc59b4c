"""Comparisons of rankings by the judgements of a person: ``cse compare --pool`` and ``--judged``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...data import readers, tables
from ...data.written import write_table
from ...errors import InputError
from ...identity import distinct
from ...progress import progress_of
from .. import printing
from ..options import Ranking, open_corpus
from .evaluate import Evaluated, systems_of

if TYPE_CHECKING:
    from ...evaluation.judged import Judgements
    from ...evaluation.ranking import System


def compare_by_hand(
    models: Sequence[str],
    query_file: str,
    column: str | None,
    depth: int,
    pool_file: str | None,
    judged: str | None,
    ranked: Ranking,
    encoder: Evaluated,
    as_json: bool,
    markdown: bool,
) -> None:
    """Ranks the corpus, the last of MODELS, for the queries by the others, writes the pool, compares by the judgements,
    or both."""
    from ...evaluation.judged import read_judgements

    if pool_file is not None:
        printing.check_suffix(pool_file, ".csv", ".jsonl", flag="--pool")
        printing.check_new(pool_file, "--pool")
    judgements = None if judged is None else read_judgements(judged)
    *systems, corpus = models
    names, sides = systems_of(systems, ranked)
    found = rankings([system for (system,) in sides], names, corpus, query_file, column, depth, encoder)
    compare_by_judgements(found, names, depth, pool_file, judgements, as_json, markdown)


def rankings(
    systems: Sequence[System],
    names: Sequence[str],
    corpus: str,
    query_file: str,
    column: str | None,
    depth: int,
    encoder: Evaluated,
) -> list[dict[str, list[str]]]:
    """Returns, for each system, the first ``depth`` texts of the corpus for each query; equal rows are one text
    (``cse.identity``)."""
    from ...data.corpus import Corpus
    from ...encoder.base import compared_by
    from ...evaluation.base import counted
    from ...evaluation.ranking import check_systems
    from ...evaluation.retrieval import ranker_of
    from ...evaluation.run import opened

    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"MODELS: {twice} stands twice; name another one, or MODEL+bm25 for vectors and words together, or bm25"
        )
    check_systems(systems, "retrieval", None, None)
    if tables.is_table(query_file):
        raise InputError(f"--queries {query_file}: is a table; give a text file with one query per row")
    asked = Corpus.read(readers.resolve(query_file))
    queries = {query: query for query in distinct(asked.take(asked.filled()))}
    rows = open_corpus([corpus], column=column, encoding_errors="strict", max_line_bytes=1 << 20, cache=None)
    documents = {text: text for text in distinct(rows.take(rows.filled()))}
    loading = {name: value for name, value in encoder.arguments.items() if name != "dims"}
    with progress_of("ranking", "texts") as progress:
        advance = counted(len(systems) * (len(queries) + len(documents)), progress)
        found = []
        for system in systems:
            ranks = opened(system, **loading)
            if note := compared_by(ranks)[1]:
                printing.say(f"{system.model}: {note}")
            ranked = ranker_of(ranks)(queries, documents, advance, depth=depth)
            found.append({query: list(ranking)[:depth] for query, ranking in zip(queries, ranked, strict=True)})
    return found


def compare_by_judgements(
    sides: Sequence[dict[str, list[str]]],
    names: Sequence[str],
    depth: int,
    pool_file: str | None,
    judgements: Judgements | None,
    as_json: bool,
    markdown: bool,
) -> None:
    """Writes the pool of several rankings, compares the first with each of the others by the judgements, or both, and
    prints the result. In the JSON record, the first comparison stands alone; ``others`` are those that follow."""
    from ...evaluation.judged import COLUMNS, TARGET, key_of, outcomes, pool, smallest_shown

    known = judgements or {}
    record: dict[str, Any] = {"a": names[0], "b": names[1], "pool": pool_file}
    lines = []
    queries = len(sides[0])
    if judgements is None and queries > 1:
        points = smallest_shown(queries)
        printing.say(
            f"{queries:,} queries: a difference in nDCG below about {points:.0f} points will probably not show; "
            f"{TARGET:g} points need hundreds"
        )
    if pool_file is not None:
        texts = [(query, text) for query, found in pool(*sides).items() for text in found]
        marked = ((*pair, known.get(key_of(*pair), "")) for pair in texts)
        count = write_table(pool_file, COLUMNS, marked)
        left = sum(key_of(*pair) not in known for pair in texts)
        record |= {"texts": count, "to_judge": left}
        lines.append(
            f"{pool_file}: {queries:,} queries, {left:,} texts to judge; write 1 (relevant) or 0 in the column "
            f"relevant, and repeat the command with --judged {pool_file} in place of --pool"
        )
    if judgements is not None:
        found = outcomes(sides[0], sides[1:], judgements, depth)
        record |= found[0]
        if len(found) > 1:
            record["others"] = [{"b": name, **each} for name, each in zip(names[2:], found[1:], strict=True)]
        for name, each in zip(names[1:], found, strict=True) if not as_json else ():
            title = f"{name} against {names[0]}"
            if each["comparison"] is not None:
                printing.table([printing.compared_cells(each["comparison"])], title=title, markdown=markdown)
            lines += [*([f"{title}:"] if len(found) > 1 else []), *outcome_lines(each)]
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

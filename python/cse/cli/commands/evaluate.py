"""The commands ``cse eval`` and ``cse compare``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from ...data import readers, tables
from ...errors import InputError
from ...identity import distinct
from ...options import Device, If, Imports, Opt, Precision, Prompt, Threads
from ...progress import progress_of
from .. import options, printing
from ..command import command, given_options
from ..options import AsJson, FirstDims, PoolerName, Ranking, open_corpus, passage_size

if TYPE_CHECKING:
    from ...evaluation.base import Report
    from ...evaluation.judged import Judgements
    from ...evaluation.ranking import System
    from ...evaluation.run import Comparison


# Restrictions of --pool and --judged, and options that apply to one suite.
BY_PERSON: dict[str, Any] = {"excludes": ("data", "seeds", "allow_partial", "settings", "dims")}
STS, RETRIEVAL = If("suites", ("sts",)), If("suites", ("retrieval",))

# Options of both commands.
Suites = Annotated[tuple[str, ...], Opt("Suite; see cse methods.", "NAME", flag="--suite")]
Data = Annotated[str | None, Opt("File or folder of the data.", "PATH")]
AllowPartial = Annotated[bool, Opt("Accept incomplete STS and transfer files.")]
Markdown = Annotated[bool, Opt("Print Markdown tables.", excludes="as_json")]
Settings = Annotated[
    tuple[str, ...], Opt("Set an option of a suite; see cse methods.", "NAME.OPTION=VALUE", flag="--set")
]


@dataclass(frozen=True)
class Evaluated:
    """How encoders are evaluated."""

    pooler: PoolerName = None
    prompt: Prompt = None
    passages: Annotated[
        str | None,
        Opt(
            "Rank documents by their best passage of at most N tokens; max: the model's maximum length.",
            "N|max",
            needs=RETRIEVAL,
        ),
    ] = None
    dims: FirstDims = None
    device: Device = "auto"
    precision: Precision = "fp32"
    threads: Threads = 0
    imports: Imports = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``evaluate`` and ``compare_models``."""
        names = ("pooler", "prompt", "dims", "device", "precision", "threads")
        return {name: getattr(self, name) for name in names}

    def settings(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the values of ``--set``, with the option ``passages`` of the suite retrieval."""
        size = passage_size(self.passages)
        return values if size is None else (*values, f"retrieval.passages={0 if size == 'max' else size}")


def systems_of(models: Sequence[str], ranked: Ranking, seeds: bool = False) -> tuple[list[str], list[list[System]]]:
    """Returns a label for each of MODELS, and its systems: one, or with ``seeds`` one for each of its models."""
    from ...evaluation.ranking import System

    fusion = ranked.fusion or False
    sides = []
    for text in models:
        fixed = [System(model) for model in (text.split(",") if seeds else [text])]
        sides.append([s if s.fixed else System(options.model_folder(str(s.model)), fusion) for s in fixed])
    if fusion and all(system.fixed for side in sides for system in side):
        raise InputError(f"--hybrid has no effect on {sides[0][0].fixed}; omit --hybrid")
    return [" ".join([text, *side[0].flags]) for text, side in zip(models, sides, strict=True)], sides


UNDEFINED = (
    "nan is a score that cannot be computed: a correlation if all cosines are equal, an alignment if no pair has a "
    "gold score above 4"
)


@command("eval")
def eval_command(
    model: str,
    *,
    suites: Suites = ("sts",),
    data: Data = None,
    allow_partial: AllowPartial = False,
    compare_published: Annotated[bool, Opt("Also list the papers' STS averages.", needs=STS)] = False,
    hard: Annotated[
        int, Ge(0), Opt("List N hard pairs of each STS file: low scores with high cosines.", "N", needs=STS)
    ] = 0,
    run: Annotated[
        str | None, Opt("Write the rankings of the suite retrieval to a TREC run file.", "FILE", needs=RETRIEVAL)
    ] = None,
    markdown: Markdown = False,
    settings: Settings = (),
    ranked: Ranking,
    encoder: Evaluated,
    as_json: AsJson = False,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks whose files are in the folder --data (sts12.test.tsv, ...,
    sickr.test.tsv), or the single file --data. Each line of a file holds score, sentence1 and sentence2, separated by
    tabs. All subsets of a task are concatenated; the score is Spearman's correlation x 100. cse methods describes the
    other suites: transfer, retrieval, labels, sts-dev, geometry, halves.

    In the suite retrieval, MODEL may also be bm25, which ranks by words alone, or run:FILE, a TREC run file with the
    rankings of any system; for a run file, --data may be the file of judgements alone. With --hybrid, documents are
    ranked as by cse search --hybrid.
    """
    printing.check_output()
    from ...evaluation.run import evaluate, option_tables
    from ...evaluation.sts import PUBLISHED, SEED_NOTE, TEXT_NOTE, hard_pairs

    _, ((system,),) = systems_of([model], ranked)
    tables = option_tables(encoder.settings(settings))
    with progress_of("evaluating", "texts") as progress:
        result = evaluate(
            system, suites, data, options=tables, allow_partial=allow_partial, progress=progress, **encoder.arguments
        )
    if run is not None:
        from ...evaluation.ranking import write_run

        write_run(run, result.reports["retrieval"].rankings)
    published = [dict(zip(("model", "average", "reproductions"), row, strict=True)) for row in PUBLISHED]
    listed = [pair for sample in result.reports["sts"].samples for pair in hard_pairs(sample, hard)] if hard else []
    if as_json:
        beside: dict[str, Any] = {"published": published, "published_text": TEXT_NOTE} if compare_published else {}
        beside |= {"hard_pairs": listed} if hard else {}
        printing.result({**result.to_dict(), **beside}, True, [])
        return
    for name, report in result.reports.items():
        title = f"{result.model}: {name}"
        if wide := paper_row(name, report):
            printing.table([wide], title=title, markdown=markdown)
            printing.echo()
        printing.table([cells(row) for row in report.rows], title="" if wide else title, markdown=markdown)
        scores = {key: value for key, value in report.summary.items() if value is not None}
        for line in [f"{key.replace('_', ' ')}: {cell(key, value)}" for key, value in scores.items()]:
            printing.echo(line)
        for note in report.notes:
            printing.echo(f"Note: {note}")
    for note in result.notes:
        printing.echo(f"Note: {note}")
    if listed:
        printing.echo()
        title = "Hard pairs: their rank by cosine exceeds their rank by score most"
        printing.table([cells({**pair, "score": f"{pair['score']:g}"}) for pair in listed], title, markdown)
    if compare_published:
        printing.echo()
        printing.table(published, title="Published averages over the seven STS test sets", markdown=markdown)
        printing.echo(TEXT_NOTE)
        printing.echo(SEED_NOTE)


def paper_row(suite: str, report: Report) -> dict[str, str]:
    """Returns a row as in the papers: the scores of the test sets, and their average; {} without an average."""
    from ...evaluation import EVALUATIONS

    key, average = EVALUATIONS.get(suite).paper_row
    mean = report.summary.get(average)
    if mean is None:
        return {}
    tested = [row for row in report.rows if not row["task"].endswith("dev")]
    return {**{row["task"]: f"{row[key]:.2f}" for row in tested}, "Avg.": f"{mean:.2f}"}


def cells(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a record as text, without the columns ``key`` and ``expected``, which are not shown."""
    return {name: cell(name, value) for name, value in row.items() if name not in ("key", "expected")}


PERCENT = ("spearman", "average_of_seven", "accuracy", "average", "f1", "score")


def cell(name: str, value: Any) -> str:
    """Formats a value: scores x 100 (in ``PERCENT``, or named with a rank) with two decimals, others with three."""
    if isinstance(value, float):
        return f"{value:.2f}" if name in PERCENT or "@" in name else f"{value:.3f}"
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


@command("compare")
def compare_command(
    models: tuple[str, ...],
    *,
    suites: Suites = ("sts",),
    data: Data = None,
    query_file: Annotated[
        str | None, Opt("With --pool and --judged: file of queries, one per row.", "FILE", flag="--queries")
    ] = None,
    pool: Annotated[
        str | None, Opt("Write the texts that A or B finds for each query, to be judged.", "FILE.csv", **BY_PERSON)
    ] = None,
    judged: Annotated[str | None, Opt("Compare by the judgements in this file.", "FILE.csv", **BY_PERSON)] = None,
    depth: Annotated[int, Ge(1), Le(100), Opt("Texts from each ranking.", "N", needs="query_file")] = 10,
    labels: Annotated[
        str | None,
        Opt("Compare by this column of labels of the table --data.", "COLUMN", excludes=("query_file", "dims")),
    ] = None,
    column: Annotated[str | None, Opt("Column with the texts, if CORPUS is a table, or with --labels.", "NAME")] = None,
    picture: Annotated[
        str | None,
        Opt(
            "With the suite geometry: also plot alignment against uniformity of all MODELS.",
            "FILE.png",
            needs=If("suites", ("geometry",)),
            excludes="dims",
        ),
    ] = None,
    seeds: Annotated[bool, Opt("Each of MODELS is a list A1,A2,... with one model per seed.")] = False,
    allow_partial: AllowPartial = False,
    settings: Settings = (),
    markdown: Markdown = False,
    ranked: Ranking,
    encoder: Evaluated,
    as_json: AsJson = False,
) -> None:
    """Compare the first of MODELS with each of the others, on the suites of cse eval.

    Except in the suite geometry, each difference has a 95 % confidence interval over examples. If 20 or more examples
    change, it is from a bootstrap; pairs that share a sentence are resampled together, and ranks are recomputed for
    each resample. If fewer change, it is the interval of Agresti and Min (2005); with fewer than 20 examples or groups
    of pairs, it may be from a t-test. p-values are adjusted for the number of tasks and models by Holm's method. B is
    better or worse if the interval excludes 0 and the adjusted p-value is below 0.05.

    Without --seeds, checkpoints are compared, not methods: a difference may be due to the training seed alone. With
    --seeds, each of MODELS lists the checkpoints of one method, separated by commas. The seeds must be the same, in the
    same order, for every method. Methods are then compared by a paired t-test over seeds.

    In the suite retrieval, MODELS may be bm25, which ranks by words alone, or run:FILE, a TREC run file. With --hybrid,
    all others rank as cse search --hybrid does. To compare rankings with and without it, write one of them to
    a file: cse eval MODEL --suite retrieval --data DIR --hybrid --run hybrid.run; then compare MODEL with
    run:hybrid.run.

    Without labelled data: cse compare A B CORPUS --queries FILE --pool POOL.csv writes the first --depth texts of both
    rankings for each query, in random order. Fill in the last column (1 relevant, 0 not), and repeat the command with
    --judged POOL.csv for the verdict. With both options, --pool writes the judgements that are known.

    With --labels, the rows of the table --data, at most 2,000 with distinct texts, are compared by a column of labels;
    each is predicted from the others. Rows whose labels taught one of the models, its base or its teacher do not judge;
    --set labels.share=0.2 takes those that cse train held out.

    Two folders of runs alone, cse compare RUN1 RUN2, are compared by what judged RUN1, or else RUN2, without the rows
    that the other was trained on. If their table has moved, name it with --data.
    """
    from ...evaluation.run import option_tables
    from ...training.folder.find import run_of

    printing.check_output()
    if pool is not None or judged is not None:
        if len(models) != 3 or query_file is None or "suites" in given_options():
            raise InputError(
                "--pool and --judged take two models, a corpus and queries, and no --suite: cse compare A B CORPUS "
                "--queries FILE --pool POOL.csv"
            )
        compare_by_hand(models, query_file, column, depth, pool, judged, ranked, encoder, as_json, markdown)
        return
    if query_file is not None:
        raise InputError("--queries has no effect without --pool or --judged; add one of them, or omit --queries")
    if column is not None and labels is None:
        raise InputError("--column has no effect without --labels or --queries; add one of them, or omit --column")
    runs = [run for model in models if (run := run_of(model))]
    if labels is None and len(models) == len(runs) == 2 and "suites" not in given_options():
        from ...evaluation.kept import is_table_of

        if data is None or any(is_table_of(Path(run), data) for run in runs):
            compare_by_runs(runs, data, ranked, encoder, as_json, markdown)
            return
    if data is None:
        raise InputError(
            "cse compare needs data; name them with --data PATH, judge texts yourself with --pool, or compare two runs"
        )
    about: dict[str, Any] = {"seeds": seeds, "allow_partial": allow_partial, **encoder.arguments}
    tables = option_tables(encoder.settings(settings))
    about["options"] = tables
    if labels is None:
        compare_by_suites(*systems_of(models, ranked, seeds), suites, data, about, as_json, markdown, picture)
        return
    if "suites" in given_options() or column is None:
        raise InputError("--labels needs --column, the column of the sentences, and no --suite; change these")
    tables["labels"] = {**tables.get("labels", {}), "labels": labels, "column": column}
    compare_by_labels(*systems_of(models, ranked, seeds), data, about, as_json, markdown)


def compare_by_suites(
    names: Sequence[str],
    sides: Sequence[Sequence[System]],
    suites: Sequence[str],
    data: str,
    about: Mapping[str, Any],
    as_json: bool,
    markdown: bool,
    picture: str | None,
) -> None:
    """Compares models on suites, and prints a table for each pair; ``about`` are arguments of ``compare_models``."""
    if picture is not None:
        check_picture(picture)
    results = compared(sides, suites, data, about)
    print_comparisons(names, results, about, as_json, markdown)
    if picture is not None:
        draw_geometry(names, results, picture)


def print_comparisons(
    names: Sequence[str], results: Sequence[Comparison], about: Mapping[str, Any], as_json: bool, markdown: bool
) -> None:
    if as_json:
        records = [
            {"a": names[0], "b": name, "tasks": each.tasks, "notes": each.notes}
            for name, each in zip(names[1:], results, strict=True)
        ]
        printing.result({**what_compares(about, results), "comparisons": records}, True, [])
        return
    for name, result in zip(names[1:], results, strict=True):
        title = f"{name} against {names[0]}"
        printing.table([printing.compared_cells(record) for record in result.tasks], title=title, markdown=markdown)
        for record in result.tasks:
            if "note" in record:
                printing.echo(f"{record['task']}: {record['note']}")
            if math.isnan(record["mean"]):
                printing.echo(f"{record['task']}: {UNDEFINED}")
    print_what_compares(about, results, " A is the first model. p-values are adjusted by Holm's method.")
    for note in dict.fromkeys(note for result in results for note in result.notes):
        printing.echo(f"Note: {note}")


def check_picture(picture: str) -> None:
    """Raises ``InputError`` if a plot cannot be written to this file."""
    from ...reports.style import require_extra

    require_extra("cse compare --picture")
    printing.check_suffix(picture, ".png", ".svg", flag="--picture")


def draw_geometry(names: Sequence[str], results: Sequence[Comparison], picture: str) -> None:
    """Plots the alignment and uniformity of models that were compared on the suite geometry."""
    from ...reports.curves import scatter
    from ...reports.style import write

    def place(side: str, tasks: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
        found = {record["task"].rpartition(": ")[2]: record[side] for record in tasks}
        return found["uniformity"], found["alignment"]

    sides = [place("a", results[0].tasks), *(place("b", each.tasks) for each in results)]
    if not all(map(math.isfinite, sum(sides, ()))):
        raise InputError(
            f"--picture {picture}: an alignment cannot be computed, because no pair has a gold score above 4"
        )
    write([scatter(list(zip(names, sides, strict=True)))], Path(picture))
    printing.say(f"wrote {picture}")


def compare_by_labels(
    names: Sequence[str],
    sides: Sequence[Sequence[System]],
    data: str,
    about: Mapping[str, Any],
    as_json: bool,
    markdown: bool,
) -> None:
    """Compares models by a column of labels, and prints a verdict for each pair and, except with seeds, what each model
    costs and which is recommended."""
    from ...evaluation import choice, verdict
    from ...evaluation.labels import Labels
    from ...evaluation.run import compare_results, evaluate_sides, open_suites, opened
    from ...training.inputs import taught_by_model

    (suite,) = open_suites("labels", data, about["options"]).values()
    assert isinstance(suite, Labels)
    with progress_of("evaluating", "texts") as progress:
        evaluated = evaluate_sides(sides, ["labels"], data, progress=progress, taught_of=taught_by_model, **about)
    results = compare_results(evaluated, about["seeds"])
    words = [
        verdict.conclude(each.tasks, ["rows"] * len(each.tasks), each.notes, each.beside).to_dict() for each in results
    ]
    found = list(zip(names[1:], results, words, strict=True))
    costs: list[choice.Cost] = []
    advice = ""
    if not about["seeds"]:
        loading = {name: about[name] for name in ("pooler", "prompt", "device", "precision", "threads")}
        with progress_of("measuring the speed", "models") as progress:
            for number, (system,) in enumerate(sides):
                progress(number, len(sides))
                costs.append(choice.cost_of(opened(system, **loading), suite.texts.texts))
        advice = choice.recommend(names, [each.reports["labels"] for (each,) in evaluated], costs)
    if as_json:
        records = [{"a": names[0], "b": name, "tasks": each.tasks, "verdict": word} for name, each, word in found]
        listed = [{"model": name, **vars(cost)} for name, cost in zip(names, costs, strict=bool(costs))]
        record = {**what_compares(about, results), "comparisons": records, "costs": listed, "advice": advice}
        printing.result(record, True, [])
        return
    for name, _, word in found:
        lines = ["", verdict.markdown(word)] if markdown else verdict.lines(word)
        printing.echo("\n".join([f"{name} against {names[0]}:", *lines]))
    print_what_compares(about, results)
    if costs:
        rows = [
            {
                "model": name,
                "seconds for 1,000 rows": f"{cost.seconds:.2f}",
                "MB on disk": "" if math.isnan(cost.megabytes) else f"{cost.megabytes:,.0f}",
            }
            for name, cost in zip(names, costs, strict=True)
        ]
        printing.table(rows, markdown=markdown)
        printing.echo(advice)


def compare_by_runs(
    models: Sequence[str], data: str | None, ranked: Ranking, encoder: Evaluated, as_json: bool, markdown: bool
) -> None:
    """Compares two runs by what judged one of them, whose texts are in its files or in ``data``; prints the verdict."""
    from ...evaluation import verdict
    from ...evaluation.run import opened
    from ...training.comparing import compare_runs

    names, sides = systems_of(models, ranked)
    systems = dict(zip(models, (system for (system,) in sides), strict=True))
    word = compare_runs(models[0], models[1], lambda name: opened(systems[name], **encoder.arguments), data).to_dict()
    lines = ["", verdict.markdown(word)] if markdown else verdict.lines(word)
    printing.result(
        {"a": names[0], "b": names[1], "verdict": word}, as_json, [f"{names[1]} against {names[0]}:", *lines]
    )


def compared(
    sides: Sequence[Sequence[System]], suites: Sequence[str], data: str, about: Mapping[str, Any]
) -> list[Comparison]:
    from ...evaluation.run import compare_models
    from ...training.inputs import taught_by_model

    with progress_of("evaluating", "texts") as progress:
        return compare_models(sides, suites, data, progress=progress, taught_of=taught_by_model, **about)


def what_compares(about: Mapping[str, Any], results: Sequence[Comparison]) -> dict[str, str]:
    unit = "methods, by a paired t-test over seeds" if about["seeds"] else "checkpoints, not methods"
    return {"compares": unit, "precision": results[0].precision}


def print_what_compares(about: Mapping[str, Any], results: Sequence[Comparison], more: str = "") -> None:
    printing.echo(f"This compares {what_compares(about, results)['compares']}.{more}")


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
    """Ranks the corpus for the queries by two models, writes the pool, compares by the judgements, or both."""
    from ...evaluation.judged import read_judgements

    if pool_file is not None:
        printing.check_table(pool_file, "--pool")
    judgements = None if judged is None else read_judgements(judged)
    names, sides = systems_of(models[:2], ranked)
    found = rankings([system for (system,) in sides], names, models[2], query_file, column, depth, encoder)
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

    if names[0] == names[1]:
        raise InputError(f"MODELS: {names[0]} and {names[1]} are the same encoder; name another one")
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
    """Writes the pool of two rankings, compares them by the judgements, or both, and prints the result."""
    from ...evaluation.judged import COLUMNS, key_of, outcome, pool

    old, new = sides
    known = judgements or {}
    record: dict[str, Any] = {"a": names[0], "b": names[1], "pool": pool_file}
    lines = []
    if pool_file is not None:
        texts = [(query, text) for query, found in pool(old, new).items() for text in found]
        marked = ((*pair, known.get(key_of(*pair), "")) for pair in texts)
        count = printing.write_table(pool_file, COLUMNS, marked)
        left = sum(key_of(*pair) not in known for pair in texts)
        record |= {"texts": count, "to_judge": left}
        lines.append(
            f"{pool_file}: {len(old):,} queries, {left:,} texts to judge; write 1 (relevant) or 0 in the column "
            f"relevant, and repeat the command with --judged {pool_file} in place of --pool"
        )
    if judgements is not None:
        record |= outcome(old, new, judgements, depth)
        if not as_json:
            if record["comparison"] is not None:
                title = f"{names[1]} against {names[0]}"
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

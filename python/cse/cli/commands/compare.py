"""The command ``cse compare``: by suites, by a column of labels, or by what judged a run; ``pool.py`` by judgements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from ...errors import InputError
from ...options import If, Opt
from ...progress import progress_of
from .. import printing
from ..command import command, given_options
from ..options import AsJson, Ranking
from .evaluate import AllowPartial, Data, Evaluated, Markdown, Settings, Suites, systems_of
from .pool import compare_by_hand

if TYPE_CHECKING:
    from ...evaluation.ranking import System
    from ...evaluation.run import Comparison


# Restrictions of --pool and --judged.
BY_PERSON: dict[str, Any] = {"excludes": ("data", "seeds", "allow_partial", "settings", "dims")}
UNDEFINED = (
    "nan is a score that cannot be computed: a correlation if all cosines are equal, an alignment if no pair has a "
    "gold score above 4"
)


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
        str | None, Opt("Write the texts that MODELS find for each query, to be judged.", "FILE.csv", **BY_PERSON)
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

    In the suite retrieval, and by judgements, MODELS may be bm25, which ranks by words alone, or MODEL+bm25, which
    ranks as cse search --hybrid does (with --hybrid, all models do); in the suite, also run:FILE, a TREC run file.

    Without labelled data: cse compare A B CORPUS --queries FILE --pool POOL.csv writes the first --depth texts of all
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
        if len(models) < 3 or query_file is None or "suites" in given_options():
            raise InputError(
                "--pool and --judged take two models or more, a corpus and queries, and no --suite: cse compare A B "
                "CORPUS --queries FILE --pool POOL.csv"
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
            without_effect = {"--set": settings, "--seeds": seeds, "--allow-partial": allow_partial}
            if unused := [flag for flag, given in without_effect.items() if given]:
                raise InputError(f"{unused[0]} has no effect on runs, which are compared by what judged them; omit it")
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
        unknown = [name for name, (each,) in zip(names, evaluated, strict=True) if each.undecided]
        if unknown:
            advice = f"none is recommended: labels or pairs of texts that are not known taught {', '.join(unknown)}"
        else:
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

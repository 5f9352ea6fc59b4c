"""The commands ``cse eval`` and ``cse compare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import InputError
from ...losses.options import parse_dims
from .. import corpus_index, options, printing
from ..corpus_index import given_of, search_arguments
from ..progress import progress_of

if TYPE_CHECKING:
    from ...evaluation.base import Report
    from ...evaluation.ranking import System


@click.command("MODEL", add_help_option=False)
@corpus_index.ranking
def own_options(ranked: dict[str, Any]) -> None:
    """Parses the options that follow a model in an argument of the commands."""


def systems_of(models: Sequence[str], seeds: bool = False, **common: Any) -> tuple[list[str], list[list[System]]]:
    """Returns a label for each of MODELS, and its systems: one, or with ``seeds`` one for each of its models.

    Args:
        models: Models or ``bm25``, each of which may be followed by options of ``ranking``.
        seeds: Each begins with a list of models, separated by commas.
        **common: Values of the options of ranking for all models but ``bm25``, unless a model has its own.

    Raises:
        InputError: If an option is unknown, has an invalid value, or would have no effect.
    """
    from ...evaluation.ranking import BM25, System

    common = given_of(common)
    labels, sides = [], []
    for text in models:
        name, separator, own = (text, "", "") if Path(text).exists() else text.partition(" --")
        names = name.strip().split(",") if seeds else [name.strip()]
        values = {} if BM25 in names else common
        if separator:
            values = {**values, **own_values(text, f"--{own}".split())}
        given = {**search_arguments(values), "tokens": values.get("tokens", 0)}
        if given["tokens"] and not given["rerank"]:
            raise InputError("--tokens: belongs to --rerank tokens; add it, or leave out the option")
        sides.append([System(each if each == BM25 else options.model_folder(each), **given) for each in names])
        labels.append(" ".join([name.strip(), *sides[-1][0].flags]))
    flag = next((f"--{name.replace('_', '-')}" for name in common), "")
    if flag and all(system.by_words for side in sides for system in side):
        raise InputError(f"{flag}: has no effect on bm25, which ranks by words alone; leave it out")
    return labels, sides


def own_values(text: str, flags: list[str]) -> dict[str, Any]:
    """Returns the values of the options in an argument MODEL; raises ``InputError`` if one is invalid."""
    try:
        given = own_options.make_context("MODEL", flags).params
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        raise InputError(f"{text!r}: {message}; after a model, give options of search, such as --hybrid") from None
    return given_of(given)


def encoder_options(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that adds the options for encoders and ``--json``."""
    dims = f"{verb} the first N dimensions, for each N."
    return options.all_of(
        options.pooler,
        options.prompt,
        options.evaluated_passages,
        options.option("--dims", metavar="N,N,...", help=dims, default_text="all"),
        options.device,
        options.precision("fp32"),
        options.threads,
        options.imports,
        options.as_json,
    )


@click.command("eval")
@click.argument("model")
@options.option("--suite", "suites", default=("sts",), multiple=True, metavar="NAME", help="Suite; see cse methods.")
@options.option("--data", metavar="PATH", help="File or folder of the data.")
@options.option("--allow-partial", is_flag=True, help="Accept incomplete STS and transfer files.")
@options.option("--compare-published", is_flag=True, help="Also list the papers' STS averages.")
@options.option("--markdown", is_flag=True, help="Print Markdown tables.")
@options.option(
    "--set", "settings", multiple=True, metavar="NAME.OPTION=VALUE", help="Set an option of a suite; see cse methods."
)
@corpus_index.ranking
@encoder_options("Evaluate")
def eval_command(
    model: str,
    suites: tuple[str, ...],
    data: str | None,
    allow_partial: bool,
    compare_published: bool,
    markdown: bool,
    settings: tuple[str, ...],
    dims: str | None,
    as_json: bool,
    ranked: dict[str, Any],
    **encoder: Any,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks whose files are in the folder --data (sts12.test.tsv, ...,
    sickr.test.tsv), or the single file --data. Each line of a file holds score, sentence1 and sentence2, separated by
    tabs. All subsets of a task are concatenated; the score is Spearman's correlation x 100. cse methods describes the
    other suites: transfer, retrieval, geometry, halves.

    In the suite retrieval, MODEL may be bm25, which ranks by words alone. With --hybrid, --bm25-weight, --feedback,
    --smooth, --rerank and --tokens, documents are ranked as by cse search.
    """
    if as_json and markdown:
        raise InputError("--markdown: cannot be combined with --json; choose one")
    printing.check_output()
    from ...evaluation.run import evaluate, option_tables
    from ...evaluation.sts import PUBLISHED, SEED_NOTE, TEXT_NOTE

    options.check_pooler(encoder["pooler"])
    if compare_published and "sts" not in suites:
        raise InputError(
            "--compare-published: lists averages of the suite sts; add --suite sts, or leave out --compare-published"
        )
    _, ((system,),) = systems_of([model], **ranked)
    with progress_of("evaluating", "texts") as progress:
        found = evaluate(
            system,
            suites,
            data,
            options=option_tables(settings),
            allow_partial=allow_partial,
            dims=None if dims is None else parse_dims(dims),
            progress=progress,
            **encoder,
        )
    published = [dict(zip(("model", "average", "reproductions"), row, strict=True)) for row in PUBLISHED]
    if as_json:
        beside = {"published": published, "published_text": TEXT_NOTE} if compare_published else {}
        printing.result({**found.to_dict(), **beside}, True, [])
        return
    for name, report in found.reports.items():
        title = f"{found.model}: {name}"
        if wide := paper_row(name, report):
            printing.table([wide], title=title, markdown=markdown)
            printing.echo()
        printing.table([cells(row) for row in report.rows], title="" if wide else title, markdown=markdown)
        for key, value in report.summary.items():
            if value is not None:
                printing.echo(f"{key.replace('_', ' ')}: {cell(key, value)}")
        for note in report.notes:
            printing.echo(f"Note: {note}")
    for note in found.notes:
        printing.echo(f"Note: {note}")
    if compare_published:
        printing.echo()
        printing.table(published, title="Published averages over the seven STS test sets", markdown=markdown)
        printing.echo(TEXT_NOTE)
        printing.echo(SEED_NOTE)


def paper_row(suite: str, report: Report) -> dict[str, str]:
    """Returns a table row as in the papers: the scores of the test sets, and their average; {} without an average."""
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


PERCENT = (
    "spearman",
    "average_of_seven",
    "accuracy",
    "average",
    "f1",
    "ndcg@10",
    "mrr@10",
    "recall@100",
    "published ndcg@10",
)


def cell(name: str, value: Any) -> str:
    """Formats a value: the scores in ``PERCENT`` with two decimals, other floats with three."""
    if isinstance(value, float):
        return f"{value:.2f}" if name in PERCENT else f"{value:.3f}"
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


@click.command("compare")
@click.argument("models", nargs=-1, required=True)
@options.option("--suite", "suites", default=("sts",), multiple=True, metavar="NAME", help="Suite; see cse methods.")
@options.option("--data", required=True, metavar="PATH", help="File or folder of the data.")
@options.option("--seeds", is_flag=True, help="Each of MODELS is a list A1,A2,... with one model per seed.")
@options.option("--allow-partial", is_flag=True, help="Accept incomplete STS and transfer files.")
@options.option(
    "--set", "settings", multiple=True, metavar="NAME.OPTION=VALUE", help="Set an option of a suite; see cse methods."
)
@options.option("--markdown", is_flag=True, help="Print Markdown tables.")
@corpus_index.ranking
@encoder_options("Compare")
def compare_command(
    models: tuple[str, ...],
    suites: tuple[str, ...],
    data: str,
    seeds: bool,
    allow_partial: bool,
    settings: tuple[str, ...],
    markdown: bool,
    dims: str | None,
    as_json: bool,
    ranked: dict[str, Any],
    **encoder: Any,
) -> None:
    """Compare the first of MODELS with each of the others, on the suites of cse eval.

    Except in the suite geometry, each difference has a 95 % confidence interval from a bootstrap over examples. Pairs
    that share a sentence are resampled together, and ranks are recomputed for each resample. p-values are adjusted for
    the number of tasks by Holm's method; the significance level is 0.05.

    Without --seeds, checkpoints are compared, not methods: a difference may be due to the training seed alone. With
    --seeds, each of MODELS lists the checkpoints of one method, separated by commas. The seeds must be the same, in the
    same order, for every method. Methods are then compared by a paired t-test over seeds.

    In the suite retrieval, one of MODELS may be bm25, which ranks by words alone. The options --hybrid, --bm25-weight,
    --feedback, --smooth, --rerank and --tokens hold for every other model. In quotes after a model, they hold for this
    model only: cse compare bm25 minilm "minilm --hybrid" --suite retrieval --data DIR.
    """
    from ...evaluation.run import compare_models, option_tables

    options.check_pooler(encoder["pooler"])
    printing.check_output()
    labels, sides = systems_of(models, seeds, **ranked)
    with progress_of("evaluating", "texts") as progress:
        results = compare_models(
            sides,
            suites,
            data,
            seeds=seeds,
            options=option_tables(settings),
            allow_partial=allow_partial,
            dims=None if dims is None else parse_dims(dims),
            progress=progress,
            **encoder,
        )
    unit_of = "methods, by a paired t-test over seeds" if seeds else "checkpoints, not methods"
    precision = results[0].precision
    if as_json:
        tables = [{"a": labels[0], "b": b, "tasks": found.tasks} for b, found in zip(labels[1:], results, strict=True)]
        printing.result({"compares": unit_of, "precision": precision, "comparisons": tables}, True, [])
        return
    for label, found in zip(labels[1:], results, strict=True):
        lines = [compared_cells(record) for record in found.tasks]
        printing.table(lines, title=f"{label} against {labels[0]}", markdown=markdown)
    printing.echo(f"This compares {unit_of}. A is the first model. p-values are adjusted by Holm's method.")
    if precision:
        printing.echo(f"Encoded in {precision} ({results[0].precision_reason}).")


def compared_cells(record: dict[str, Any]) -> dict[str, str]:
    """Returns the table cells of one task as text; interval and p-value are empty without a test."""
    tested = "p" in record
    digits = 2 if abs(record["a"]) > 2 else 4
    return {
        "task": record["task"],
        "examples": "" if record["examples"] is None else f"{record['examples']:,}",
        "A": f"{record['a']:.{digits}f}",
        "B": f"{record['b']:.{digits}f}",
        "difference": f"{record['mean']:+.{digits}f}",
        "95 % interval": f"[{record['low']:+.{digits}f}, {record['high']:+.{digits}f}]" if tested else "",
        "p (Holm)": f"{record['p_holm']:.3f}" if tested else "",
        "B is": record["verdict"],
    }

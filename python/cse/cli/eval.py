"""The command ``cse eval``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..losses.options import parse_dims
from . import encoder_options, options, printing
from .progress import progress_of

if TYPE_CHECKING:
    from ..evaluation.base import Report


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
@options.pooler
@encoder_options.prompt
@encoder_options.evaluated_passages
@options.option("--dims", metavar="N,N,...", help="Evaluate the first N dimensions, for each N.", default_text="all")
@options.device
@options.precision("fp32")
@options.threads
@options.imports
@options.as_json
def command(
    model: str,
    suites: tuple[str, ...],
    data: str | None,
    allow_partial: bool,
    compare_published: bool,
    markdown: bool,
    settings: tuple[str, ...],
    dims: str | None,
    as_json: bool,
    **encoder: Any,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks whose files are in the folder --data (sts12.test.tsv, ...,
    sickr.test.tsv), or the single file --data. Each line of a file holds score, sentence1 and sentence2, separated by
    tabs. All subsets of a task are concatenated; the score is Spearman's correlation x 100. cse methods describes the
    other suites: transfer, retrieval, geometry, halves.
    """
    if as_json and markdown:
        raise InputError("--markdown: cannot be combined with --json; choose one")
    printing.check_output()
    from ..evaluation.open_suites import option_tables
    from ..evaluation.published import PUBLISHED, SEED_NOTE, TEXT_NOTE
    from ..evaluation.run import evaluate

    options.check_pooler(encoder["pooler"])
    if compare_published and "sts" not in suites:
        raise InputError(
            "--compare-published: lists averages of the suite sts; add --suite sts, or leave out --compare-published"
        )
    with progress_of("evaluating", "texts") as progress:
        found = evaluate(
            options.model_folder(model),
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
            click.echo()
        printing.table([cells(row) for row in report.rows], title="" if wide else title, markdown=markdown)
        for key, value in report.summary.items():
            if value is not None:
                click.echo(f"{key.replace('_', ' ')}: {cell(key, value)}")
        for note in report.notes:
            click.echo(f"Note: {note}")
    for note in found.notes:
        click.echo(f"Note: {note}")
    if compare_published:
        click.echo()
        printing.table(published, title="Published averages over the seven STS test sets", markdown=markdown)
        click.echo(TEXT_NOTE)
        click.echo(SEED_NOTE)


def paper_row(suite: str, report: Report) -> dict[str, str]:
    """Returns a table row as in the papers: the scores of the test sets, and their average; {} without an average."""
    key, average = {"sts": ("spearman", "average_of_seven"), "transfer": ("accuracy", "average")}.get(suite, ("", ""))
    mean = report.summary.get(average)
    if mean is None:
        return {}
    tested = [row for row in report.rows if not row["task"].endswith("dev")]
    return {**{row["task"]: f"{row[key]:.2f}" for row in tested}, "Avg.": f"{mean:.2f}"}


def cells(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a record as text, without the columns ``key`` and ``expected``, which are not shown."""
    return {name: cell(name, value) for name, value in row.items() if name not in ("key", "expected")}


PERCENT = ("spearman", "average_of_seven", "accuracy", "average", "f1", "ndcg@10", "mrr@10", "recall@100")


def cell(name: str, value: Any) -> str:
    """Formats a value: the scores in ``PERCENT`` with two decimals, other floats with three."""
    if isinstance(value, float):
        return f"{value:.2f}" if name in PERCENT else f"{value:.3f}"
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)

"""cse eval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..losses.options import parse_dims
from . import console, encoder_options, options
from .progress import counting

if TYPE_CHECKING:
    from ..evaluation.base import Report


@click.command("eval")
@click.argument("model")
@options.option("--suite", "suites", default=("sts",), multiple=True, metavar="NAME", help="See cse methods.")
@options.option("--data", metavar="PATH", help="File or folder of the data.", show_default=False)
@options.option("--allow-partial", is_flag=True, show_default=False, help="Accept incomplete STS and transfer files.")
@options.option("--compare-published", is_flag=True, show_default=False, help="List the papers' STS averages beside.")
@options.option("--markdown", is_flag=True, show_default=False, help="Print Markdown tables.")
@options.option("--set", "settings", multiple=True, metavar="NAME.OPTION=VALUE", help="An option of an evaluation.")
@options.pooler
@encoder_options.prompt
@options.option("--dims", metavar="N,N,...", help="Evaluate the first N dimensions, each.", default_text="all")
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
    pooler: str | None,
    prompt: str | None,
    dims: str | None,
    device: str,
    precision: str,
    threads: int,
    as_json: bool,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks found in the folder --data (sts12.test.tsv, ..., sickr.test.tsv):
    score, sentence1, sentence2, separated by tabs; or any one file of this form. All subsets of a task are
    concatenated; the score is Spearman's correlation x 100. cse methods describes the other suites: transfer,
    retrieval, geometry, halves.
    """
    if as_json and markdown:
        raise InputError("--markdown: cannot be combined with --json; choose one")
    console.check_output()
    from ..evaluation.dims import evaluate_dims
    from ..evaluation.published import PUBLISHED, SEED_NOTE, TEXT_NOTE
    from ..evaluation.suites import open_suites

    options.check_pooler(pooler)
    model = options.model_folder(model)
    sizes = [] if dims is None else parse_dims(dims)
    evaluations = open_suites(suites, data, settings, allow_partial)
    if compare_published and "sts" not in evaluations:
        raise InputError("--compare-published: lists averages of the suite sts; add --suite sts, or leave it out")

    from ..models.device import set_threads
    from ..models.inference import Encoder

    set_threads(threads)
    encoder = Encoder(model, pooler=pooler, device=device, precision=precision, prompt=prompt)
    for size in sizes:
        encoder.keep_dims(size)  # is refused before anything is encoded
    total = max(len(sizes), 1) * sum(evaluation.work() for evaluation in evaluations.values())
    with counting("evaluating", total, "texts") as progress:
        if sizes:
            encoder.keep_dims(None)
            reports = {name: evaluate_dims(each, encoder, sizes, progress) for name, each in evaluations.items()}
        else:
            reports = {name: evaluation(encoder, progress) for name, evaluation in evaluations.items()}
    notes = [f"{model}: the directory does not declare a pooling; used --pooler avg"] if encoder.plain else []
    if encoder.model.pooler == "cls":
        notes.append(f"pooling {encoder.pooling}")
    notes.append(f"encoded in {encoder.precision} ({encoder.precision_reason})")
    published = [dict(zip(("model", "average", "reproductions"), row, strict=True)) for row in PUBLISHED]
    if as_json:
        results = {name: {"tasks": r.rows, **r.summary, "notes": r.notes} for name, r in reports.items()}
        beside = {"published": published, "published_text": TEXT_NOTE} if compare_published else {}
        about = {"model": model, "pooling": encoder.pooling, "precision": encoder.precision}
        found = {**about, "suites": results, "notes": notes, **beside}
        console.result(found, True, [])
        return
    for name, report in reports.items():
        title = f"{model}: {name}"
        if wide := paper_row(name, report):
            console.table([wide], title=title, markdown=markdown)
            click.echo()
        console.table([cells(row) for row in report.rows], title="" if wide else title, markdown=markdown)
        for key, value in report.summary.items():
            if value is not None:
                click.echo(f"{key.replace('_', ' ')}: {cell(key, value)}")
        for note in report.notes:
            click.echo(f"Note: {note}")
    for note in notes:
        click.echo(f"Note: {note}")
    if compare_published:
        click.echo()
        console.table(published, title="Published averages over the seven STS test sets", markdown=markdown)
        click.echo(TEXT_NOTE)
        click.echo(SEED_NOTE)


def paper_row(suite: str, report: Report) -> dict[str, str]:
    """Returns the row of a table as the papers print it: one score per task, then the average; empty without one."""
    key, average = {"sts": ("spearman", "average_of_seven"), "transfer": ("accuracy", "average")}.get(suite, ("", ""))
    mean = report.summary.get(average)
    if mean is None:
        return {}
    tested = [row for row in report.rows if not row["task"].endswith("dev")]
    return {**{row["task"]: f"{row[key]:.2f}" for row in tested}, "Avg.": f"{mean:.2f}"}


def cells(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a record as text, without internal columns."""
    return {name: cell(name, value) for name, value in row.items() if name not in ("key", "expected")}


PERCENT = ("spearman", "average_of_seven", "accuracy", "average", "f1", "ndcg@10", "mrr@10", "recall@100")


def cell(name: str, value: Any) -> str:
    """Formats a value: scores of 0 to 100 with two decimals, other floats with three."""
    if isinstance(value, float):
        return f"{value:.2f}" if name in PERCENT else f"{value:.3f}"
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)

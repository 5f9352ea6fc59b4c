"""cse eval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from . import console, options
from .progress import counting

if TYPE_CHECKING:
    from ..evaluation.base import Report

# Averages over the seven test sets, as published; independent reproductions in parentheses.
PUBLISHED = [
    ("SimCSE-BERT-base", "76.25 (74.83, 75.32, 75.68)"),
    ("+ Focal-InfoNCE", "77.33 +- .08"),
    ("MixCSE-BERT-base", "77.66"),
    ("UNA-BERT-base", "76.14"),
    ("SimCSE-RoBERTa-base", "76.57 (76.07, 76.49)"),
    ("+ Focal-InfoNCE", "77.60 +- .26"),
    ("UNA-RoBERTa-base", "76.74"),
]


@click.command("eval")
@click.argument("model")
@options.option("--suite", "suites", default=("sts",), multiple=True, metavar="NAME", help="See cse methods.")
@options.option("--data", metavar="PATH", help="File or folder of the data.", show_default=False)
@options.option("--allow-partial", is_flag=True, show_default=False, help="Accept incomplete STS files.")
@options.option("--set", "settings", multiple=True, metavar="NAME.OPTION=VALUE", help="An option of an evaluation.")
@options.pooler
@options.device
@options.threads
@options.as_json
def command(
    model: str,
    suites: tuple[str, ...],
    data: str | None,
    allow_partial: bool,
    settings: tuple[str, ...],
    pooler: str | None,
    device: str,
    threads: int,
    as_json: bool,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks found in the folder --data (sts12.test.tsv, ..., sickr.test.tsv):
    score, sentence1, sentence2, separated by tabs. All subsets of a task are concatenated; the score is Spearman's
    correlation x 100.
    """
    console.check_output()
    from ..evaluation import EVALUATIONS
    from ..registry import parse_options, parse_setting

    options.check_pooler(pooler)
    tables: dict[str, dict[str, Any]] = {"sts": {"allow_partial": True}} if allow_partial and "sts" in suites else {}
    for text in settings:
        name, option, value = parse_setting(text)
        tables.setdefault(name, {})[option] = value
    if unused := sorted(set(tables) - set(suites)):
        raise InputError(f"--set {unused[0]}: its options were given, but it is not among the suites; add --suite")
    evaluations = {}
    for name in suites:
        kind = EVALUATIONS.get(name, "--suite")
        evaluations[name] = kind(parse_options(name, kind.Options, tables.get(name, {})), data)

    from ..models.device import set_threads
    from ..models.inference import Encoder

    set_threads(threads)
    encoder = Encoder(model, pooler=pooler, device=device)
    total = sum(evaluation.sentences() for evaluation in evaluations.values())
    with counting("evaluating", total, "sentences") as progress:
        reports = {name: evaluation(encoder, progress) for name, evaluation in evaluations.items()}
    notes = [f"{model}: the directory does not declare a pooling; used --pooler avg"] if encoder.plain else []
    if encoder.model.pooler == "cls":
        notes.append(f"pooling {encoder.pooling}")
    if as_json:
        results = {name: {"tasks": r.rows, **r.summary, "notes": r.notes} for name, r in reports.items()}
        console.result({"model": model, "pooling": encoder.pooling, "suites": results, "notes": notes}, True, [])
        return
    for name, report in reports.items():
        _print(f"{model}: {name}", report)
    for note in notes:
        click.echo(f"Note: {note}")
    if "sts" in reports and reports["sts"].summary["average_of_seven"] is not None:
        published = "; ".join(f"{name} {value}" for name, value in PUBLISHED)
        click.echo(f"Published averages of the seven: {published}. The average varies by about 0.8 between seeds.")


def _print(title: str, report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    columns = [name for name in report.rows[0] if name not in ("key", "expected")] if report.rows else []
    for name in columns:
        table.add_column(name, justify="left" if name == columns[0] else "right")
    for row in report.rows:
        table.add_row(*(Text(_cell(name, row[name])) for name in columns))
    Console().print(table)
    for name, value in report.summary.items():
        if value is not None:
            click.echo(f"{name.replace('_', ' ')}: {_cell(name, value)}")
    for note in report.notes:
        click.echo(f"Note: {note}")


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if name in ("spearman", "average_of_seven") else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

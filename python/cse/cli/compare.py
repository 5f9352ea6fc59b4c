"""The command ``cse compare``."""

from __future__ import annotations

from typing import Any

import click

from ..losses.options import parse_dims
from . import encoder_options, options, printing
from .progress import progress_of


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
@options.pooler
@encoder_options.prompt
@encoder_options.evaluated_passages
@options.option("--dims", metavar="N,N,...", help="Compare the first N dimensions, for each N.", default_text="all")
@options.device
@options.precision("fp32")
@options.threads
@options.imports
@options.as_json
def command(
    models: tuple[str, ...],
    suites: tuple[str, ...],
    data: str,
    seeds: bool,
    allow_partial: bool,
    settings: tuple[str, ...],
    markdown: bool,
    dims: str | None,
    as_json: bool,
    **encoder: Any,
) -> None:
    """Compare the first of MODELS with each of the others, on the suites of cse eval.

    Except in the suite geometry, each difference has a 95 % confidence interval from a bootstrap over examples. Pairs
    that share a sentence are resampled together, and ranks are recomputed for each resample. p-values are adjusted for
    the number of tasks by Holm's method; the significance level is 0.05.

    Without --seeds, checkpoints are compared, not methods: a difference may be due to the training seed alone. With
    --seeds, each of MODELS lists the checkpoints of one method, separated by commas. The seeds must be the same, in the
    same order, for every method. Methods are then compared by a paired t-test over seeds.
    """
    from ..evaluation.open_suites import option_tables
    from ..evaluation.run import compare_models

    options.check_pooler(encoder["pooler"])
    printing.check_output()
    given = [model.split(",") if seeds else [model] for model in models]
    used = {name: options.model_folder(name) for name in dict.fromkeys(name for side in given for name in side)}
    with progress_of("evaluating", "texts") as progress:
        results = compare_models(
            [[used[name] for name in side] for side in given],
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
        tables = [{"a": models[0], "b": b, "tasks": found.tasks} for b, found in zip(models[1:], results, strict=True)]
        printing.result({"compares": unit_of, "precision": precision, "comparisons": tables}, True, [])
        return
    for model, found in zip(models[1:], results, strict=True):
        lines = [cells(record) for record in found.tasks]
        printing.table(lines, title=f"{model} against {models[0]}", markdown=markdown)
    click.echo(f"This compares {unit_of}. A is the first model. p-values are adjusted by Holm's method.")
    click.echo(f"Encoded in {precision} ({results[0].precision_reason}).")


def cells(record: dict[str, Any]) -> dict[str, str]:
    """Returns the table cells of one task as text; examples, interval and p-value are empty without a test."""
    tested = "p" in record
    digits = 2 if abs(record["a"]) > 2 else 4
    return {
        "task": record["task"],
        "examples": f"{record['examples']:,}" if tested else "",
        "A": f"{record['a']:.{digits}f}",
        "B": f"{record['b']:.{digits}f}",
        "difference": f"{record['mean']:+.{digits}f}",
        "95 % interval": f"[{record['low']:+.{digits}f}, {record['high']:+.{digits}f}]" if tested else "",
        "p (Holm)": f"{record['p_holm']:.3f}" if tested else "",
        "B is": record["verdict"],
    }

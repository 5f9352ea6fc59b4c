"""cse compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from . import console, encoder_options, options
from .progress import counting

if TYPE_CHECKING:
    from ..evaluation.base import Report


@click.command("compare")
@click.argument("models", nargs=-1, required=True)
@options.option("--suite", "suites", default=("sts",), multiple=True, metavar="NAME", help="See cse methods.")
@options.option("--data", required=True, metavar="PATH", show_default=False, help="File or folder of the data.")
@options.option("--seeds", is_flag=True, show_default=False, help="A model is a list A1,A2,... with one per seed.")
@options.option("--allow-partial", is_flag=True, show_default=False, help="Accept incomplete STS and transfer files.")
@options.option("--set", "settings", multiple=True, metavar="NAME.OPTION=VALUE", help="An option of an evaluation.")
@options.option("--markdown", is_flag=True, show_default=False, help="Print Markdown tables.")
@options.pooler
@encoder_options.prompt
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
    pooler: str | None,
    prompt: str | None,
    device: str,
    precision: str,
    threads: int,
    as_json: bool,
) -> None:
    """Compare each further model of MODELS with the first one, with the suites of cse eval.

    Every difference has a 95 % interval from a bootstrap over examples: pairs that share a sentence are drawn together,
    and ranks are computed anew. p-values are adjusted over the tasks by Holm's method; the level is 0.05. Geometry has
    differences only.

    This compares checkpoints: another seed of the same method may differ as much. With --seeds, each argument lists
    checkpoints of one method separated by commas, with the same seeds in the same order, and methods are compared by a
    paired t-test over seeds.
    """
    from ..evaluation.comparison import adjust, compare
    from ..evaluation.suites import open_suites

    options.check_pooler(pooler)
    console.check_output()
    given = [model.split(",") if seeds else [model] for model in models]
    used = {name: options.model_folder(name) for name in dict.fromkeys(name for side in given for name in side)}
    sides = [[used[name] for name in side] for side in given]
    if len(sides) < 2:
        raise InputError("MODELS: at least two models are compared; name another one")
    if seeds and (len({len(side) for side in sides}) > 1 or len(sides[0]) < 2):
        raise InputError("--seeds: every argument must list the same number of checkpoints, at least two: A1,A2 B1,B2")
    evaluations = open_suites(suites, data, settings, allow_partial)

    from ..models.device import set_threads
    from ..models.inference import Encoder

    set_threads(threads)
    checkpoints = list(dict.fromkeys(name for side in sides for name in side))
    reports: dict[str, dict[str, Report]] = {}  # by checkpoint and suite; each checkpoint is evaluated once
    total = len(checkpoints) * sum(evaluation.work() for evaluation in evaluations.values())
    with counting("evaluating", total, "texts") as progress:
        for name in checkpoints:
            encoder = Encoder(name, pooler=pooler, device=device, precision=precision, prompt=prompt)
            reports[name] = {suite: evaluation(encoder, progress) for suite, evaluation in evaluations.items()}
    results: list[dict[str, Any]] = []
    for model, side in zip(models[1:], sides[1:], strict=True):
        records = [
            record
            for suite in evaluations
            for record in compare([reports[n][suite] for n in sides[0]], [reports[n][suite] for n in side], seeds)
        ]
        adjust(records)
        results.append({"a": models[0], "b": model, "tasks": records})
    unit_of = "methods, by a paired t-test over seeds" if seeds else "checkpoints, not methods"
    if as_json:
        console.result({"compares": unit_of, "precision": encoder.precision, "comparisons": results}, True, [])
        return
    for found in results:
        lines = [cells(record) for record in found["tasks"]]
        console.table(lines, title=f"{found['b']} against {found['a']}", markdown=markdown)
    click.echo(f"This compares {unit_of}. A: the first model. p-values are adjusted by Holm's method.")
    click.echo(f"Encoded in {encoder.precision} ({encoder.precision_reason}).")


def cells(record: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a record as text; those of the interval are empty without one."""
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

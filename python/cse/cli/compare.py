"""cse compare."""

from __future__ import annotations

from typing import Any

import click

from ..errors import InputError
from . import console, options
from .progress import counting


@click.command("compare")
@click.argument("models", nargs=-1, required=True)
@options.option("--data", required=True, metavar="DIR", show_default=False, help="Folder of the STS files.")
@options.option("--seeds", is_flag=True, show_default=False, help="A model is a list A1,A2,... with one per seed.")
@options.option("--allow-partial", is_flag=True, show_default=False, help="Score files that lack pairs.")
@options.pooler
@options.device
@options.threads
@options.as_json
def command(
    models: tuple[str, ...],
    data: str,
    seeds: bool,
    allow_partial: bool,
    pooler: str | None,
    device: str,
    threads: int,
    as_json: bool,
) -> None:
    """Compare each further model of MODELS with the first one on the STS tasks in the folder --data.

    Every difference has a 95 % interval from a bootstrap over pairs: those that share a sentence are drawn together,
    and ranks are computed anew. p-values are adjusted over the tasks by Holm's method; the level is 0.05.

    This compares checkpoints: another seed of the same method may differ as much. With --seeds, each argument lists
    checkpoints of one method separated by commas, with the same seeds in the same order, and methods are compared by a
    paired t-test over seeds.
    """
    from ..evaluation.comparison import compare
    from ..evaluation.sts import load_tasks

    options.check_pooler(pooler)
    console.check_output()
    sides = [model.split(",") if seeds else [model] for model in models]
    if len(sides) < 2:
        raise InputError("MODELS: at least two models are compared; name another one")
    if seeds and (len({len(side) for side in sides}) > 1 or len(sides[0]) < 2):
        raise InputError("--seeds: every argument must list the same number of checkpoints, at least two: A1,A2 B1,B2")
    tasks = load_tasks(data, allow_partial)

    from ..evaluation.geometry import unit
    from ..models.device import set_threads
    from ..models.inference import Encoder

    set_threads(threads)
    total = sum(map(len, sides)) * sum(len(pairs.gold) * 2 for _, pairs in tasks)
    cosines: list[list[list[Any]]] = []  # side, checkpoint, task
    with counting("encoding", total, "sentences") as progress:
        for side in sides:
            cosines.append([])
            for model in side:
                encoder = Encoder(model, pooler=pooler, device=device)
                cosines[-1].append([])
                for _, pairs in tasks:
                    left = unit(encoder.encode(pairs.left, progress=progress))
                    right = unit(encoder.encode(pairs.right, progress=progress))
                    cosines[-1][-1].append((left * right).sum(1))
    results = [
        {"a": models[0], "b": model, "tasks": compare(tasks, cosines[0], other, seeds)}
        for model, other in zip(models[1:], cosines[1:], strict=True)
    ]
    unit_of = "methods, by a paired t-test over seeds" if seeds else "checkpoints, not methods"
    if as_json:
        console.result({"compares": unit_of, "comparisons": results}, True, [])
        return
    _print(results)
    click.echo(f"This compares {unit_of}. A: the first model. p-values are adjusted by Holm's method.")


def _print(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for result in results:
        table = Table(title=Text(f"{result['b']} against {result['a']}"), title_justify="left")
        for name in ("task", "pairs", "A", "B", "difference", "95 % interval", "p (Holm)", "B is"):
            table.add_column(name, justify="left" if name in ("task", "B is") else "right")
        for row in result["tasks"]:
            table.add_row(
                row["task"],
                f"{row['pairs']:,}",
                f"{row['a']:.2f}",
                f"{row['b']:.2f}",
                f"{row['mean']:+.2f}",
                f"[{row['low']:+.2f}, {row['high']:+.2f}]",
                f"{row['p_holm']:.3f}",
                row["verdict"],
            )
        Console().print(table)

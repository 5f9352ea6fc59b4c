"""cse eval."""

from __future__ import annotations

import click

from . import console, options

# Averages over the seven test sets, as published (other people's reproductions in brackets).
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
@options.option("--data", required=True, metavar="DIR", show_default=False, help="Folder of STS files.")
@options.pooler
@options.device
@options.threads
@options.as_json
def command(model: str, data: str, pooler: str | None, device: str, threads: int, as_json: bool) -> None:
    """Score MODEL, a folder or a name, on the STS tasks found in DIR (sts12.test.tsv, ..., sickr.test.tsv).

    Each file holds score, sentence1, sentence2 by tabs. Protocol: all subsets of a task joined, cosine, Spearman x 100.
    """
    from ..errors import InputError
    from ..evaluation.sts import SEVEN, find_tasks, read_pairs, score_pairs
    from ..training.config import POOLERS

    if pooler is not None and pooler not in POOLERS:
        raise InputError(f"--pooler: {pooler!r} is unknown; choose one of {', '.join(POOLERS)}")
    tasks = find_tasks(data)
    sets = {task.key: read_pairs(task.path) for task in tasks}

    import torch

    from ..models.inference import Encoder

    if threads:
        torch.set_num_threads(threads)
    encoder = Encoder(model, pooler=pooler, device=device)
    total = sum(len({*pairs.left, *pairs.right}) for pairs in sets.values())
    scores = {}
    with console.counting("evaluating", total, "sentences") as progress:
        for task in tasks:
            scores[task.key] = score_pairs(encoder, sets[task.key], progress)
    short = [task for task in tasks if scores[task.key].pairs != task.expected]
    whole = all(key in scores for key in SEVEN) and not any(task.key in SEVEN for task in short)
    average = sum(scores[key].spearman for key in SEVEN) / len(SEVEN) if whole else None
    notes = [
        f"{task.title}: {scores[task.key].pairs:,} pairs, and the whole task has {task.expected:,}: not comparable"
        for task in short
    ]
    if encoder.plain:
        notes.append(f"{model}: a plain directory does not say how to pool; took --pooler avg")
    if as_json:
        value = {
            "model": model,
            "tasks": {
                task.key: {
                    "pairs": scores[task.key].pairs,
                    "expected": task.expected,
                    **scores[task.key].to_dict(),
                }
                for task in tasks
            },
            "average_of_seven": average,
            "notes": notes,
        }
        console.result(value, True, [])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(model), title_justify="left")
    for name in ("task", "pairs", "Spearman", "alignment", "uniformity"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for task in tasks:
        score = scores[task.key]
        table.add_row(
            task.title,
            f"{score.pairs:,}",
            f"{score.spearman:.2f}",
            f"{score.alignment:.3f}",
            f"{score.uniformity:.3f}",
        )
    out = Console(width=None)
    if average is not None:
        table.add_section()
        table.add_row("average of the seven", "", f"{average:.2f}", "", "")
    out.print(table)
    for note in notes:
        click.echo(f"Note: {note}")
    if average is not None:
        published = "; ".join(f"{name} {value}" for name, value in PUBLISHED)
        click.echo(f"Published averages of the seven: {published}. Seeds alone move one by about 0.8.")

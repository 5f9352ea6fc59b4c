"""cse train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..errors import InputError
from . import console, options

BY_RECIPE = "  [default: by recipe]"


def _recipe(*names: str, help: str, **settings: Any) -> Callable[[options.F], options.F]:
    return options.option(*names, help=help + BY_RECIPE, show_default=False, **settings)


@click.command("train")
@click.argument("corpus", nargs=-1)
@options.option("-o", "--output", default="runs", metavar="DIR", help="Folder for runs.")
@options.option("--name", help="The run's folder in it.  [default: from model, loss and seed]")
@options.option("--preset", metavar="NAME", help="A paper's recipe, like simcse-bert-base or una-bert-base.")
@options.option("--config", "config_file", metavar="FILE", help="A run's config.toml, to run it again.")
@options.option("--model", default="bert-base-uncased", help="minilm, a folder, or a hub name.")
@_recipe("--pooler", metavar="NAME", help="cls, cls_before_pooler, avg, avg_top2, avg_first_last, avg_embed_last.")
@_recipe("--max-length", type=int, help="Tokens of a training sentence: 32.")
@options.option("--loss", default="standard", metavar="standard|focal|mixed")
@_recipe("--temperature", type=float, help="tau: 0.05; focal on BERT 0.07.")
@options.option("--margin", default=0.3, help="Focal's m.")
@options.option("--mix-lambda", default=0.2, help="Weight of the own positive in a mixed negative.")
@options.option("--mix-variant", default="paper", metavar="paper|release", help="MixCSE as in the paper, or its code.")
@_recipe("--negatives", metavar="cross|all", help="Which views are negatives: cross; with --una rows, all.")
@options.option("--una/--no-una", default=False, help="Synthetic hard negatives from the TF-IDF index.")
@options.option("--una-every", default=5, help="UNA's turn: steps 0, N, 2N, ...; 0 is off.")
@options.option("--una-as", default="rows", metavar="rows|columns", help="Negatives as pairs of their own, or columns.")
@options.drawing
@_recipe("--batch-size", type=int, help="Sentences of a step.")
@_recipe("--lr", type=float, help="AdamW's rate.")
@_recipe("--schedule", metavar="linear|constant", help="The rate falls to 0, or stays.")
@_recipe("--weight-decay", type=float, help="AdamW's decay: 0.")
@_recipe("--clip-norm", type=float, help="Largest gradient norm: 1; 0 does not clip.")
@options.option("--epochs", default=1)
@options.option("--max-steps", type=int, metavar="N", help="Stop after N steps.")
@options.option("--dev", metavar="FILE.tsv", help="score, sentence1, sentence2: best/ is the best Spearman.")
@_recipe("--eval-every", type=int, metavar="N", help="Steps between evaluations: 125; 0: at the end alone.")
@options.option("--data", metavar="DIR", help="Score best/ on the STS files in DIR at the end.")
@options.seed
@options.device
@options.threads
@options.reading
@options.as_json
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, config_file: str | None, **values: Any) -> None:
    """Train an encoder on CORPUS (one sentence per line), or on the files the TF-IDF index was built from.

    The result is DIR/NAME/best, which AutoModel and SentenceTransformer load. Values not given come from --preset, else
    from the recipe of the loss, else from that of the model's family.
    """
    from ..training.config import TrainConfig, preset, read_toml, validate

    given = {
        key: value
        for key, value in values.items()
        if ctx.get_parameter_source(key) is not click.core.ParameterSource.DEFAULT
    }
    name = given.pop("preset", None)
    if name and config_file:
        raise InputError("--preset: cannot be given together with --config, which says everything")
    stored = read_toml(config_file) if config_file else preset(name) if name else {}
    if config_file:
        stored.pop("name", None)
    config = TrainConfig(**{**stored, **given})
    validate(config)  # before torch is imported: a wrong flag is answered at once

    from ..training.loop import train

    reporter = console.ConsoleReporter()
    try:
        result = train(config, reporter)
    finally:
        reporter.close()
    lines = [
        f"{result.steps:,} steps in {console.duration(result.seconds)}"
        + (f", {result.una_steps:,} of them with synthetic negatives" if result.una_steps else ""),
        f"before  {console.scores(result.before)}",
        f"after   {console.scores(result.after)}",
        *result.notes,
        *([", ".join(f"{task} {score:.2f}" for task, score in result.sts.items())] if result.sts else []),
        f"{result.folder / 'best'}",
    ]
    console.result(result.to_dict(), as_json, lines)

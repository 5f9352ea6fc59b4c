"""cse train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..training.callbacks import Callback
from . import console, options
from .options import group
from .progress import ProgressDisplay, duration

if TYPE_CHECKING:
    from ..augment.base import Example

RECIPE = "by recipe"
# Flags of methods -> (method, option).
METHOD_FLAGS = {
    "una_every": ("una", "every"),
    "una_as": ("una", "use_as"),
    **{name: ("una", name) for name in ("beta", "radius", "surface", "replace_which", "replace_with")},
}


@click.command("train", cls=options.GroupedCommand)
@click.argument("corpus", nargs=-1)
@group("Data")
@options.option("--tfidf", default="tfidf", metavar="DIR", help="Folder of the TF-IDF index.")
@options.option("--column", metavar="NAME", help="Column of .csv, .tsv, .jsonl and .parquet files with the sentences.")
@options.option("--encoding-errors", default="strict", metavar="strict|replace", help="What to do with invalid UTF-8.")
@options.option("--max-line-bytes", default=1 << 20, type=int, metavar="N", help="Longer rows are refused.")
@options.option("--max-length", type=int, help="Tokens of a training sentence.", default_text="32")
@group("Model")
@options.option("--model", help="minilm, a folder, or a hub name.", default_text="bert-base-uncased")
@options.option("--pooler", metavar="NAME", help=options.POOLER_NAMES, default_text="the model's own, else cls")
@options.option("--preset", metavar="NAME", help="A published recipe, like simcse-bert-base or una-bert-base.")
@options.option("--config", "config_file", metavar="FILE", help="A run's config.toml, to repeat it.")
@group("Positives and negatives")
@options.option("--positive", metavar="NAME", help="What makes the positive; see cse methods.", default_text="dropout")
@options.option("--una/--no-una", default=False, help="Synthetic hard negatives from the TF-IDF index (UNA).")
@options.option("--una-every", type=int, metavar="N", help="UNA on steps 0, N, 2N, ...; 0: never.", default_text="5")
@options.option("--una-as", metavar="pairs|hard-negatives", help="Form of UNA's negatives.", default_text="pairs")
@options.option("--beta", type=float, help="UNA: mean replacement probability, 0 to 1.", default_text="0.5")
@options.option("--radius", metavar="N|P%", help="UNA: window of ranks.", default_text="min(4000, V/100)")
@options.option("--surface", metavar="keep|plain", help="UNA: form of the text.", default_text="keep; treebank: plain")
@options.option("--replace-which", metavar="tfidf|random", help="UNA: which words are replaced.", default_text="tfidf")
@options.option("--replace-with", metavar="radius|random", help="UNA: what replaces them.", default_text="radius")
@options.option("--min-df", default=0, type=int, metavar="N", help="Use only terms in N sentences or more.")
@options.option("--max-terms", type=int, metavar="N", help="Use only the N most frequent terms.")
@options.option("--negative", "negatives", multiple=True, metavar="NAME", help="Another negative; see cse methods.")
@options.option(
    "--feature-augmentation", "feature_augmentations", multiple=True, metavar="NAME", help="Changes embeddings."
)
@group("Loss")
@options.option("--loss", default="standard", metavar="standard|focal|mixed", help="SimCSE, Focal-InfoNCE or MixCSE.")
@options.option("--temperature", type=float, help="tau.", default_text="0.05; focal on BERT 0.07")
@options.option("--objective", metavar="infonce|nt-xent", help="Which views are negatives.", default_text=RECIPE)
@options.option("--margin", default=0.3, help="m of the focal logits.")
@options.option("--mixed-negatives/--no-mixed-negatives", default=None, help="MixCSE's negatives with any loss.")
@options.option("--mix-lambda", default=0.2, help="Weight of the own positive in a mixed negative.")
@options.option("--mix-variant", default="paper", metavar="paper|release", help="MixCSE as in the paper, or its code.")
@options.option("--loss-term", "loss_terms", multiple=True, metavar="NAME", help="A further term; see cse methods.")
@group("Optimisation")
@options.option("--batch-size", type=int, help="Sentences per step.", default_text=RECIPE)
@options.option("--lr", type=float, help="Learning rate of AdamW.", default_text=RECIPE)
@options.option("--lr-scheduler", metavar="linear|constant", help="Linear to 0, or constant.", default_text=RECIPE)
@options.option("--weight-decay", type=float, help="Weight decay of AdamW.", default_text="0")
@options.option("--max-grad-norm", type=float, help="Clips the gradient; 0: never.", default_text="1")
@options.option(
    "--merge-with-base", type=float, help="Share of the base weights in what is saved.", default_text=RECIPE
)
@options.option("--epochs", default=1, help="Passes over the corpus.")
@options.option("--max-steps", type=int, metavar="N", help="Stop after N steps.")
@group("Evaluation")
@options.option("--dev", metavar="FILE.tsv", help="score, sentence1, sentence2: best/ is the best Spearman.")
@options.option(
    "--eval-every", type=int, metavar="N", help="Steps between evaluations; 0: at the end.", default_text="125"
)
@options.option("--data", metavar="DIR", help="Score best/ on the STS files in DIR at the end.")
@options.option("--allow-partial", is_flag=True, show_default=False, help="Accept STS files that lack pairs.")
@group("Run")
@options.option("-o", "--output", default="runs", metavar="DIR", help="Folder of runs.")
@options.option("--name", help="Name of the run's folder.", default_text="from model, loss and seed")
@options.option("--set", "settings", multiple=True, metavar="METHOD.OPTION=VALUE", help="An option of a method.")
@options.option("--log-every", default=10, metavar="N", help="Steps between writes of the log.")
@options.seed
@options.device
@options.threads
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    /,
    as_json: bool,
    config_file: str | None,
    settings: tuple[str, ...],
    una: bool,
    **values: Any,
) -> None:
    """Train an encoder on CORPUS (one sentence per line), or on the files the TF-IDF index was built from.

    The result is DIR/NAME/best, which AutoModel and SentenceTransformer load. Values that are not given come from
    --preset, else from the recipe of the loss, else from that of the model family. cse methods lists the augmentations
    and loss terms with their options, which --set and the configuration file set ([una] beta = 0.3).
    """
    from ..registry import parse_setting
    from ..training.config import TrainConfig, read_toml
    from ..training.recipes import merge, with_preset

    given = {name: value for name, value in values.items() if options.was_given(ctx, name)}
    if options.was_given(ctx, "una"):
        given["una"] = una
    tables: dict[str, dict[str, Any]] = {}
    for name, (method, option) in METHOD_FLAGS.items():
        if name in given:
            tables.setdefault(method, {})[option] = given.pop(name)
    for text in settings:
        method, option, value = parse_setting(text)
        tables.setdefault(method, {})[option] = value
    if "preset" in given and config_file:
        raise InputError("--preset: cannot be combined with --config, which holds every value")
    stored = read_toml(config_file) if config_file else {}
    stored.pop("name", None)
    # Before torch is imported, so that a wrong flag is answered at once.
    # Before torch is imported, so that a wrong flag is answered at once.
    config = with_preset(TrainConfig(**merge({**given, "options": tables}, stored)))

    from ..training.loop import train

    callback = ConsoleCallback()
    try:
        result = train(config, callback)
    finally:
        callback.close()
    lines = [
        f"{result.steps:,} steps in {duration(result.seconds)}"
        + (f", {result.synthetic_steps:,} of them with synthetic negatives" if result.synthetic_steps else ""),
        f"before  {console.scores(result.before)}",
        f"after   {console.scores(result.after)}",
        *result.notes,
        *([", ".join(f"{task} {score:.2f}" for task, score in result.sts.items())] if result.sts else []),
        f"{result.folder / 'best'}",
    ]
    console.result(result.to_dict(), as_json, lines)


class ConsoleCallback(Callback):
    """Shows a run on standard error."""

    def __init__(self) -> None:
        self.display: ProgressDisplay | None = None
        self.loss = ""

    def on_train_begin(self, facts: dict[str, str], examples: list[Example]) -> None:
        """One line per fact, then the examples."""
        for name, value in facts.items():
            console.say(f"{name:>9}  {value}")
        console.print_examples(examples)

    def on_status(self, text: str) -> None:
        """A line on what takes time, unless a bar shows it."""
        if self.display is None:
            console.say(f"{text} ...")

    def on_warning(self, text: str) -> None:
        """A line, also beside a bar."""
        if self.display is not None:
            self.display.print(f"Warning: {text}")
        else:
            console.say(f"Warning: {text}")

    def on_step_end(self, step: int, steps: int) -> None:
        """Moves the bar. The estimate is announced once the second step is done, since the first warms up."""
        if self.display is None:
            self.display = ProgressDisplay("training", "steps", steps)
        self.display.update(step, text=self.loss)
        if step == 4 and steps > 20:
            import time

            left = self.display.seconds_left(time.monotonic())
            if left is not None:
                self.display.print(f"{steps:,} steps, about {duration(left)} left ({left / (steps - 4):.2f} s a step)")

    def on_log(self, record: dict[str, Any]) -> None:
        """The loss beside the bar."""
        self.loss = f"loss {record['loss']:.3g}"

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """The scores."""
        text = f"step {step:,}: {console.scores(record)}" if step else f"before training: {console.scores(record)}"
        if self.display is not None:
            self.display.print(text)
        else:
            console.say(text)

    def on_interrupt(self, why: str) -> None:
        """What was saved."""
        self.close()
        console.say(why)

    def on_train_end(self, result: Any) -> None:
        """The result itself goes to standard output."""
        self.close()

    def close(self) -> None:
        """Removes the bar."""
        if self.display is not None:
            self.display.close()
            self.display = None

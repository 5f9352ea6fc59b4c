"""cse train."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..training.callbacks import Callback, score_text
from . import console, options
from .options import group
from .progress import PhaseDisplay, ProgressDisplay, duration

if TYPE_CHECKING:
    from ..augment.base import Example
    from ..training.config import TrainConfig

RECIPE = "by recipe"
# Parameters that set an option of a method: (method, option).
METHOD_FLAGS = {
    "una_every": ("una", "every"),
    "una_as": ("una", "use_as"),
    "mlm_weight": ("mlm", "weight"),
    **{name: ("una", name) for name in ("beta", "radius", "surface", "replace_which", "replace_with")},
}


@click.command("train", cls=options.GroupedCommand)
@click.argument("corpus", nargs=-1)
@group("Data")
@options.option(
    "--pairs", multiple=True, metavar="FILE", help="Table of anchor, positive and optionally hard negative, as CORPUS."
)
@options.option("--columns", metavar="A,B[,C]", help="Columns of --pairs.", default_text="by their names")
@options.option("--where", metavar="COLUMN=VALUE", help="Rows of --pairs that are positives.", default_text="all")
@options.option("--min-score", type=float, metavar="X", help="Lowest score of positives in --pairs.")
@options.option("--tfidf", default="tfidf", metavar="DIR", help="Folder of the TF-IDF index.")
@options.option("--column", metavar="NAME", help="Column of .csv, .tsv, .jsonl and .parquet files with the sentences.")
@options.option("--encoding-errors", default="strict", metavar="strict|replace", help="How to handle invalid UTF-8.")
@options.option("--max-line-bytes", default=1 << 20, type=int, metavar="N", help="Maximum row length.")
@options.option("--cache", metavar="DIR", help="Cache folder for large corpora.", default_text="the user's; cse cache")
@options.option("--max-length", type=int, help="Maximum tokens per sentence.", default_text="32")
@group("Model")
@options.option("--model", help="minilm, a folder, or a hub name.", default_text="bert-base-uncased")
@options.option("--pooler", metavar="NAME", help=options.POOLER_NAMES, default_text="the model's own, else cls")
@options.option("--keep-head/--no-keep-head", default=None, help="Keep the MLP of --pooler cls.  [default: --pairs]")
@options.option("--preset", metavar="NAME", help="A published recipe, like simcse-bert-base or una-bert-base.")
@options.option("--config", "config_file", metavar="FILE", help="A run's config.toml, to repeat it.")
@group("Positives and negatives")
@options.option(
    "--positive",
    metavar="NAME",
    help="Augmentation for positives; see cse methods.",
    default_text="dropout; adapt: spans",
)
@options.option("--una/--no-una", default=False, help="Synthetic hard negatives from the TF-IDF index (UNA).")
@options.option(
    "--una-every", type=int, metavar="N", help="UNA on steps 0, N, ...; 0: never.", default_text="5; adapt: 1"
)
@options.option(
    "--una-as",
    metavar="pairs|hard-negatives",
    help="Form of the negatives.",
    default_text="pairs; adapt: hard",
)
@options.option("--beta", type=float, help="UNA: mean replacement probability, 0 to 1.", default_text="0.5")
@options.option("--radius", metavar="N|P%", help="UNA: window of ranks.", default_text="min(4000, V/100)")
@options.option("--surface", metavar="keep|plain", help="UNA: output text.", default_text="keep; treebank: plain")
@options.option("--replace-which", metavar="tfidf|random", help="UNA: which words are replaced.", default_text="tfidf")
@options.option(
    "--replace-with", metavar="radius|random", help="UNA: how replacements are sampled.", default_text="radius"
)
@options.option("--min-df", default=0, type=int, metavar="N", help="Use only terms in N sentences or more.")
@options.option("--max-terms", type=int, metavar="N", help="Use only the N most frequent terms.")
@options.option("--negative", "negatives", multiple=True, metavar="NAME", help="Further negatives; see cse methods.")
@options.option(
    "--feature-augmentation", "feature_augmentations", multiple=True, metavar="NAME", help="Augmentation of embeddings."
)
@options.option(
    "--anchor-hook", metavar="NAME", help="Changes the anchors' forward pass; see cse methods.", default_text="none"
)
@options.option("--positive-hook", metavar="NAME", help="The same for the positives.", default_text="none")
@options.option("--anchor-dropout", type=float, metavar="P", help="Dropout of the anchors.", default_text="the model's")
@options.option("--positive-dropout", type=float, metavar="P", help="Dropout of positives.", default_text="the model's")
@options.option(
    "--positive-encoder", metavar="copy|MODEL", help="Another encoder for the positives.", default_text="the same"
)
@options.option(
    "--encoder-method", "encoder_methods", multiple=True, metavar="NAME", help="Changes the encoder; see cse methods."
)
@options.option("--import", "imports", multiple=True, metavar="FILE.py", help="Python file that registers methods.")
@options.option("--keep-duplicates/--no-keep-duplicates", default=None, help="Equal sentences stay negatives.")
@group("Loss")
@options.option(
    "--loss",
    default="standard",
    metavar="standard|focal|mixed|NAME",
    help="SimCSE, Focal-InfoNCE or MixCSE; or a loss term that takes their place.",
)
@options.option("--temperature", type=float, help="tau.", default_text="0.05; focal on BERT 0.07; adapt 0.1")
@options.option("--objective", metavar="infonce|nt-xent", help="Which views are negatives.", default_text=RECIPE)
@options.option("--margin", default=0.3, help="m of the focal logits.")
@options.option("--mixed-negatives/--no-mixed-negatives", default=None, help="Mixed negatives (MixCSE) with any loss.")
@options.option("--mix-lambda", default=0.2, help="Weight of the own positive in a mixed negative.")
@options.option(
    "--mix-variant", default="paper", metavar="paper|release", help="MixCSE as in the paper, or as in its code."
)
@options.option("--hard-negative-weight", default=1.0, help="alpha of the own hard negative of --pairs.")
@options.option("--mlm-weight", type=float, help="Adds masked language modelling with this weight.", default_text="0")
@options.option("--loss-term", "loss_terms", multiple=True, metavar="NAME", help="A further term; see cse methods.")
@group("Optimisation")
@options.option("--batch-size", type=int, help="Sentences per step.", default_text=RECIPE)
@options.option("--lr", type=float, help="Learning rate of AdamW.", default_text=RECIPE)
@options.option("--lr-scheduler", metavar="linear|cosine|constant", help="Decrease of the rate.", default_text=RECIPE)
@options.option("--warmup", default=0.0, metavar="SHARE", help="Share of the steps in which the rate rises.")
@options.option("--weight-decay", type=float, help="Weight decay of AdamW.", default_text="0; adapt 0.01")
@options.option("--max-grad-norm", type=float, help="Clips the gradient; 0: never.", default_text="1")
@options.option(
    "--merge-with-base", type=float, help="Share of the base weights in what is saved.", default_text=RECIPE
)
@options.option(
    "--epochs", type=int, metavar="N", help="Passes over the corpus.", default_text="1, or as --max-steps takes"
)
@options.option("--max-steps", type=int, metavar="N", help="Stop after N steps; with --epochs, the fewer steps count.")
@options.option("--accumulate", default=1, metavar="N", help="Batches whose gradients are averaged in a step.")
@options.option(
    "--chunk-size", type=int, metavar="N", help="Sentences in memory at a time: large batches.", default_text="all"
)
@options.option("--precision", default="auto", metavar="fp32|bf16|auto", help="Precision; auto: bf16 on CUDA.")
@options.option("--compile/--no-compile", default=False, help="Compile the transformer by torch.compile.")
@group("Evaluation")
@options.option(
    "--dev", multiple=True, metavar="FILE", help="Scored pairs, to select best/ by Spearman; several: by the mean."
)
@options.option(
    "--eval-every", type=int, metavar="N", help="Steps between evaluations; 0: at the end.", default_text="125"
)
@options.option("--patience", type=int, metavar="N", help="Stop after N evaluations without a higher score on --dev.")
@options.option("--data", metavar="DIR", help="Evaluate best/ on the STS files in DIR at the end.")
@options.option("--allow-partial", is_flag=True, show_default=False, help="Accept incomplete STS files.")
@group("Run")
@options.option("-o", "--output", default="runs", metavar="DIR", help="Folder of runs.")
@options.option("--name", help="Name of the run's folder.", default_text="from model, loss and seed")
@options.option("--set", "settings", multiple=True, metavar="METHOD.OPTION=VALUE", help="An option of a method.")
@options.option("--resume", metavar="RUN", help="Go on with an interrupted run, from its last checkpoint.")
@options.option(
    "--save-every", default=0, metavar="N", help="Steps between checkpoints; 0: at the end, or on a signal."
)
@options.option("--keep-checkpoints", default=2, metavar="N", help="Checkpoints that are kept.")
@options.option("--logger", "loggers", multiple=True, metavar="NAME", help="tensorboard, besides log.jsonl.")
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
    resume: str | None,
    settings: tuple[str, ...],
    una: bool,
    **values: Any,
) -> None:
    """Train an encoder on CORPUS (one sentence per line), or on the files the TF-IDF index was built from.

    The result is DIR/NAME/best, which AutoModel and SentenceTransformer can load. Values that are not given are taken
    from --preset, else from the defaults of the loss, else from those of the model family. cse methods lists the
    augmentations and loss terms with their options, which are set with --set una.beta=0.3 or in the configuration file.
    """
    from ..registry import parse_setting
    from ..training.config import TrainConfig, read_toml
    from ..training.inputs import check_source
    from ..training.recipes import merge, repeated, with_preset

    given = {name: value for name, value in values.items() if options.was_given(ctx, name)}
    if options.was_given(ctx, "una"):
        given["una"] = una
    if "columns" in given:
        given["columns"] = tuple(name.strip() for name in given["columns"].split(","))
    tables: dict[str, dict[str, Any]] = {}
    if "mlm_weight" in given:
        given["loss_terms"] = (*given.get("loss_terms", ()), *(["mlm"] if given["mlm_weight"] else []))
        if not given["mlm_weight"]:
            del given["mlm_weight"]
    for name, (method, option) in METHOD_FLAGS.items():
        if name in given:
            tables.setdefault(method, {})[option] = given.pop(name)
    for text in settings:
        method, option, value = parse_setting(text)
        tables.setdefault(method, {})[option] = value
    if resume is not None:
        _run(*_resumed(resume, {**given, **({"options": tables} if tables else {})}, config_file), as_json)
        return
    if "preset" in given and config_file:
        raise InputError("--preset: cannot be combined with --config, which holds every value")
    stored = read_toml(config_file) if config_file else {}
    base, before = repeated(stored, {**given, **({"options": tables} if tables else {})})
    # Validated before torch is imported, so that an invalid flag is reported immediately.
    config = with_preset(TrainConfig(**merge({**given, "options": tables}, base), given=before))
    check_source(config)
    _run(config, None, as_json)


def _resumed(resume: str, given: dict[str, Any], config_file: str | None) -> tuple[TrainConfig, str]:
    if config_file or "preset" in given:
        raise InputError("--resume: has the configuration of the run; leave out --config and --preset")
    from ..training.loop import resumed_config

    return resumed_config(resume, given), resume


def _run(config: TrainConfig, resume: str | None, as_json: bool) -> None:
    from ..training.leftovers import has_checkpoint
    from ..training.loop import train

    callback = ConsoleCallback()
    try:
        result = train(config, callback, resume=resume)
    finally:
        callback.close()
    if int(os.environ.get("RANK", "0")):  # torchrun: rank 0 prints the result
        return
    resumable = has_checkpoint(result.folder)  # unless it could not be written
    lines = [
        f"{result.steps:,} steps in {duration(result.seconds)}"
        + (f", {result.synthetic_steps:,} of them with synthetic negatives" if result.synthetic_steps else ""),
        f"before  {score_text(result.before)}",
        f"after   {score_text(result.after)}",
        *result.notes,
        *console.neighbours(result.neighbours),
        *([", ".join(f"{task} {score:.2f}" for task, score in result.sts.items())] if result.sts else []),
        *([f"train longer with: cse train --resume {result.folder} --max-steps N"] if resumable else []),
        f"{result.folder / 'best'}",
    ]
    console.result(result.to_dict(), as_json, lines)


class ConsoleCallback(Callback):
    """Shows the progress of a training run on standard error."""

    def __init__(self) -> None:
        self.display: ProgressDisplay | None = None
        self.phases = PhaseDisplay()
        self.loss = ""

    def on_train_begin(self, facts: dict[str, str], examples: list[Example]) -> None:
        """Prints one line per fact, then the examples."""
        for name, value in facts.items():
            console.say(f"{name:>9}  {value}")
        console.print_examples(examples)

    def on_status(self, text: str) -> None:
        """Prints the name of the phase, unless the progress bar is shown."""
        if self.display is None:
            console.say(f"{text} ...")

    def on_progress(self, text: str, done: int, total: int, unit: str) -> None:
        """Shows a bar, and removes it at the end of the phase."""
        self.phases(text, done, total, unit)

    def on_warning(self, text: str) -> None:
        """A line, also beside a bar."""
        if self.display is not None:
            self.display.print(f"Warning: {text}")
        else:
            console.say(f"Warning: {text}")

    def on_step_end(self, step: int, steps: int) -> None:
        """Updates the progress bar; after step 4, prints an estimate of the total time."""
        if self.display is None:
            self.display = ProgressDisplay("training", "steps", steps)
        self.display.update(step, text=self.loss)
        if step == 4 and steps > 20:
            import time

            left = self.display.seconds_left(time.monotonic())
            if left is not None:
                self.display.print(f"{steps:,} steps, about {duration(left)} left ({left / (steps - 4):.2f} s a step)")

    def on_log(self, record: dict[str, Any]) -> None:
        """Shows the loss next to the progress bar."""
        self.loss = f"loss {record['loss']:.3g}"

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """Prints the scores."""
        text = f"step {step:,}: {score_text(record)}" if step else f"before training: {score_text(record)}"
        if self.display is not None:
            self.display.print(text)
        else:
            console.say(text)

    def on_interrupt(self, why: str) -> None:
        """Prints the step and folder of the saved encoder."""
        self.close()
        console.say(why)

    def on_train_end(self, result: Any) -> None:
        """Removes the bar; the command prints the result."""
        self.close()

    def close(self) -> None:
        """Removes the progress bar."""
        self.phases.close()
        if self.display is not None:
            self.display.close()
            self.display = None

"""The settings of a training run: name, type, range, default and documentation of each.

Each setting is declared only here. ``cse.training.train_config`` validates values against the declarations,
``cse.cli.train_options`` makes the options of ``cse train`` from them, and ``cse.training.precedence`` adds the
defaults that depend on preset, loss and model. The first paragraph of a setting's docstring is the help of the option;
the following paragraphs are shown only in the documentation. The docstrings of the classes below are the headings of
the help, in order.

This module imports neither pydantic nor NumPy, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from ..errors import unknown

__all__ = ["GROUPS", "Named", "Paths", "Settings", "Shown", "flag", "hints", "marker", "shown_of"]

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """How a setting is shown on the command line."""

    metavar: str | None = None
    """Name of the value in the help."""
    default: str | None = None
    """Text shown as the default in the help, if the default is not a plain value."""
    flag: str | None = None
    """Flag, if it is not derived from the name of the setting."""
    hidden: bool = False
    """Whether the setting has no command-line option."""


@dataclass(frozen=True)
class Named:
    """Marks a setting whose values must be names in a table: a mapping, a registry, or a function that returns names.

    ``table`` has the form ``module:attribute``.
    """

    table: str

    def names(self) -> list[str]:
        """Returns the names in the table."""
        found = self._found()
        return list(found.names() if hasattr(found, "names") else found)

    def _found(self) -> Any:
        module, attribute = self.table.split(":")
        found = getattr(import_module(module), attribute)
        return found() if callable(found) else found

    def check(self, value: str, name: str) -> None:
        """Raises ``InputError`` if the value is not in the table; ``name`` is the flag in the message."""
        if value not in self._found():  # a table may contain names that it does not list
            raise unknown(name, value, self.names())


@dataclass(frozen=True)
class Paths:
    """Marks a setting that is a list of paths; a single path may be given without a list."""


AUGMENTATION = Named("cse.augment:AUGMENTATIONS")
HOOK = Named("cse.features:HOOKS")

NotNegative = Annotated[int, Ge(0), Shown("N")]
Positive = Annotated[int, Ge(1), Shown("N")]
Objective = Literal["infonce", "nt-xent"]
Scheduler = Literal["linear", "cosine", "constant"]
Precision = Literal["fp32", "bf16", "auto"]
Pooler = Annotated[str, Named("cse.models.pooling:POOLERS")]
MaxLength = Annotated[int, Ge(3), Shown("N")]
BatchSize = Annotated[int, Ge(2), Shown("N")]
AboveZero = Annotated[float, Gt(0)]
AtLeastZero = Annotated[float, Ge(0)]
Temperature = Annotated[float, Ge(1e-4)]  # below 1e-4, logits and their gradients overflow
Weight = Annotated[float, Ge(0), Le(1), Shown("WEIGHT")]
Rate = Annotated[float, Ge(0), Lt(1), Shown("P", default="the model's")]


class Data:
    """Data"""

    corpus: Annotated[tuple[str, ...], Paths(), Shown(hidden=True)] = ()
    """Text files, patterns or tables (``cse.data.readers.resolve``). Default: the files of the TF-IDF index."""
    pairs: Annotated[tuple[str, ...], Paths(), Shown("FILE")] = ()
    """Table of anchors, positives and optionally hard negatives, used instead of CORPUS."""
    columns: Annotated[tuple[str, ...], Shown("A,B[,C]", default="recognised by name")] = ()
    """Columns of --pairs: the anchor, the positive and optionally the hard negative.

    See ``cse.data.pair_columns``."""
    where: Annotated[str | None, Shown("COLUMN=VALUE", default="all")] = None
    """Use only the rows of --pairs that have VALUE in COLUMN."""
    min_score: Annotated[float | None, Shown("X")] = None
    """Use only the rows of --pairs with at least this score."""
    tfidf: Annotated[str, Shown("DIR")] = "tfidf"
    """Folder of the TF-IDF index."""
    column: Annotated[str | None, Shown("NAME")] = None
    """Column that holds the sentences, in .csv, .tsv, .jsonl and .parquet files."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """How to handle invalid UTF-8."""
    max_line_bytes: Positive = 1 << 20
    """Maximum length of a row in bytes."""
    cache: Annotated[str | None, Shown("DIR", default="the user's cache; see cse cache")] = None
    """Cache folder for large corpora.

    See ``cse.data.cache.cache_folder``."""
    max_length: MaxLength | None = None
    """Maximum number of tokens per sentence.

    This applies to training only; the saved model has the maximum length of the base model."""


class Model:
    """Model"""

    model: Annotated[str | None, Shown(default="bert-base-uncased")] = None
    """Model to train: minilm, a folder, or a name on the Hugging Face Hub."""
    pooler: Annotated[Pooler | None, Shown("NAME", default="the model's own, else cls")] = None
    """Pooling of token vectors: cls, cls_before_pooler, avg, avg_top2, avg_first_last, avg_embed_last, max,
    mean_sqrt_len_tokens, weightedmean, lasttoken or mask.

    See ``cse.models.pooling.pool``."""
    eval_pooler: Annotated[Pooler | None, Shown("NAME", default="the same as --pooler")] = None
    """Pooling of the saved model and of the evaluations, if it differs from the pooling in training (ConSERT)."""
    prompt: Annotated[str | None, Shown("NAME|TEXT|auto", default="the model's default prompt")] = None
    """Text to put before each sentence.

    The name of one of the model's prompts, or a text. With ``pairs``, also ``auto``, which stands for the model's
    prompts for queries and for documents. See ``cse.models.prompts``."""
    keep_head: Annotated[bool | None, Shown(default="yes with --pairs")] = None
    """Keep the MLP of --pooler cls in the saved model.

    Supervised SimCSE keeps it; otherwise the MLP is used only in training."""
    preset: Annotated[str | None, Shown("NAME"), Named("cse.training.precedence:preset_names")] = None
    """A published recipe, such as simcse-bert-base or una-bert-base; or adapt, the defaults for sentence encoders."""


class Augmentation:
    """Positives and negatives"""

    positive: Annotated[str | None, Shown("NAME"), AUGMENTATION] = None
    """Augmentation for positives; see cse methods."""
    min_df: NotNegative = 0
    """Use only terms that occur in N sentences or more as replacements."""
    max_terms: Positive | None = None
    """Use only the N most frequent terms as replacements."""
    negatives: Annotated[tuple[str, ...], Shown("NAME", flag="--negative"), AUGMENTATION] = ()
    """Augmentation for synthetic negatives; see cse methods.

    ``una=True`` is short for ``("una",)``."""
    feature_augmentations: Annotated[
        tuple[str, ...],
        Shown("NAME", flag="--feature-augmentation"),
        Named("cse.features:FEATURE_AUGMENTATIONS"),
    ] = ()
    """Augmentation of embeddings; several are applied in the given order."""
    anchor_hook: Annotated[str | None, Shown("NAME", default="none"), HOOK] = None
    """Hook that changes the forward pass of the anchors inside the transformer; see cse methods."""
    positive_hook: Annotated[str | None, Shown("NAME", default="none"), HOOK] = None
    """Hook that changes the forward pass of the positives inside the transformer; see cse methods."""
    anchor_dropout: Rate | None = None
    """Dropout probability of the anchors."""
    positive_dropout: Rate | None = None
    """Dropout probability of the positives."""
    positive_encoder: Annotated[str | None, Shown("copy|MODEL", default="the same")] = None
    """Separate encoder for the positives: copy (starts from the same weights), or a model.

    This encoder is trained, and kept in checkpoints, but not saved in best/."""
    encoder_methods: Annotated[
        tuple[str, ...], Shown("NAME", flag="--encoder-method"), Named("cse.features:ENCODER_METHODS")
    ] = ()
    """Method that changes the encoder (see cse methods); several are applied in the given order."""
    imports: Annotated[tuple[str, ...], Paths(), Shown("FILE.py", flag="--import")] = ()
    """Python file that registers methods."""
    keep_duplicates: bool | None = None
    """Use identical sentences and unchanged synthetic negatives as negatives, as the papers do."""


class Loss:
    """Loss"""

    loss: Annotated[str, Shown("standard|focal|mixed|NAME"), Named("cse.losses:loss_names")] = "standard"
    """standard (SimCSE), focal (Focal-InfoNCE) or mixed (MixCSE); or the NAME of a loss term that replaces them."""
    temperature: Temperature | None = None
    """Temperature tau, by which the similarities are divided in the logits."""
    objective: Objective | None = None
    """infonce: compare each anchor with positives and hard negatives; nt-xent: compare each anchor and positive with
    all others. --una-as pairs implies nt-xent."""
    mixed_negatives: bool | None = None
    """Add mixed negatives (MixCSE) to --loss standard or focal; --loss mixed always has them."""
    loss_terms: Annotated[tuple[str, ...], Shown("NAME", flag="--loss-term"), Named("cse.losses:LOSS_TERMS")] = ()
    """A further loss term; see cse methods."""


class Optimisation:
    """Optimisation"""

    batch_size: BatchSize | None = None
    """Sentences per batch, over all processes."""
    lr: AboveZero | None = None
    """Learning rate of AdamW."""
    lr_scheduler: Scheduler | None = None
    """Learning rate after the warm-up: linear and cosine decrease it to 0 at the end."""
    warmup: Annotated[float, Ge(0), Lt(1), Shown("FRACTION")] = 0.0
    """Fraction of the steps, at the start of the run, during which the learning rate rises linearly to --lr."""
    weight_decay: AtLeastZero | None = None
    """Weight decay of AdamW.

    Not applied to biases and normalisation weights."""
    max_grad_norm: AtLeastZero | None = None
    """Maximum norm of the gradient; 0: the gradient is not clipped."""
    merge_with_base: Weight | None = None
    """Evaluate and save the average of base model and trained model, with this weight for the base model."""
    epochs: Annotated[Positive | None, Shown(default="1, or as many as --max-steps takes")] = None
    """Passes over the corpus."""
    max_steps: Positive | None = None
    """Stop after N steps; with --epochs, whichever comes first."""
    accumulate: Positive = 1
    """Number of batches whose gradients are averaged in a step.

    Only sentences of the same batch are negatives of each other. For more negatives, raise ``batch_size`` and set
    ``chunk_size``."""
    chunk_size: Annotated[Positive | None, Shown(default="all")] = None
    """Sentences whose activations are in memory at a time; allows large batches in little memory.

    The gradients are those of the whole batch, at the cost of a second forward pass."""
    precision: Precision = "auto"
    """Precision of the encoder; auto: bf16 on CUDA and on processors that compute faster with it, else fp32.

    ``bf16`` is autocast; for ``auto`` see ``cse.models.device.pick_precision``. Weights, optimizer and loss are
    float32. A run stores the precision that ``auto`` selected, and keeps it when it is resumed."""
    compile: bool = False
    """Compile the transformer with torch.compile.

    On CUDA, batches are then padded to ``max_length``."""


class Evaluation:
    """Evaluation"""

    dev: Annotated[tuple[str, ...], Paths(), Shown("FILE")] = ()
    """Scored pairs, to select best/ by Spearman's correlation; with several files, by the mean correlation.

    Each row holds a score and two sentences; see ``cse.evaluation.sts.read_pairs``. Default: held-out rows
    are scored without labels; see ``cse.evaluation.split_half``."""
    eval_every: NotNegative | None = None
    """Steps between evaluations; 0: only before and after training."""
    patience: Positive | None = None
    """Stop after N evaluations in a row without a new highest score on --dev."""
    data: Annotated[str | None, Shown("DIR")] = None
    """Evaluate best/ on the STS files in DIR at the end."""
    allow_partial: bool = False
    """Accept incomplete STS files."""


class Run:
    """Run"""

    output: Annotated[str, Shown("DIR")] = "runs"
    """Folder that contains the runs."""
    name: Annotated[str | None, Shown(default="from model, loss, negatives and seed")] = None
    """Name of the run's folder.

    None: composed of model, loss, negatives and seed, with a number added if the folder exists."""
    save_every: NotNegative = 0
    """Steps between checkpoints; 0: only at the end, or on a signal."""
    keep_checkpoints: Positive = 2
    """Number of checkpoints to keep; older ones are deleted."""
    loggers: Annotated[tuple[str, ...], Shown("NAME", flag="--logger"), Named("cse.training.loggers:LOGGERS")] = ()
    """Logger in addition to log.jsonl: tensorboard."""
    log_every: Positive = 10
    """Steps between writes of the log, which contains one record per step."""
    seed: Annotated[int, Ge(0), Lt(2**64), Shown("N")] = 0
    """Seed of all random choices."""
    device: Annotated[str, Shown("DEVICE")] = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: Annotated[int, Ge(0), Le(1024), Shown("N")] = 0
    """CPU threads; 0: PyTorch's default, usually all cores."""


GROUPS: tuple[type[Any], ...] = (Data, Model, Augmentation, Loss, Optimisation, Evaluation, Run)


class Settings(Data, Model, Augmentation, Loss, Optimisation, Evaluation, Run):
    """All settings."""


@cache
def hints() -> dict[str, Any]:
    """Returns the annotated type of each setting by name, in the order of declaration."""
    return {name: hint for group in GROUPS for name, hint in get_type_hints(group, include_extras=True).items()}


def shown_of(hint: Any) -> Shown:
    """Returns how a setting is shown; each field is taken from the outermost marker that sets it."""
    found: dict[str, Any] = {}
    for each in _markers(hint):
        if isinstance(each, Shown):
            found = {**{name: value for name, value in vars(each).items() if value}, **found}
    return Shown(**found)


def marker(hint: Any, kind: type[T]) -> T | None:
    """Returns the outermost marker of class ``kind`` in an annotated type; None if there is none."""
    return next((each for each in _markers(hint) if isinstance(each, kind)), None)


def _markers(hint: Any) -> Iterator[Any]:
    yield from getattr(hint, "__metadata__", ())
    inner = (hint.__origin__,) if hasattr(hint, "__metadata__") else get_args(hint)
    for each in inner:
        if not isinstance(each, str):
            yield from _markers(each)


def flag(name: object) -> str:
    """Returns the command-line flag of a setting; any other name is converted to the form of a flag."""
    shown = marker(hints()[str(name)], Shown) if str(name) in hints() else None
    return (shown and shown.flag) or "--" + str(name).replace("_", "-")

"""The settings of a run, in groups; the docstring of a group is its heading in the help of ``cse train``.

Each field is the declaration of a setting (``cse.options``): ``cse train`` has an option for it, ``TrainConfig`` a
keyword argument, ``config.toml`` a key. Each part of a run is built from the group that it needs, in which every
setting has its value; see ``cse.training.settings.resolve``. This module imports neither NumPy nor torch, so that the
command line starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from ...encoder.pooling import POOLERS
from ...options import (
    Cache,
    Column,
    Device,
    EncodingErrors,
    If,
    Imports,
    MaxLineBytes,
    Opt,
    Pooler,
    Precision,
    Seed,
    Threads,
)
from ...tfidf.options import MaxTerms, MinDf, Tfidf

Count = Annotated[int, Ge(1), Opt(metavar="N")]
CountOrNone = Annotated[int, Ge(0), Opt(metavar="N")]
AtLeastZero = Annotated[float, Ge(0)]
Rate = Annotated[float, Ge(0), Lt(1), Opt(metavar="P", default="the model's")]
Augmentation = Annotated[str, Opt(metavar="NAME", names="cse.augment:AUGMENTATIONS")]
HookName = Annotated[str, Opt(metavar="NAME", default="none", names="cse.hooks:HOOKS")]

group = dataclass(frozen=True, eq=False, repr=False)

DERIVED: Any = None
"""Default of a setting whose value, if it is not given, depends on preset, loss and model; see ``presets.defaults``."""


@group
class Data:
    """Data"""

    corpus: Annotated[tuple[str, ...], Opt(flag="CORPUS", paths=True, hidden=True, private=True)] = ()
    """Text files, patterns or tables (``cse.data.readers.resolve``). Default: the files of the TF-IDF index."""
    pairs: Annotated[
        tuple[str, ...],
        Opt(
            "Table of anchors, positives and optionally hard negatives, used instead of CORPUS.",
            "FILE",
            paths=True,
            excludes="corpus",
            private=True,
        ),
    ] = ()
    columns: Annotated[
        tuple[str, ...],
        Opt(
            "Columns of --pairs: the anchor, the positive and optionally the hard negative.",
            "A,B[,C]",
            "recognised by name",
            separator=",",
            needs="pairs",
        ),
    ] = ()
    """See ``cse.data.pairs``."""
    where: Annotated[
        str | None, Opt("Use only the rows of --pairs that have VALUE in COLUMN.", "COLUMN=VALUE", "all", needs="pairs")
    ] = None
    min_score: Annotated[
        float | None, Opt("Use only the rows of --pairs with at least this score.", "X", needs="pairs")
    ] = None
    tfidf: Annotated[
        Tfidf | None,
        Opt(default="./tfidf, if it was built from exactly these files; else built for the run", private=True),
    ] = None
    """See ``cse.training.data.RunIndex``."""
    column: Annotated[Column, Opt(excludes=If("pairs", why="whose columns --columns names"))] = None
    encoding_errors: EncodingErrors = "strict"
    max_line_bytes: MaxLineBytes = 1 << 20
    cache: Cache = None
    """See ``cse.data.entries.cache_folder``."""
    max_length: Annotated[int, Ge(3), Opt("Maximum number of tokens per sentence.", "N")] = DERIVED
    """This applies to training only; the saved model has the maximum length of the base model."""


@group
class Model:
    """Model"""

    model: Annotated[
        str, Opt("Model to train: minilm, a folder, or a name on the hub.", default="the preset's, else minilm")
    ] = DERIVED
    pooler: Annotated[
        Pooler,
        Opt(f"Pooling of token vectors: {', '.join(POOLERS)}.", default="the model's own, else cls"),
    ] = DERIVED
    """See ``cse.encoder.pooling.POOLERS``."""
    eval_pooler: Annotated[
        Pooler | None,
        Opt(
            "Pooling of the saved model and of the evaluations, if it differs from the pooling in training (ConSERT).",
            default="the same as --pooler",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        Opt(
            "Text to put before each sentence, or around it if it has {text}.",
            "NAME|TEXT|auto",
            "the model's default prompt",
            excludes=If("encoder_methods", ("prompt",), why="which has its own template"),
        ),
    ] = None
    """The name of one of the model's prompts, or a text. With ``pairs``, also ``auto``, which stands for the model's
    prompts for queries and for documents. See ``cse.encoder.prompts``."""
    keep_head: Annotated[bool, Opt("Keep the MLP of --pooler cls in the saved model.", default="yes with --pairs")] = (
        DERIVED
    )
    """Supervised SimCSE keeps it; otherwise the MLP is used only in training."""
    preset: Annotated[
        str | None,
        Opt(
            "A published recipe, such as simcse-bert-base, focal-bert-base or una-bert-base; or encoder, the defaults "
            "for trained sentence encoders; or encoder-queries, for the rows of cse mine.",
            "NAME",
            names="cse.training.settings.presets:preset_names",
        ),
    ] = None


@group
class Methods:
    """Positives and negatives"""

    positive: Annotated[
        Augmentation,
        Opt("Augmentation for positives, such as dropout (the same text) or spans (two parts of it); see cse methods."),
    ] = DERIVED
    learn: Annotated[
        bool,
        Opt(
            "Learn from the column --labels: rows with the same label are positives of each other.",
            needs="labels",
            excludes="keep_duplicates",
        ),
    ] = False
    """Rows without a label have the positives of ``positive``; see ``cse.augment.same_label``."""
    tune_teacher: Annotated[
        bool,
        Opt("With --learn and --teacher, the teacher learns the labels before it teaches.", needs="learn"),
    ] = False
    """Anew for each fold, without its labels; see ``cse.training.sequence``."""
    min_df: MinDf = 0
    max_terms: MaxTerms = None
    negatives: Annotated[
        tuple[Augmentation, ...], Opt("Augmentation for synthetic negatives; see cse methods.", flag="--negative")
    ] = ()
    """``una=True`` is short for ``("una",)``."""
    feature_augmentations: Annotated[
        tuple[str, ...],
        Opt(
            "Augmentation of embeddings; several are applied in the given order.",
            "NAME",
            flag="--feature-augmentation",
            names="cse.hooks:FEATURE_AUGMENTATIONS",
        ),
    ] = ()
    anchor_hook: Annotated[
        HookName | None,
        Opt("Hook that changes the forward pass of the anchors inside the transformer; see cse methods."),
    ] = None
    positive_hook: Annotated[
        HookName | None,
        Opt("Hook that changes the forward pass of the positives inside the transformer; see cse methods."),
    ] = None
    anchor_dropout: Annotated[Rate | None, Opt("Dropout probability of the anchors.")] = None
    positive_dropout: Annotated[Rate | None, Opt("Dropout probability of the positives.")] = None
    positive_encoder: Annotated[
        str | None,
        Opt(
            "Separate encoder for the positives: copy (starts from the same weights), or a model.",
            "copy|MODEL",
            "the same",
        ),
    ] = None
    """This encoder is trained, and kept in checkpoints, but not saved in best/."""
    encoder_methods: Annotated[
        tuple[str, ...],
        Opt(
            "Method that changes the encoder (see cse methods); several are applied in the given order.",
            "NAME",
            flag="--encoder-method",
            names="cse.hooks:ENCODER_METHODS",
        ),
    ] = ()
    imports: Imports = ()
    keep_duplicates: Annotated[
        bool, Opt("Use identical sentences and unchanged synthetic negatives as negatives, as the papers do.")
    ] = DERIVED


@group
class Loss:
    """Loss"""

    loss: Annotated[
        str,
        Opt(
            "standard (SimCSE), focal (Focal-InfoNCE) or mixed (MixCSE); or the NAME of a loss term that replaces "
            "them.",
            "standard|focal|mixed|NAME",
            names="cse.losses:loss_names",
        ),
    ] = "standard"
    temperature: Annotated[
        float,
        Ge(1e-4),  # below, logits and their gradients overflow
        Opt("Temperature (tau in the papers), by which similarities are divided before the softmax."),
    ] = DERIVED
    objective: Annotated[
        Literal["infonce", "nt-xent"],
        Opt(
            "infonce: compare each anchor with positives and hard negatives; nt-xent: compare each anchor and positive "
            "with all others. --una-as pairs implies nt-xent."
        ),
    ] = DERIVED
    mixed_negatives: Annotated[
        bool, Opt("Add mixed negatives (MixCSE) to --loss standard or focal; --loss mixed always has them.")
    ] = DERIVED
    loss_terms: Annotated[
        tuple[str, ...],
        Opt("Loss terms besides the loss.", hidden=True, flag="--loss-term", names="cse.losses:LOSS_TERMS"),
    ] = ()
    """All of them; without it, the terms of the preset or of the recipe of the model."""
    more_loss_terms: Annotated[
        tuple[str, ...],
        Opt(
            "Loss term in addition to the terms of the preset or the recipe; none removes these. See cse methods.",
            "NAME|none",
            flag="--loss-term",
            names="cse.losses:LOSS_TERMS",
        ),
    ] = ()


@group
class Optimisation:
    """Optimisation"""

    batch_size: Annotated[int, Ge(2), Opt("Sentences per batch, over all processes.", "N")] = DERIVED
    lr: Annotated[float, Gt(0), Opt("Learning rate of AdamW.")] = DERIVED
    lr_scheduler: Annotated[
        Literal["linear", "cosine", "constant"],
        Opt("Learning rate after the warm-up: linear and cosine decrease it to 0 at the end."),
    ] = DERIVED
    warmup: Annotated[
        float,
        Ge(0),
        Lt(1),
        Opt(
            "Fraction of the steps, at the start of the run, during which the learning rate rises linearly to --lr.",
            "FRACTION",
        ),
    ] = 0.0
    weight_decay: Annotated[AtLeastZero, Opt("Weight decay of AdamW.")] = DERIVED
    """Not applied to biases and normalisation weights."""
    max_grad_norm: Annotated[AtLeastZero, Opt("Maximum norm of the gradient; 0: the gradient is not clipped.")] = (
        DERIVED
    )
    merge_with_base: Annotated[
        float,
        Ge(0),
        Le(1),
        Opt(
            "Evaluate and save the average of base model and trained model, with this weight for the base model.",
            "WEIGHT",
        ),
    ] = DERIVED
    epochs: Annotated[
        Count | None, Opt("Passes over the corpus.", default="1, or as many as --max-steps takes", may_change=True)
    ] = None
    max_steps: Annotated[
        Count | None, Opt("Stop after N steps; with --epochs, whichever comes first.", may_change=True)
    ] = None
    accumulate: Annotated[Count, Opt("Number of batches whose gradients are averaged in a step.")] = 1
    """Only sentences of the same batch are negatives of each other. For more negatives, raise ``batch_size`` and set
    ``chunk_size``."""
    chunk_size: Annotated[
        Count | None,
        Opt(
            "Sentences whose activations are in memory at a time; allows large batches in little memory.", default="all"
        ),
    ] = None
    """The gradients are of the whole batch, at the cost of a second forward pass."""
    precision: Precision = "auto"
    """``bf16`` is autocast; for ``auto`` see ``cse.encoder.device.pick_precision``. Weights, optimizer and loss are
    float32. A run stores the precision that ``auto`` selected, and keeps it when it is resumed."""
    compile: Annotated[bool, Opt("Compile the transformer with torch.compile.")] = False
    """On CUDA, batches are then padded to ``max_length``."""
    graphs: Annotated[
        bool | None,
        Opt(
            "Record each step once as a CUDA graph, and replay it.",
            default="yes on CUDA, from 50 steps",
            may_change=True,
        ),
    ] = None
    """See ``cse.training.step.recorded``."""


@group
class Evaluation:
    """Evaluation"""

    dev: Annotated[
        tuple[str, ...],
        Opt(
            "Scored pairs; one half selects best/ by Spearman's correlation (with several files, the mean), the other "
            "half judges it. clean: STS-B dev and SICK-R train and dev of --data, without pairs of the test sets.",
            "FILE|clean",
            paths=True,
            private=True,
        ),
    ] = ()
    """Each row holds a score and two sentences; see ``cse.evaluation.base.read_pairs``. Default: held-out rows
    are scored without labels; see ``cse.evaluation.geometry``. With the preset of a paper, all pairs select, as they do
    there, and none judge."""
    labels: Annotated[
        str | None,
        Opt(
            "Column of labels in CORPUS, by which rows judge best/ at the end; with --learn, they also teach.",
            "COLUMN",
            excludes=If("pairs", why="whose held-out rows judge best/"),
        ),
    ] = None
    """A fifth of the distinct texts, at most 2,000, are held out; see ``cse.evaluation.labels.choose_labelled``."""
    folds: Annotated[
        int | None,
        Ge(0),
        Opt(
            "With --learn: as many further encoders are trained, each without a part of the labels, to judge by them; "
            "0: rows are held out instead.",
            "N",
            "5 with fewer than 500 labels, else 0",
            needs="learn",
        ),
    ] = None
    """See ``cse.training.folds``."""
    judges: Annotated[
        tuple[str, ...],
        Opt(
            "Suite of cse eval and its data, by which best/ is judged at the end, such as retrieval=FOLDER or "
            "labels=TABLE, with --set SUITE.OPTION=VALUE.",
            "SUITE=PATH",
            flag="--judge",
            private=True,
        ),
    ] = ()
    """The first one decides. Columns of a table are those of --column and --labels, unless they are set."""
    judged_queries: Annotated[
        str | None,
        Opt(
            "The same as --judge retrieval=FOLDER, a folder in the format of BEIR.",
            "FOLDER",
            private=True,
        ),
    ] = None
    against: Annotated[
        str | None,
        Opt("Encoder with which the verdict compares best/.", "MODEL", "the model before training", private=True),
    ] = None
    """With --learn and --teacher, the model before both."""
    eval_every: Annotated[
        CountOrNone, Opt("Steps between evaluations; 0: only before and after training.", may_change=True)
    ] = DERIVED
    patience: Annotated[
        Count | None,
        Opt(
            "Stop after N evaluations in a row without a new highest score on --dev.",
            may_change=True,
            needs=If("dev", why="a file of scored pairs to measure progress by"),
        ),
    ] = None
    data: Annotated[
        str | None,
        Opt(
            "Evaluate best/ on the STS files in DIR at the end.",
            "DIR",
            may_change=True,
            same_results=True,
            private=True,
        ),
    ] = None
    allow_partial: Annotated[
        bool, Opt("Accept incomplete STS files.", may_change=True, same_results=True, needs="data")
    ] = False


@group
class Output:
    """Run"""

    output: Annotated[
        str, Opt("Folder that contains the runs.", "DIR", short="-o", same_results=True, private=True)
    ] = "runs"
    name: Annotated[
        str | None, Opt("Name of the run's folder.", default="from model, loss, negatives and seed", same_results=True)
    ] = None
    """None: composed of model, loss, negatives and seed, with a number added if the folder exists."""
    save_every: Annotated[
        CountOrNone, Opt("Steps between checkpoints; 0: only at the end, or on a signal.", may_change=True)
    ] = 0
    keep_checkpoints: Annotated[
        Count, Opt("Number of checkpoints to keep; older ones are deleted.", may_change=True)
    ] = 2
    loggers: Annotated[
        tuple[str, ...],
        Opt(
            "Logger in addition to log.jsonl: tensorboard or wandb.",
            "NAME",
            flag="--logger",
            names="cse.training.loggers:LOGGERS",
            may_change=True,
            same_results=True,
        ),
    ] = ()
    log_every: Annotated[
        Count,
        Opt("Steps between writes of the log, which contains one record per step.", may_change=True, same_results=True),
    ] = 10
    seed: Seed = 0
    device: Annotated[Device, Opt(metavar="DEVICE")] = "auto"
    threads: Threads = 0


GROUPS: tuple[type, ...] = (Data, Model, Methods, Loss, Optimisation, Evaluation, Output)

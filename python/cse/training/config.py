"""Training configuration: fields, types and constraints, reading and writing of TOML.

``TrainConfig`` holds the values given by the user; fields that are None have a default that depends on the recipe.
``ResolvedConfig`` holds the values of a run, without None. ``cse.training.recipes.resolve`` converts the first to the
second.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..augment import AUGMENTATIONS, PAIRS_POSITIVE
from ..errors import InputError, unknown
from ..features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..losses import CONTRASTIVE_LOSSES, LOSS_TERMS
from ..losses.rules import incompatibility
from ..registry import Registry, explain_validation, import_methods, parse_options
from .setting_types import (
    AboveZero,
    AtLeastZero,
    BatchSize,
    FilePath,
    FilePaths,
    MaxLength,
    Names,
    NotNegative,
    Objective,
    Pooler,
    Positive,
    Rate,
    Scheduler,
    Share,
    Temperature,
    flag,
    gather_options,
    paths,
    tables,
)

__all__ = ["ResolvedConfig", "TrainConfig", "read_toml"]


class Settings(BaseModel):
    """Base class of configurations: the fields whose defaults do not depend on the recipe."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    corpus: FilePaths = ()
    """Text files, patterns or tables (``cse.data.readers.resolve``). Default: the files of the TF-IDF index."""
    column: str | None = None
    """Column of the tables that contains the sentences."""
    pairs: FilePaths = ()
    """Tables of labelled pairs (anchor, positive) or triples (+ hard negative), instead of a corpus."""
    columns: Names = ()
    """Their two or three columns. Default: by their names; see ``cse.data.pair_columns``."""
    where: str | None = None
    """``COLUMN=VALUE``: the rows of ``pairs`` that are positives. Default: all."""
    min_score: float | None = None
    """Lowest score of the rows of ``pairs`` that are positives."""
    tfidf: FilePath = "tfidf"
    """Folder of the TF-IDF index."""
    min_df: NotNegative = 0
    max_terms: Positive | None = None
    """Filters of the terms of the index, as for ``min_df``; see ``TfidfIndex.open``."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    max_line_bytes: Positive = 1 << 20
    cache: FilePath | None = None
    """Cache folder for rows and token ids of large corpora; see ``cse.data.cache.cache_folder``."""

    imports: FilePaths = ()
    """Python files that register methods; see ``cse.registry.import_methods``."""
    negatives: Names = ()
    """Names of the augmentations that generate synthetic negatives; ``una=True`` is short for ``("una",)``."""
    feature_augmentations: Names = ()
    """Names of the augmentations of embeddings, in order of application."""
    encoder_methods: Names = ()
    """Names of the methods that change the encoder itself, in order of application."""
    loss_terms: Names = ()
    """Names of the loss terms that are added to the contrastive loss."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options by method name. In TOML, those of UNA are the table ``[una]``; in Python, ``una={"beta": 0.3}`` is
    equivalent to ``options={"una": {"beta": 0.3}}``."""

    anchor_dropout: Rate | None = None
    """Dropout probability of the anchors' forward pass. None: that of the model."""
    positive_dropout: Rate | None = None
    """Dropout probability of the positives' forward pass. None: that of the model."""
    positive_encoder: str | None = None
    """Encoder of the positives: ``copy``, another encoder that starts from the same weights, or the name of a model as
    for ``model``. It is trained, and kept in checkpoints, but not saved in best/. None: that of the anchors."""
    anchor_hook: str | None = None
    """Name of the method that changes the anchors' forward pass inside the transformer."""
    positive_hook: str | None = None
    """As ``anchor_hook``, for the positives."""

    given: dict[str, Any] | None = None
    """In the ``config.toml`` of a run, the table of the values that were given; the other values were resolved from
    them. It is set by ``cse.training.recipes``. None: all values were given."""

    loss: str = "standard"
    """``standard``: SimCSE. ``focal``: focal logits (Focal-InfoNCE). ``mixed``: mixed negatives (MixCSE). Else the name
    of a loss term, which is then the whole loss."""
    margin: float = 0.3
    """m of the focal logits."""
    mix_lambda: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Weight of the anchor's own positive in a mixed negative."""
    mix_variant: Literal["paper", "release"] = "paper"
    """Mixed negatives as in the paper, or as in its released code; see ``cse.losses.mixed``."""

    hard_negative_weight: Annotated[float, Field(gt=0)] = 1.0
    """alpha: weight of the labelled hard negative of the own row in the denominator (SimCSE, equation 9)."""

    epochs: Positive | None = None
    """Passes over the corpus. Default: 1, or with ``max_steps`` as many as its steps take."""
    max_steps: Positive | None = None
    """Largest number of steps; with ``epochs`` as well, the smaller number of steps counts."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps in which the learning rate rises linearly from 0."""
    accumulate: Positive = 1
    """Batches whose gradients are averaged in a step. Negatives are those of the own batch only; ``chunk_size``
    has no such restriction."""
    chunk_size: Positive | None = None
    """Sentences whose activations are in memory at a time: a batch of any size in bounded memory, with the gradients of
    the whole batch, for a second forward pass. Default: the whole batch."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the encoder: ``bf16`` is autocast; for ``auto`` see ``cse.models.device.pick_precision``. Weights,
    optimizer and loss are float32. A run stores what ``auto`` was, and keeps it when it is resumed."""
    compile: bool = False
    """Compile the transformer by ``torch.compile``; on CUDA, batches are then padded to ``max_length``."""
    patience: Positive | None = None
    """Stop after this many evaluations without a higher Spearman correlation; needs ``dev``."""
    save_every: NotNegative = 0
    """Steps between checkpoints from which the run can be resumed; 0: only on a signal, and at the end."""
    keep_checkpoints: Positive = 2
    """Number of the latest checkpoints that are kept."""

    dev: FilePaths = ()
    """Files of score, sentence1, sentence2 for model selection by the mean of their correlations; see
    ``cse.evaluation.sts.read_pairs``. Default: the label-free score of held-out rows."""
    data: FilePath | None = None
    """Folder of STS test files on which the selected model is evaluated at the end."""
    allow_partial: bool = False
    """Accept STS files with fewer pairs than the complete task."""

    output: FilePath = "runs"
    """Folder in which the folder of the run is created."""
    name: str | None = None
    """Name of the folder of the run. None: composed of model, loss and seed, and a number if it exists."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    device: str = "auto"
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of CPU threads of PyTorch and of the Rust core; 0: their defaults."""
    loggers: Names = ()
    """Loggers besides log.jsonl; see ``cse.training.loggers``."""
    log_every: Positive = 10
    """Steps between writes of the log, which contains one record per step."""

    def __init__(self, **values: Any) -> None:
        """Validates types and ranges; raises ``InputError`` with the flag of the first invalid field."""
        imports = paths(values.get("imports", ()))
        for file in imports if isinstance(imports, tuple) else ():
            import_methods(str(file))  # before the names of methods are looked up
        try:
            super().__init__(**gather_options(values, set(type(self).model_fields)))
        except ValidationError as error:
            raise InputError(explain_validation(error, flag)) from None
        self._check()

    def _check(self) -> None:
        for names, table, name in (
            (self.negatives, AUGMENTATIONS, "--negative"),
            (self.feature_augmentations, FEATURE_AUGMENTATIONS, "--feature-augmentation"),
            (self.encoder_methods, ENCODER_METHODS, "--encoder-method"),
            (self.loss_terms, LOSS_TERMS, "--loss-term"),
        ):
            for method in names:
                table.get(method, name)
        for hook, name in ((self.anchor_hook, "--anchor-hook"), (self.positive_hook, "--positive-hook")):
            if hook is not None:
                HOOKS.get(hook, name)
        if self.loss not in CONTRASTIVE_LOSSES and self.loss not in LOSS_TERMS:
            raise unknown("--loss", self.loss, (*CONTRASTIVE_LOSSES, *LOSS_TERMS.names()))
        if "contrastive" in self.loss_terms:
            raise InputError("--loss-term contrastive: is part of --loss standard, focal and mixed; leave it out")
        for method in self.options:
            self.options_of(method)
        if self.loss == "mixed" and getattr(self, "mixed_negatives", None) is False:
            raise InputError("--no-mixed-negatives: cannot be combined with --loss mixed; use --loss standard")
        if self.positive is not None:
            AUGMENTATIONS.get(self.positive, "--positive")
        problem = incompatibility(
            objective=self.objective,
            logits=self.logits,
            mixed=self.mix_variant if self.mixes else None,
            # Before the recipe is known, the options of the negatives are not.
            synthetic_pairs=isinstance(self, ResolvedConfig) and self.synthetic_pairs,
            # The number of columns is known when the file is read; see cse.training.setup.
            hard_negatives=True,
            weighted=self.hard_negative_weight != 1,
        )
        if problem:
            raise InputError(problem)
        if self.pairs and self.corpus:
            raise InputError("--pairs: cannot be combined with CORPUS; give one of them")
        if self.columns and not self.pairs:
            raise InputError("--columns: belongs to --pairs, which was not given")
        for selection in ("where", "min_score"):
            if getattr(self, selection) is not None and not self.pairs:
                raise InputError(f"{flag(selection)}: belongs to --pairs, which was not given")
        if self.hard_negative_weight != 1 and not self.pairs:
            raise InputError("--hard-negative-weight: belongs to --pairs, which was not given")
        if self.pairs and self.positive not in (None, PAIRS_POSITIVE):
            raise InputError(f"--positive {self.positive}: cannot be combined with --pairs, which names the positives")
        if self.patience and not self.dev:
            raise InputError("--patience: needs --dev, a file of scored pairs to measure progress by")

    if TYPE_CHECKING:  # fields of the subclasses, with or without None
        positive: Any
        objective: Any

    @property
    def logits(self) -> str:
        """Logits of the loss: ``cosine`` or ``focal``."""
        return "focal" if self.loss == "focal" else "cosine"

    @property
    def mixes(self) -> bool:
        """Whether the loss has mixed negatives."""
        return self.loss == "mixed" or bool(getattr(self, "mixed_negatives", False))

    @property
    def synthetic_pairs(self) -> bool:
        """Whether synthetic negatives are used as further pairs, encoded twice under different dropout masks."""
        return any(AUGMENTATIONS.get(name).makes_pairs(self.options_of(name)) for name in self.negatives)

    @property
    def methods(self) -> dict[str, Registry[Any]]:
        """The registry of each method of the run by name, as far as the configuration names them."""
        found: dict[str, Registry[Any]] = {}
        for name in (self.positive, *self.negatives):
            found |= {name: AUGMENTATIONS} if name is not None else {}
        found |= dict.fromkeys(self.feature_augmentations, FEATURE_AUGMENTATIONS)
        found |= dict.fromkeys(self.encoder_methods, ENCODER_METHODS)
        found |= {name: HOOKS for name in (self.anchor_hook, self.positive_hook) if name is not None}
        terms = self.loss_terms if self.loss in CONTRASTIVE_LOSSES else (self.loss, *self.loss_terms)
        return found | dict.fromkeys(terms, LOSS_TERMS)

    def implied(self) -> dict[str, Any]:
        """Returns the defaults of settings that follow from the use of the methods; see ``TextMethod.implies``."""
        found: dict[str, Any] = {}
        for name, table in self.methods.items():
            found |= table.get(name).implies(self.options_of(name))
        return found

    def options_of(self, method: str) -> Any:
        """Returns the options of a method with their defaults; raises ``InputError`` for an invalid one."""
        table = next((each for each in TABLES if method in each), None)
        if table is None:
            raise InputError(f"{method}: neither a setting nor a method; see cse train --help and cse methods")
        return parse_options(method, table.get(method).Options, self.options.get(method, {}))

    def replace(self, **values: Any) -> Self:
        """Returns a validated copy with other values."""
        return type(self)(**{**self.values(), "given": self.given, **values})

    def to_toml(self) -> str:
        """Returns the configuration as TOML; None values are omitted, options of methods are tables at the end."""
        values = self.model_dump(exclude={"options", "given"}, exclude_none=True)
        values |= tables(self.options)
        if self.given is not None:
            given = {name: value for name, value in self.given.items() if name != "options" and value is not None}
            values["given"] = given | tables(self.given.get("options", {}))
        return tomli_w.dumps(values)

    def values(self) -> dict[str, Any]:
        """Returns the values that were set, by name, without ``given``."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "given"}


class TrainConfig(Settings):
    """Training configuration.

    Defaults of fields that are None depend on preset, loss and model; see ``cse.training.recipes``. Invalid values
    raise ``InputError``.

    Sources: SimCSE (Gao et al. 2021), Focal-InfoNCE (Hou and Li 2023), MixCSE (Zhang et al. 2022), UNA (Shu and
    Lampos 2024).
    """

    preset: str | None = None
    """Name of a published recipe; see ``cse.training.recipes.preset_names``."""
    model: FilePath | None = None
    """``minilm``, a local folder, or a name on the Hugging Face hub. Default: ``bert-base-uncased``."""
    positive: str | None = None
    """Name of the augmentation that generates anchors and positives."""
    pooler: Pooler | None = None
    """Pooling of token vectors; see ``cse.models.pooling.pool``."""
    max_length: MaxLength | None = None
    """Maximum number of tokens of a training sentence. The saved model has the limit of the base model."""
    temperature: Temperature | None = None
    """tau, the divisor of the logits."""
    mixed_negatives: bool | None = None
    """Use mixed negatives (MixCSE) with any loss; implied by ``loss="mixed"``."""
    objective: Objective | None = None
    """``infonce``: anchors against candidates. ``nt-xent``: every view against every other."""
    batch_size: BatchSize | None = None
    """Sentences per step."""
    lr: AboveZero | None = None
    """Learning rate of AdamW."""
    lr_scheduler: Scheduler | None = None
    """``linear`` or ``cosine``: decreases to 0 over the steps after the warm-up. ``constant``."""
    weight_decay: AtLeastZero | None = None
    """Weight decay of AdamW; not applied to biases and normalisation weights."""
    max_grad_norm: AtLeastZero | None = None
    """Largest norm of the gradient; 0 does not clip."""
    keep_head: bool | None = None
    """Keep the MLP head of ``pooler="cls"`` after training (supervised SimCSE), instead of only in training."""
    keep_duplicates: bool | None = None
    """Leave equal sentences in each other's negatives, as the papers do. Default: they are masked."""
    merge_with_base: Share | None = None
    """Weight of the base model's weights in the encoder that is evaluated and saved; 0: only the trained weights."""
    eval_every: NotNegative | None = None
    """Steps between evaluations; 0: only at the end."""

    def __init__(self, **values: Any) -> None:
        """Takes fields as keyword arguments; ``una=True`` enables UNA, ``una={"beta": 0.3}`` sets its options."""
        super().__init__(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainConfig:
        """Reads a TOML file, as written by ``to_toml``; raises ``InputError`` for an invalid file, key or value."""
        return cls(**read_toml(path))


class ResolvedConfig(Settings):
    """Training configuration in which all fields have values; see ``TrainConfig`` for the fields."""

    model: str
    positive: str
    pooler: Pooler
    max_length: MaxLength
    temperature: Temperature
    mixed_negatives: bool
    objective: Objective
    batch_size: BatchSize
    lr: AboveZero
    lr_scheduler: Scheduler
    weight_decay: AtLeastZero
    max_grad_norm: AtLeastZero
    keep_head: bool
    keep_duplicates: bool
    merge_with_base: Share
    eval_every: NotNegative


TABLES: tuple[Registry[Any], ...] = (AUGMENTATIONS, FEATURE_AUGMENTATIONS, ENCODER_METHODS, HOOKS, LOSS_TERMS)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Reads and validates a configuration file; raises ``InputError`` with the file and the invalid key."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from None
    try:
        TrainConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return values

"""Training configuration: fields, types and constraints, TOML in and out.

``TrainConfig`` is what a user gives: a field that is None is filled in later. ``ResolvedConfig`` is what a run uses:
every field has its value. ``cse.training.recipes`` turns the first into the second.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..augment import AUGMENTATIONS, FEATURE_AUGMENTATIONS
from ..errors import InputError
from ..losses import LOSS_TERMS
from ..losses.rules import incompatibility
from ..registry import explain_validation, parse_options

__all__ = ["ResolvedConfig", "TrainConfig", "read_toml"]


def _path(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


def _paths(value: Any) -> Any:
    if isinstance(value, (str, PathLike)):
        return (fspath(value),)
    return tuple(_path(item) for item in value) if isinstance(value, (list, tuple)) else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


FilePath = Annotated[str, BeforeValidator(_path)]
Names = Annotated[tuple[str, ...], BeforeValidator(_tuple)]
NotNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]

# Fields whose value comes from a recipe if it is not given; see cse.training.recipes.
Pooler = Literal["cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last", "avg_embed_last"]
Objective = Literal["infonce", "nt-xent"]
Scheduler = Literal["linear", "constant"]
MaxLength = Annotated[int, Field(ge=3)]
BatchSize = Annotated[int, Field(ge=2)]
AboveZero = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """The fields that depend on no recipe, and what both kinds of configuration share."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    corpus: Annotated[tuple[str, ...], BeforeValidator(_paths)] = ()
    """Text files, patterns or tables (``cse.data.readers.resolve``); none: the files of the TF-IDF index."""
    column: str | None = None
    """The column of a table that holds the sentences."""
    tfidf: FilePath = "tfidf"
    """Folder of the TF-IDF index."""
    min_df: NotNegative = 0
    max_terms: Positive | None = None
    """The part of the index that is used: see ``TfidfIndex.open``."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    max_line_bytes: Positive = 1 << 20

    negatives: Names = ()
    """Augmentations that make synthetic negatives, by name; ``una=True`` is short for ``("una",)``."""
    feature_augmentations: Names = ()
    """Augmentations of embeddings, by name, in order of application."""
    loss_terms: Names = ()
    """Loss terms that are added to the contrastive loss, by name."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of methods by method name; in TOML the table ``[una]``, in Python also ``una={"beta": 0.3}``."""

    loss: Literal["standard", "focal", "mixed"] = "standard"
    """``standard``: SimCSE. ``focal``: focal logits (Focal-InfoNCE). ``mixed``: mixed negatives (MixCSE)."""
    margin: float = 0.3
    """m of the focal logits."""
    mix_lambda: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Weight of the anchor's own positive in a mixed negative."""
    mix_variant: Literal["paper", "release"] = "paper"

    epochs: Positive = 1
    max_steps: Positive | None = None

    dev: FilePath | None = None
    """TSV of score, sentence1, sentence2 for model selection; none: held-out rows without labels."""
    data: FilePath | None = None
    """Folder of STS test files on which the selected model is scored at the end."""
    allow_partial: bool = False
    """Score STS files that have fewer pairs than the whole task."""

    output: FilePath = "runs"
    """Folder in which the folder of the run is made."""
    name: str | None = None
    """Name of the run's folder; none: made from model, loss and seed, numbered if it exists."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    device: str = "auto"
    threads: NotNegative = 0
    """CPU threads of PyTorch and of the Rust core; 0: their defaults."""
    log_every: Positive = 10
    """Steps between writes of the log; every step has its record."""

    def __init__(self, **values: Any) -> None:
        """Validates types and ranges; the first fault raises ``InputError`` with the name of the flag."""
        try:
            super().__init__(**gather_options(values, set(type(self).model_fields)))
        except ValidationError as error:
            raise InputError(explain_validation(error, flag)) from None
        self._check()

    def _check(self) -> None:
        for names, table, name in (
            (self.negatives, AUGMENTATIONS, "--negative"),
            (self.feature_augmentations, FEATURE_AUGMENTATIONS, "--feature-augmentation"),
            (self.loss_terms, LOSS_TERMS, "--loss-term"),
        ):
            for method in names:
                table.get(method, name)
        for method, values in self.options.items():
            tables = [table for table in (AUGMENTATIONS, FEATURE_AUGMENTATIONS, LOSS_TERMS) if method in table]
            if not tables:
                raise InputError(f"{method}: neither a setting nor a method; see cse train --help and cse methods")
            parse_options(method, tables[0].get(method).Options, values)
        if self.loss == "mixed" and getattr(self, "mixed_negatives", None) is False:
            raise InputError("--no-mixed-negatives: cannot be combined with --loss mixed; use --loss standard")
        if self.positive is not None:
            AUGMENTATIONS.get(self.positive, "--positive")
        problem = incompatibility(
            objective=self.objective,
            logits=self.logits,
            mixed=self.mix_variant if self.mixes else None,
            synthetic_pairs=self.synthetic_pairs,
            hard_negatives=False,
            weighted=False,
        )
        if problem:
            raise InputError(problem)

    if TYPE_CHECKING:  # fields of the subclasses, with or without None
        positive: Any
        objective: Any

    @property
    def logits(self) -> str:
        """``cosine`` or ``focal``."""
        return "focal" if self.loss == "focal" else "cosine"

    @property
    def mixes(self) -> bool:
        """Whether the loss has mixed negatives."""
        return self.loss == "mixed" or bool(getattr(self, "mixed_negatives", False))

    @property
    def synthetic_pairs(self) -> bool:
        """Whether UNA's negatives form pairs with their dropout twins."""
        return "una" in self.negatives and self.options.get("una", {}).get("use_as", "pairs") == "pairs"

    def replace(self, **values: Any) -> Self:
        """A copy with other values, validated."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **values})

    def to_toml(self) -> str:
        """As TOML; values that are None are left out, options of methods are tables at the end."""
        values = self.model_dump(exclude={"options"}, exclude_none=True)
        tables = {
            name: {key: value for key, value in table.items() if value is not None}
            for name, table in self.options.items()
        }
        return tomli_w.dumps({**values, **{name: table for name, table in tables.items() if table}})


class TrainConfig(Settings):
    """A training run as the user describes it. None: filled in by ``cse.training.recipes.resolve``.

    Sources: SimCSE (Gao et al. 2021), Focal-InfoNCE (Hou and Li 2023), MixCSE (Zhang et al. 2022), UNA (Shu and
    Lampos 2024).
    """

    preset: str | None = None
    """A published recipe; see ``cse.training.recipes.preset_names``."""
    model: FilePath | None = None
    """``minilm``, a local folder, or a name on the Hugging Face hub; default ``bert-base-uncased``."""
    positive: str | None = None
    """The augmentation that makes the positive, by name."""
    pooler: Pooler | None = None
    """How token vectors become one: see ``cse.models.pooling.pool``."""
    max_length: MaxLength | None = None
    """Tokens of a training sentence; the saved model keeps its own limit."""
    temperature: AboveZero | None = None
    mixed_negatives: bool | None = None
    """MixCSE's mixed negatives with any loss; ``loss="mixed"`` implies it."""
    objective: Objective | None = None
    """``infonce``: anchors against candidates. ``nt-xent``: every view against every other."""
    batch_size: BatchSize | None = None
    lr: AboveZero | None = None
    lr_scheduler: Scheduler | None = None
    weight_decay: AtLeastZero | None = None
    max_grad_norm: AtLeastZero | None = None
    """Largest norm of the gradient; 0 does not clip."""
    merge_with_base: Share | None = None
    """Weight of the base model's weights in the encoder that is evaluated and saved; 0: only the trained weights."""
    eval_every: NotNegative | None = None
    """Steps between evaluations; 0: only at the end."""

    def __init__(self, **values: Any) -> None:
        """Fields as keywords; ``una=True`` adds UNA, ``una={"beta": 0.3}`` sets its options."""
        super().__init__(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainConfig:
        """Reads what ``to_toml`` wrote; an unknown key raises ``InputError``."""
        return cls(**read_toml(path))


class ResolvedConfig(Settings):
    """A training run with every value filled in; see ``TrainConfig`` for the fields."""

    model: str
    positive: str
    pooler: Pooler
    max_length: MaxLength
    temperature: AboveZero
    mixed_negatives: bool
    objective: Objective
    batch_size: BatchSize
    lr: AboveZero
    lr_scheduler: Scheduler
    weight_decay: AtLeastZero
    max_grad_norm: AtLeastZero
    merge_with_base: Share
    eval_every: NotNegative


def flag(name: object) -> str:
    """The command-line flag of a field."""
    return "--" + str(name).replace("_", "-")


def gather_options(values: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Moves tables that are no field (``una={"beta": 0.3}``) into ``options``, and ``una=True`` into ``negatives``."""
    values = dict(values)
    options = values.get("options", {})
    if isinstance(options, Mapping):
        options = {name: dict(table) for name, table in options.items() if isinstance(table, Mapping)}
    una = values.get("una")
    if una is not None and not isinstance(una, Mapping):
        del values["una"]
        if not isinstance(una, bool):
            raise InputError(f"--una: {una!r} was given, and it must be true or false, or a table of options")
        others = tuple(name for name in values.get("negatives", ()) if name != "una")
        values["negatives"] = (*others, "una") if una else others
    for name in [name for name, value in values.items() if name not in known and isinstance(value, Mapping)]:
        table = values.pop(name)
        if isinstance(options, dict):
            options[name] = {**options.get(name, {}), **table}
    if options:
        values["options"] = options
    return values


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a configuration file; ``InputError`` names the file and the key of a fault."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from None
    try:
        TrainConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return values

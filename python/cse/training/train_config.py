"""Training configuration: fields, types and constraints, reading and writing of TOML.

``TrainConfig`` holds the values given by the user; for many settings, None stands for a default that depends on preset,
loss and model. ``ResolvedConfig`` holds the values of a run, with these defaults filled in.
``cse.training.precedence.resolve`` converts a ``TrainConfig`` to a ``ResolvedConfig``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..augment import AUGMENTATIONS, PAIRS_POSITIVE
from ..errors import InputError
from ..features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ..losses.options import ContrastiveOptions
from ..losses.rules import incompatibility
from ..registry import Registry, explain_validation, import_methods, parse_options
from .keywords import given_forms, tables
from .settings import Named, Objective, Pooler, Scheduler, Settings, flag, hints, marker

__all__ = ["LOSS_SETTINGS", "ResolvedConfig", "TrainConfig", "read_toml"]

TABLES: tuple[Registry[Any], ...] = (AUGMENTATIONS, FEATURE_AUGMENTATIONS, ENCODER_METHODS, HOOKS, LOSS_TERMS)
# Options of the contrastive loss, and the flags that set them with ``--loss standard``, ``focal`` or ``mixed``.
LOSS_SETTINGS = {
    "objective": "--objective",
    "logits": "--loss",
    "temperature": "--temperature",
    "mixed_negatives": "--mixed-negatives",
}


class TrainConfig(Settings, BaseModel):
    """Training configuration: the settings of ``cse.training.settings``, and the options of the methods that they name.

    A setting that is None but needs a value gets a default that depends on preset, loss and model; see
    ``cse.training.precedence.resolve``. Invalid values raise ``InputError``. Settings are given as keyword arguments:
    ``una=True`` enables UNA, and ``una={"beta": 0.3}`` sets its options.

    Sources: SimCSE (Gao et al. 2021), Focal-InfoNCE (Hou and Li 2023), MixCSE (Zhang et al. 2022), UNA (Shu and
    Lampos 2024).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options by name of the augmentation, loss term or other method. In TOML, the options of UNA are the table
    ``[una]``; in Python, ``una={"beta": 0.3}`` is equivalent to ``options={"una": {"beta": 0.3}}``. An option with a
    flag can also be given alone: ``beta=0.3``."""
    given: dict[str, Any] | None = None
    """The values that the user gave; the other values were derived from them. A table in the ``config.toml`` of a run,
    set by ``cse.training.precedence``. None: the user gave all values."""

    def __init__(self, **values: Any) -> None:
        """Validates types and ranges; raises ``InputError`` with the flag of the first invalid field."""
        values = given_forms(values, type(self).model_fields)
        for file in values.get("imports") or ():
            import_methods(str(file))  # registers methods before their names are looked up
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(explain_validation(error, flag)) from None
        self._check()

    def _check(self) -> None:
        for name, hint in hints().items():
            named, value = marker(hint, Named), getattr(self, name)
            if named is not None and value is not None:
                several = value if isinstance(value, tuple) else (value,)
                for number, each in enumerate(several):
                    named.check(each, flag(name))
                    if each in several[:number]:
                        raise InputError(f"{flag(name)} {each}: was given twice; give it once")
        if self.loss in self.loss_terms:
            raise InputError(f"--loss-term {self.loss}: is already the loss (--loss {self.loss}); leave it out")
        if CONTRASTIVE in self.loss_terms:
            raise InputError(f"--loss-term {CONTRASTIVE}: is part of --loss standard, focal and mixed; leave it out")
        for method in self.options:
            self.options_of(method)
        if "matryoshka" in self.loss_terms and self.loss not in (*CONTRASTIVE_LOSSES, CONTRASTIVE):
            raise InputError(
                f"--dims: this option belongs to a contrastive loss, which --loss {self.loss} is not; leave it out"
            )
        parts = CONTRASTIVE_LOSSES.get(self.loss)
        if parts is not None and (own := LOSS_SETTINGS.keys() & self.options.get(CONTRASTIVE, {}).keys()):
            name = sorted(own)[0]
            raise InputError(
                f"{CONTRASTIVE}.{name}: use {LOSS_SETTINGS[name]}, unless the loss is --loss {CONTRASTIVE}"
            )
        if parts is not None and parts.get("mixed_negatives") and self.mixed_negatives is False:
            raise InputError(f"--no-mixed-negatives: cannot be combined with --loss {self.loss}; use --loss standard")
        contrastive = self.contrastive
        weighted = contrastive.hard_negative_weight != 1
        problem = incompatibility(
            objective=self.objective,
            logits=contrastive.logits,
            mixed=contrastive.mixed,
            # Whether negatives form pairs depends on options whose defaults are known only in a ResolvedConfig.
            synthetic_pairs=isinstance(self, ResolvedConfig) and self.synthetic_pairs,
            # The number of columns is known only when the file is read; see cse.training.inputs.
            hard_negatives=True,
            weighted=weighted,
        )
        if problem:
            raise InputError(problem)
        if self.prompt and "prompt" in self.encoder_methods:
            raise InputError("--prompt: cannot be combined with --encoder-method prompt, which has its own template")
        if self.pairs and self.corpus:
            raise InputError("--pairs: cannot be combined with CORPUS; give one of them")
        if self.columns and not self.pairs:
            raise InputError("--columns: belongs to --pairs, which was not given")
        for selection in ("where", "min_score"):
            if getattr(self, selection) is not None and not self.pairs:
                raise InputError(f"{flag(selection)}: belongs to --pairs, which was not given")
        if weighted and not self.pairs:
            raise InputError("--hard-negative-weight: belongs to --pairs, which was not given")
        if self.pairs and self.column is not None:
            raise InputError("--column: belongs to CORPUS; name the columns of --pairs with --columns")
        if self.allow_partial and not self.data:
            raise InputError("--allow-partial: belongs to --data, which was not given")
        if self.pairs and self.positive not in (None, PAIRS_POSITIVE):
            raise InputError(f"--positive {self.positive}: cannot be combined with --pairs, which holds the positives")
        if self.patience and not self.dev:
            raise InputError("--patience: needs --dev, a file of scored pairs to measure progress by")

    @property
    def contrastive(self) -> ContrastiveOptions:
        """The options of the contrastive loss."""
        table = dict(self.options.get(CONTRASTIVE, {}))
        if self.loss in CONTRASTIVE_LOSSES:
            own = {name: getattr(self, name) for name in LOSS_SETTINGS if name != "logits"}
            table |= {name: value for name, value in own.items() if value is not None} | CONTRASTIVE_LOSSES[self.loss]
        found: ContrastiveOptions = parse_options(CONTRASTIVE, ContrastiveOptions, table)
        return found

    @property
    def synthetic_pairs(self) -> bool:
        """Whether synthetic negatives are used as further pairs, encoded twice under different dropout masks."""
        return any(AUGMENTATIONS.get(name).makes_pairs(self.options_of(name)) for name in self.negatives)

    @property
    def methods(self) -> dict[str, Registry[Any]]:
        """The registries of the methods that the configuration names, by method name."""
        found: dict[str, Registry[Any]] = {}
        for name in (self.positive, *self.negatives):
            found |= {name: AUGMENTATIONS} if name is not None else {}
        found |= dict.fromkeys(self.feature_augmentations, FEATURE_AUGMENTATIONS)
        found |= dict.fromkeys(self.encoder_methods, ENCODER_METHODS)
        found |= {name: HOOKS for name in (self.anchor_hook, self.positive_hook) if name is not None}
        terms = self.loss_terms if self.loss in CONTRASTIVE_LOSSES else (self.loss, *self.loss_terms)
        return found | dict.fromkeys(terms, LOSS_TERMS)

    def implied(self) -> dict[str, Any]:
        """Returns the defaults of settings that the methods imply; see ``TextMethod.implies``."""
        found: dict[str, Any] = {}
        for name, table in self.methods.items():
            found |= table.get(name).implies(self.options_of(name))
        return found

    def options_of(self, method: str) -> Any:
        """Returns the options of a method, with defaults filled in; raises ``InputError`` for an invalid option."""
        table = next((each for each in TABLES if method in each), None)
        if table is None:
            raise InputError(f"{method}: neither a setting nor a method; see cse train --help and cse methods")
        return parse_options(method, table.options(method), self.options.get(method, {}))

    def replace(self, **values: Any) -> Self:
        """Returns a validated copy in which these values are changed."""
        return type(self)(**{**self.values(), "given": self.given, **values})

    def to_toml(self) -> str:
        """Returns the configuration as TOML without None values; options of methods are tables at the end."""
        stored = {name: getattr(self, name) for name in hints()}
        values = {name: value for name, value in stored.items() if value is not None} | tables(self.options)
        if self.given is not None:
            given = {name: value for name, value in self.given.items() if name != "options" and value is not None}
            values["given"] = given | tables(self.given.get("options", {}))
        return tomli_w.dumps(values)

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Reads a TOML file, as written by ``to_toml``; raises ``InputError`` for an invalid file, key or value."""
        return cls(**read_toml(path))

    def values(self) -> dict[str, Any]:
        """Returns the values that were set, by name, without ``given``."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "given"}


# Settings that must have a value in a ResolvedConfig.
RESOLVED = (
    "model",
    "positive",
    "pooler",
    "max_length",
    "temperature",
    "mixed_negatives",
    "objective",
    "batch_size",
    "lr",
    "lr_scheduler",
    "weight_decay",
    "max_grad_norm",
    "keep_head",
    "keep_duplicates",
    "merge_with_base",
    "eval_every",
)


class ResolvedConfig(TrainConfig):
    """Training configuration in which every setting listed in ``RESOLVED`` has a value."""

    if TYPE_CHECKING:
        model: str
        positive: str
        pooler: Pooler
        max_length: int
        temperature: float
        mixed_negatives: bool
        objective: Objective
        batch_size: int
        lr: float
        lr_scheduler: Scheduler
        weight_decay: float
        max_grad_norm: float
        keep_head: bool
        keep_duplicates: bool
        merge_with_base: float
        eval_every: int

    def _check(self) -> None:
        if missing := [name for name in RESOLVED if getattr(self, name) is None]:
            raise InputError(f"{flag(missing[0])}: has no default for this model; set it")
        super()._check()


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

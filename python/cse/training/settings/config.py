"""Training configuration: fields, types and constraints, reading and writing of TOML.

``TrainConfig`` holds the values given by the user; for many settings, None stands for a default that depends on preset,
loss and model. ``ResolvedConfig`` holds the values of a run, with these defaults filled in.
``cse.training.settings.precedence.resolve`` converts a ``TrainConfig`` to a ``ResolvedConfig``.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...errors import InputError
from ...features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...losses.options import ContrastiveOptions, incompatibility
from ...registry import Registry, explain_validation, import_methods, parse_options
from ..parts.data import ResolvedData
from ..parts.encoder import ResolvedModel
from ..parts.evaluation import ResolvedEvaluation
from ..parts.fields import Named, marker
from ..parts.loss import LOSS_SETTINGS, ResolvedLoss
from ..parts.methods import ResolvedAugmentation
from ..parts.optimisation import ResolvedOptimisation
from .given import GROUPS, REQUIRED, Settings, flag, given_forms, hints, tables

TABLES: tuple[Registry[Any], ...] = (AUGMENTATIONS, FEATURE_AUGMENTATIONS, ENCODER_METHODS, HOOKS, LOSS_TERMS)


class TrainConfig(Settings, BaseModel):
    """Training configuration: the settings of all parts of a run, and the options of the methods that they name.

    A setting that is None but needs a value gets a default that depends on preset, loss and model; see
    ``cse.training.settings.precedence.resolve``. Invalid values raise ``InputError``. Settings are given as keyword
    arguments: ``una=True`` enables UNA, and ``una={"beta": 0.3}`` sets its options.

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
    set by ``cse.training.settings.precedence``. None: the user gave all values."""

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
        for method in self.options:
            self.options_of(method)
        parts = CONTRASTIVE_LOSSES.get(self.loss)
        if parts is not None and (own := LOSS_SETTINGS.keys() & self.options.get(CONTRASTIVE, {}).keys()):
            name = sorted(own)[0]
            raise InputError(
                f"{CONTRASTIVE}.{name}: use {LOSS_SETTINGS[name]}, unless the loss is --loss {CONTRASTIVE}"
            )
        for group in GROUPS:
            group.check(self)
        contrastive = self.contrastive
        problem = incompatibility(
            objective=self.objective,
            logits=contrastive.logits,
            mixed=contrastive.mixed,
            # Whether negatives form pairs depends on options whose defaults are known only in a ResolvedConfig.
            synthetic_pairs=isinstance(self, ResolvedConfig) and self.synthetic_pairs,
            # The number of columns is known only when the file is read; see cse.training.inputs.
            hard_negatives=True,
            weighted=self.weighted,
        )
        if problem:
            raise InputError(problem)
        if self.prompt and "prompt" in self.encoder_methods:
            raise InputError("--prompt: cannot be combined with --encoder-method prompt, which has its own template")
        if self.weighted and not self.pairs:
            raise InputError("--hard-negative-weight: belongs to --pairs, which was not given")
        if self.pairs and self.positive not in (None, PAIRS_POSITIVE):
            raise InputError(f"--positive {self.positive}: cannot be combined with --pairs, which holds the positives")

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
    def weighted(self) -> bool:
        """Whether the loss weights hard negatives."""
        return self.contrastive.hard_negative_weight != 1

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


if TYPE_CHECKING:

    class _Resolved(
        ResolvedData,
        ResolvedModel,
        ResolvedAugmentation,
        ResolvedLoss,
        ResolvedOptimisation,
        ResolvedEvaluation,
        TrainConfig,
    ): ...

else:
    _Resolved = TrainConfig


class ResolvedConfig(_Resolved):
    """Training configuration in which every setting listed in ``REQUIRED`` has a value."""

    @property
    def saved_pooler(self) -> str:
        """The pooling of the saved model: without the head of ``cls``, the bare vector of the first token."""
        found = self.eval_pooler or self.pooler
        return "cls_before_pooler" if found == "cls" and not self.keep_head else found

    def _check(self) -> None:
        if missing := [name for name in REQUIRED if getattr(self, name) is None]:
            raise InputError(f"{flag(missing[0])}: has no default for this model; set it")
        super()._check()

    def with_used_options(self, methods: dict[str, Any]) -> ResolvedConfig:
        """Returns the configuration with all options of the methods that are used, including defaults."""
        used = {name: asdict(method.options) for name, method in methods.items()}
        if self.loss in CONTRASTIVE_LOSSES:
            used[CONTRASTIVE] = {name: value for name, value in used[CONTRASTIVE].items() if name not in LOSS_SETTINGS}
        return self.model_copy(update={"options": {name: table for name, table in used.items() if table}})


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

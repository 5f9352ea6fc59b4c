"""The settings of a run, and the options of its methods, by name. This module imports neither NumPy nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from ...augment import AUGMENTATIONS, LABELS_POSITIVE
from ...errors import KEYWORDS, InputError
from ...evaluation import EVALUATIONS
from ...hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...losses.options import ContrastiveOptions
from ...options import Option, options_of, parse_options
from ...registry import Registry
from .declared import GROUPS, Data, Evaluation, Loss, Methods, Model, Optimisation, Output

SETTINGS: dict[str, Option] = {option.name: option for group in GROUPS for option in options_of(group)}
"""The settings by name, in the order of declaration."""

TERMS, MORE_TERMS = "loss_terms", "more_loss_terms"
NO_TERMS = "none"
"""Value of ``more_loss_terms`` that removes the terms of the recipe or preset."""
SAME_RESULTS = {name for name, option in SETTINGS.items() if option.opt.same_results}
"""The settings that do not affect what a run computes."""

KEYWORDS.update({option.flag: name for name, option in SETTINGS.items() if name != MORE_TERMS})

TABLES: dict[Registry[Any], tuple[str, ...]] = {
    AUGMENTATIONS: ("--positive", "--negative"),
    FEATURE_AUGMENTATIONS: ("--feature-augmentation",),
    ENCODER_METHODS: ("--encoder-method",),
    HOOKS: ("--anchor-hook", "--positive-hook"),
    LOSS_TERMS: ("--loss-term",),
    EVALUATIONS: ("--judge",),
}
"""The registries of methods, with the flags that make a run use a method."""

# Registries whose built-in methods may have flags. Each stands with the group of settings under whose heading the help
# lists these flags, and with the setting that names the methods.
PLACES: tuple[tuple[Registry[Any], type, str], ...] = (
    (AUGMENTATIONS, Methods, "negatives"),
    (ENCODER_METHODS, Model, "encoder_methods"),
    (LOSS_TERMS, Loss, "loss_terms"),
)

# Options of the contrastive loss, and the flags that set them with ``--loss standard``, ``focal`` or ``mixed``.
LOSS_SETTINGS = {
    "objective": "--objective",
    "logits": "--loss",
    "temperature": "--temperature",
    "mixed_negatives": "--mixed-negatives",
}


class MethodFlag(NamedTuple):
    """An option of a method, with its own command-line flag."""

    method: str
    option: Option
    group: type  # the group of settings under whose heading the option is shown
    named_by: str  # the setting that names the method


@cache
def method_flags() -> dict[str, MethodFlag]:
    """Returns the flags of options of built-in methods by keyword, such as ``una_as``, in the order of registries."""
    return {
        option.flag.removeprefix("--").replace("-", "_"): MethodFlag(method, option, group, named_by)
        for table, group, named_by in PLACES
        for method, kind in table.flagged().items()
        for option in options_of(kind)
        if option.opt.flag
    }


def flag(name: str) -> str:
    """Returns the command-line flag of a setting, or of an option of a method; else the name, in the form of a flag."""
    if name in SETTINGS:
        return SETTINGS[name].flag
    method, _, key = name.rpartition(".")
    if not method:
        return "--" + name.replace("_", "-")
    return next(
        (item.option.flag for item in method_flags().values() if (item.method, item.option.name) == (method, key)), name
    )


def contrastive_options(loss: Loss, options: Mapping[str, Mapping[str, Any]]) -> ContrastiveOptions:
    """Returns the options of the contrastive loss: those in the table ``options``, and the settings that set others."""
    table = dict(options.get(CONTRASTIVE, {}))
    if loss.loss in CONTRASTIVE_LOSSES:
        own = {name: getattr(loss, name) for name in LOSS_SETTINGS if name != "logits"}
        table |= {name: value for name, value in own.items() if value is not None} | CONTRASTIVE_LOSSES[loss.loss]
    parsed: ContrastiveOptions = parse_options(CONTRASTIVE, ContrastiveOptions, table)
    return parsed


class Settings(Data, Model, Methods, Loss, Optimisation, Evaluation, Output):
    """All settings, and the options of the methods that they name. A setting that is derived may be None."""

    options: dict[str, dict[str, Any]]
    """Options by name of the augmentation, loss term or other method. In TOML, the options of UNA are the table
    ``[una]``; in Python, ``una={"beta": 0.3}`` is equivalent to ``options={"una": {"beta": 0.3}}``. An option with a
    flag can also be given alone: ``beta=0.3``."""
    given: dict[str, Any] | None
    """The values that the user gave, if the other values were derived from them: the table ``given`` in the
    ``config.toml`` of a run. None: the user gave all values."""

    @property
    def contrastive(self) -> ContrastiveOptions:
        """The options of the contrastive loss."""
        return contrastive_options(self, self.options)

    @property
    def synthetic_pairs(self) -> bool:
        """Whether synthetic negatives also form pairs; this depends on options that may be derived."""
        kinds = {name: AUGMENTATIONS.get(name) for name in self.negatives}
        return any(kind.makes_pairs(self.options_of(name)) for name, kind in kinds.items())

    @property
    def all_terms(self) -> tuple[str, ...]:
        """The loss terms besides the loss that were given."""
        return tuple(dict.fromkeys((*self.loss_terms, *self.more_loss_terms)))

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of ``--judge``, and that of ``--judged-queries``."""
        named = tuple(judge.partition("=")[0] for judge in self.judges)
        return named if self.judged_queries is None else (*named, "retrieval")

    @property
    def methods(self) -> dict[str, Registry[Any]]:
        """The registries of the methods that the settings name, by method name."""
        terms = self.all_terms if self.loss in CONTRASTIVE_LOSSES else (self.loss, *self.all_terms)
        tables: dict[Registry[Any], tuple[str | None, ...]] = {
            AUGMENTATIONS: (self.positive, *self.negatives, LABELS_POSITIVE if self.learn else None),
            FEATURE_AUGMENTATIONS: self.feature_augmentations,
            ENCODER_METHODS: self.encoder_methods,
            HOOKS: (self.anchor_hook, self.positive_hook),
            LOSS_TERMS: terms,
            EVALUATIONS: self.suites,
        }
        return {name: table for table, names in tables.items() for name in names if name is not None}

    def options_of(self, method: str) -> Any:
        """Returns the options of a method, with defaults filled in; raises ``InputError`` for an invalid option."""
        table = next((registry for registry in TABLES if method in registry), None)
        if table is None:
            raise InputError(f"{method}: neither a setting nor a method; see cse train --help and cse methods")
        return parse_options(method, table.options(method), self.options.get(method, {}))

"""Which settings cannot be combined: by ``Opt.needs`` and ``Opt.excludes``, by ``RULES``, and because of methods.

What a method needs, reads and changes are attributes of its class; see ``cse.losses.base`` and ``cse.hooks.base``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ...augment import AUGMENTATIONS, LABELS_POSITIVE, PAIRS_POSITIVE
from ...hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS, TEACHER
from ...losses.options import incompatibility
from ...options import If, combination_fault, options_of
from .names import LOSS_SETTINGS, SETTINGS, TABLES, Settings, flag

if TYPE_CHECKING:
    from ...losses.base import LossTerm

CONTRASTIVE_FLAGS = "--loss standard, focal and mixed"
MIXED = tuple(name for name, options in CONTRASTIVE_LOSSES.items() if options.get("mixed_negatives"))


@dataclass(frozen=True)
class Rule:
    """A combination that is refused: all of ``when`` hold, and none of ``unless``."""

    message: str  # {name} stands for the value of a setting
    when: tuple[If, ...] = ()
    unless: tuple[If, ...] = ()


RULES = (
    Rule("--loss-term {loss} is already the loss (--loss {loss}); omit this --loss-term", (If("repeated"),)),
    Rule(
        f"--loss-term {CONTRASTIVE} is part of {CONTRASTIVE_FLAGS}; omit this --loss-term",
        (If("terms", (CONTRASTIVE,)),),
    ),
    Rule(
        "--loss matryoshka needs a contrastive loss; use --dims with --loss standard, focal or mixed",
        (If("loss", ("matryoshka",)),),
    ),
    Rule(
        "--dims belongs to a contrastive loss, which --loss {loss} is not; omit --dims",
        (If("terms", ("matryoshka",)),),
        (If("loss", (*CONTRASTIVE_LOSSES, CONTRASTIVE)),),
    ),
    Rule(
        "--no-mixed-negatives cannot be combined with --loss {loss}; use --loss standard",
        (If("loss", MIXED), If("mixed_negatives", (False,))),
    ),
    Rule("{incompatible}", (If("incompatible"),)),
    Rule(
        "--loss teacher: with --learn, the run learns from the teacher before the labels; omit --loss",
        (If("learn"), If("loss", (TEACHER,))),
    ),
    Rule(
        "--hard-negative-weight has no effect without --pairs; add that, or omit --hard-negative-weight",
        unless=(If("pairs"), If("hard_negative_weight", (1,))),
    ),
    Rule(
        "--positive {positive} cannot be combined with --pairs, which holds the positives",
        (If("pairs"),),
        (If("positive", (None, PAIRS_POSITIVE)),),
    ),
)
"""Combinations that are refused, whatever the defaults of the model are. Besides the settings, the conditions are on
``terms``, the loss terms besides the loss; ``repeated``, whether the loss is one of them; ``hard_negative_weight``; and
``incompatible``, why parts of the loss cannot be combined, whatever the objective, which a method may imply."""


def refusals(config: Settings) -> Iterator[str]:
    """Yields why settings are refused, whatever the defaults of the model are."""
    for name in sorted(LOSS_SETTINGS.keys() & config.options.get(CONTRASTIVE, {}).keys()):
        if config.loss in CONTRASTIVE_LOSSES:
            yield f"{CONTRASTIVE}.{name}: use {LOSS_SETTINGS[name]}, unless the loss is --loss {CONTRASTIVE}"
    values = {name: getattr(config, name) for name in SETTINGS}
    if fault := combination_fault(SETTINGS.values(), SETTINGS, values.get, flag):
        yield fault
    loss = config.contrastive
    values |= {
        "terms": config.all_terms,
        "repeated": config.loss in config.all_terms and config.loss != TEACHER,
        "incompatible": incompatibility(None, loss.logits, loss.mixed, synthetic_pairs=False),
        "hard_negative_weight": loss.hard_negative_weight,
    }
    for rule in RULES:
        holds, does_not = ([item.holds(values[item.option]) for item in items] for items in (rule.when, rule.unless))
        if all(holds) and not any(does_not):
            yield rule.message.format(**values)


def without_effect(config: Settings, named: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields which values that the user gave change nothing, in settings that all have their values.

    ``named`` are the options that were given, by method.
    """
    loss = config.contrastive
    yield incompatibility(config.objective, loss.logits, loss.mixed, config.synthetic_pairs) or ""
    used = {*config.methods, *({CONTRASTIVE} if config.loss in CONTRASTIVE_LOSSES else ())}
    for method in sorted(named.keys() - used):
        option, ways = flag(f"{method}.{next(iter(named[method]))}"), " or ".join(_ways_to_use(method))
        yield f"{option} has no effect without {ways}; add that, or omit {option}"
    chosen = {name: value for name, value in (config.given or {}).items() if value is not None and value is not False}
    for method, table in chosen.get("options", {}).items():
        options = config.contrastive if method == CONTRASTIVE else config.options_of(method)
        flags = {option.name: flag(f"{method}.{option.name}") for option in options_of(type(options))}
        yield combination_fault(options_of(type(options)), table, vars(options).get, flags.__getitem__) or ""
        for name in sorted(table.keys() & getattr(config.methods.get(method, {}).get(method), "of_negatives", ())):
            if method not in config.negatives:
                yield f"{method}.{name} has an effect only with --negative {method}; add that, or omit {method}.{name}"
    for method in config.encoder_methods:
        for name, value in ENCODER_METHODS.get(method).requires(config.options_of(method)).items():
            if (actual := getattr(config, name)) != value:
                yield (
                    f"{flag(name)} {actual}: --encoder-method {method} with these options needs {flag(name)} {value}; "
                    f"omit {flag(name)}, or change the options (cse methods {method})"
                )
    if config.learn and config.positive == LABELS_POSITIVE:
        yield (
            f"--positive {LABELS_POSITIVE}: --learn adds it for the rows with a label; omit it, or name the positives "
            "of the other rows"
        )
    yield from _of_other_spaces(config)
    yield from _not_read(config, chosen)


def _ways_to_use(method: str) -> list[str]:
    """Returns the flags with which a run uses a method."""
    if method == CONTRASTIVE:
        return [f"--loss {name}" for name in CONTRASTIVE_LOSSES]
    if method in AUGMENTATIONS.flagged():
        return [f"--{method}"]
    return next([f"{name} {method}" for name in flags] for table, flags in TABLES.items() if method in table)


def _terms(config: Settings) -> dict[str, type[LossTerm]]:
    return {name: LOSS_TERMS.get(name) for name, table in config.methods.items() if table is LOSS_TERMS}


def _of_other_spaces(config: Settings) -> Iterator[str]:
    """Yields which methods compare embeddings with those that another method maps to another space."""
    features = {
        f"--feature-augmentation {name}": FEATURE_AUGMENTATIONS.get(name) for name in config.feature_augmentations
    }
    mapping = [name for name, kind in features.items() if kind.other_space]
    if "matryoshka" in config.loss_terms and mapping:
        yield f"--dims would train the dimensions of the output of {mapping[0]}, which is not saved; omit one of them"
    encoding = [name for name, kind in features.items() if kind.encodes]
    encoding += [f"--loss-term {name}" for name, term in _terms(config).items() if term.encodes]
    for one, other in ((one, other) for one, other in product(encoding, mapping) if one != other):
        yield f"{one} adds embeddings of the encoder, and {other} maps the others to another space; omit one of them"


def _not_read(config: Settings, chosen: Mapping[str, Any]) -> Iterator[str]:
    """Yields which of the settings that were ``chosen`` change only views that no loss term reads."""
    from ...augment.base import Edit

    terms, positive = _terms(config), AUGMENTATIONS.get(config.positive)
    read = frozenset().union(*(term.reads for term in terms.values()))
    is_view = issubclass(positive, Edit) and not positive.is_positive(config.options_of(config.positive))
    if is_view and "other" not in read:
        yield (
            f"--positive {config.positive} with these options makes edited sentences that no loss term of the run "
            f"reads; add the loss term of its paper (cse methods {config.positive}), or choose another positive"
        )
    if config.loss in CONTRASTIVE_LOSSES:
        return  # reads all other views
    changed: dict[str, Collection[str]] = {f"--negative {name}": ("negative",) for name in config.negatives}
    for name in config.feature_augmentations:
        changed[f"--feature-augmentation {name}"] = FEATURE_AUGMENTATIONS.get(name).changes
    of_views = {f"{role}_{what}": role for role in ("anchor", "positive") for what in ("hook", "dropout", "encoder")}
    changed |= {flag(name): (role,) for name, role in of_views.items() if name in chosen}
    if "positive" in chosen and issubclass(positive, Edit):
        changed[f"--positive {config.positive}"] = ("positive",)
    for option, roles in changed.items():
        if not read & set(roles):
            others = " and ".join(f"no {role}s" for role in sorted(roles))
            yield f"--loss {config.loss} uses {others}, so {option} has no effect; omit one of them"
    own = {option.name for option in options_of(LOSS_TERMS.options(config.loss))}
    for name, option in LOSS_SETTINGS.items():
        if name in chosen:
            remedy = f"use --set {config.loss}.{name}" if name in own else "omit one of them"
            yield f"--loss {config.loss} does not use {option}, which belongs to {CONTRASTIVE_FLAGS}; {remedy}"

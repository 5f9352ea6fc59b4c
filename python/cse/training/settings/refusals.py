"""Combinations of settings that are refused, unless declarations (``cse.options.Opt``) say so, with their messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...augment.base import Edit
from ...features import ENCODER_METHODS, FEATURE_AUGMENTATIONS
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...losses.options import incompatibility
from ...options import combination_fault, options_of
from .values import LOSS_SETTINGS, SETTINGS, TABLES, flag

CONTRASTIVE_FLAGS = "--loss standard, focal and mixed"


def refusals(config: Any) -> Iterator[str]:
    """Yields why a ``TrainConfig`` is refused, whatever the defaults of its model are; may also yield ""."""
    for name in sorted(LOSS_SETTINGS.keys() & config.options.get(CONTRASTIVE, {}).keys()):
        if config.loss in CONTRASTIVE_LOSSES:
            yield f"{CONTRASTIVE}.{name}: use {LOSS_SETTINGS[name]}, unless the loss is --loss {CONTRASTIVE}"
    yield combination_fault(SETTINGS.values(), SETTINGS, lambda name: getattr(config, name), flag) or ""
    if config.loss in config.all_terms:
        yield f"--loss-term {config.loss} is already the loss (--loss {config.loss}); omit this --loss-term"
    if CONTRASTIVE in config.all_terms:
        yield f"--loss-term {CONTRASTIVE} is part of {CONTRASTIVE_FLAGS}; omit this --loss-term"
    if config.loss == "matryoshka":
        yield "--loss matryoshka needs a contrastive loss; use --dims with --loss standard, focal or mixed"
    if "matryoshka" in config.all_terms and config.loss not in (*CONTRASTIVE_LOSSES, CONTRASTIVE):
        yield f"--dims belongs to a contrastive loss, which --loss {config.loss} is not; omit --dims"
    if CONTRASTIVE_LOSSES.get(config.loss, {}).get("mixed_negatives") and config.mixed_negatives is False:
        yield f"--no-mixed-negatives cannot be combined with --loss {config.loss}; use --loss standard"
    contrastive = config.contrastive
    yield incompatibility(config.objective, contrastive.logits, contrastive.mixed, config.synthetic_pairs) or ""
    if contrastive.hard_negative_weight != 1 and not config.pairs:
        yield "--hard-negative-weight has no effect without --pairs; add that, or omit --hard-negative-weight"
    if config.pairs and config.positive not in (None, PAIRS_POSITIVE):
        yield f"--positive {config.positive} cannot be combined with --pairs, which holds the positives"


def without_effect(config: Any, named: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields which settings that the user gave change nothing; ``named`` are the options that were given, by method."""
    used = {*config.methods, *({CONTRASTIVE} if config.loss in CONTRASTIVE_LOSSES else ())}
    for method in sorted(named.keys() - used):
        option = flag(f"{method}.{next(iter(named[method]))}")
        ways = next([f"{name} {method}" for name in flags] for table, flags in TABLES.items() if method in table)
        if method == CONTRASTIVE:
            ways = [f"--loss {name}" for name in CONTRASTIVE_LOSSES]
        elif method in AUGMENTATIONS.flagged():
            ways = [f"--{method}"]
        yield f"{option} has no effect without {' or '.join(ways)}; add that, or omit {option}"
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
    features = {name: FEATURE_AUGMENTATIONS.get(name) for name in config.feature_augmentations}
    terms = {name: LOSS_TERMS.get(name) for name, table in config.methods.items() if table is LOSS_TERMS}
    mapping = [f"--feature-augmentation {name}" for name, kind in features.items() if kind.other_space]
    if "matryoshka" in config.loss_terms and mapping:
        yield f"--dims would train the dimensions of the output of {mapping[0]}, which is not saved; omit one of them"
    encoding = [f"--feature-augmentation {name}" for name, kind in features.items() if kind.encodes]
    encoding += [f"--loss-term {name}" for name, term in terms.items() if term.encodes]
    for one, other in ((one, other) for one in encoding for other in mapping if one != other):
        yield f"{one} adds embeddings of the encoder, and {other} maps the others to another space; omit one of them"
    positive = AUGMENTATIONS.get(config.positive)
    is_view = issubclass(positive, Edit) and not positive.is_positive(config.options_of(config.positive))
    if is_view and not any("other" in term.reads for term in terms.values()):
        yield (
            f"--positive {config.positive} with these options makes edited sentences that no loss term of the run "
            f"reads; add the loss term of its paper (cse methods {config.positive}), or choose another positive"
        )
    if config.loss in CONTRASTIVE_LOSSES:
        return  # reads all views
    changed = {f"--negative {name}": {"negative"} for name in config.negatives}
    changed |= {f"--feature-augmentation {name}": set(kind.changes) for name, kind in features.items()}
    for role in ("anchor", "positive"):
        settings = (f"{role}_hook", f"{role}_dropout", f"{role}_encoder")
        changed |= {flag(name): {role} for name in settings if name in chosen}
    if "positive" in chosen and issubclass(positive, Edit):
        changed[f"--positive {config.positive}"] = {"positive"}
    read = frozenset().union(*(term.reads for term in terms.values()))
    for option, roles in changed.items():
        if not read & roles:
            others = " and ".join(f"no {role}s" for role in sorted(roles))
            yield f"--loss {config.loss} uses {others}, so {option} has no effect; omit one of them"
    own = {option.name for option in options_of(LOSS_TERMS.options(config.loss))}
    for name, option in LOSS_SETTINGS.items():
        if name in chosen:
            remedy = f"use --set {config.loss}.{name}" if name in own else "omit one of them"
            yield f"--loss {config.loss} does not use {option}, which belongs to {CONTRASTIVE_FLAGS}; {remedy}"

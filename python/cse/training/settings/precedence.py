"""Values of settings that were not given; runs that are repeated or resumed with changes; and what can be combined.

In order of precedence: flags; the configuration file; the preset; the defaults implied by the loss and other methods;
the pooling declared in the folder of the model; the defaults of the model family; those of all families. This module
does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...errors import InputError
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...options import options_of
from ..folder.find import CONFIG, config_file, find_checkpoint
from .config import ResolvedConfig, TrainConfig, without_effect
from .presets import conditional, families, preset_values
from .values import SETTINGS, flag, flat, merge, tables_of

DEFAULT_MODEL = "minilm"
SAME_RESULTS = {name for name, option in SETTINGS.items() if option.opt.same_results}
"""The settings that do not affect what a run computes."""
MAY_CHANGE = {name for name, option in SETTINGS.items() if option.opt.may_change}
"""The settings that a resumed run may change."""
UNA: dict[str, dict[str, Any]] = {
    "": {},
    "UNA, pairs": {"negatives": ("una",), "options": {"una": {"use_as": "pairs"}}},
    "UNA, hard negatives": {"negatives": ("una",), "options": {"una": {"use_as": "hard-negatives"}}},
}


def with_preset(config: TrainConfig) -> TrainConfig:
    """Returns the configuration completed with the values of its preset and the default model."""
    if config.preset is None and config.model is not None and config.given is not None:
        return config
    given = config.values()
    preset = merge(preset_values(config.preset)) if config.preset else {}
    if config.preset == "encoder":  # a table of family defaults; the defaults of the loss take precedence
        preset = family_defaults(config, "encoder")
    # Values of the preset that do not apply: patience needs --dev, and eval_pooler belongs to the preset's pooler.
    conditions = {"positive": config.pairs, "patience": not config.dev, "eval_pooler": config.pooler}
    dropped = {other_limit(given), *(name for name, drop in conditions.items() if drop)}
    kept = {name: value for name, value in preset.items() if name not in dropped}
    values = merge(given, kept, {"model": DEFAULT_MODEL})
    values.pop("preset", None)
    result = TrainConfig(**values, given=given if config.given is None else config.given)
    # ``resolve`` rejects options of methods that are not used, so such options of the preset are dropped.
    used = {*result.methods, *config.options, CONTRASTIVE}
    return result.copied(options={name: table for name, table in result.options.items() if name in used})


def resolve(
    config: TrainConfig, family: str, own_pooler: str | None = None, precision: str | None = None
) -> ResolvedConfig:
    """Returns the configuration with defaults for all values that were not given."""
    named = {**config.options, **(config.given or {}).get("options", {})}
    config = with_preset(config)
    values = merge(config.values(), family_defaults(config, family, own_pooler), families()["all"])
    values |= {"precision": precision} if precision else {}
    terms = (*values.get("loss_terms", ()), *values.pop("more_loss_terms", ()))
    resolved = ResolvedConfig(**values | {"loss_terms": tuple(dict.fromkeys(terms))}, given=config.given)
    for problem in filter(None, without_effect(resolved, named)):
        raise InputError(problem)
    return resolved


def other_limit(values: Mapping[str, Any]) -> str | None:
    """Returns the one of ``epochs`` and ``max_steps`` that must not be filled in, because only the other was given."""
    limits = [name for name in ("epochs", "max_steps") if values.get(name) is not None]
    return {"epochs": "max_steps", "max_steps": "epochs"}[limits[0]] if len(limits) == 1 else None


def family_defaults(config: TrainConfig, family: str, own_pooler: str | None = None) -> dict[str, Any]:
    """Returns the defaults of a family by flat name, and those that loss, pairs and other methods imply."""
    chosen = config.values()
    published = (config.given or chosen).get("preset") not in (None, "encoder")
    recipe = {} if config.pairs or published else conditional(family, "", False)
    loss = chosen.get("loss") or config.implied().get("loss") or recipe.get("loss", config.loss)
    table = {name: value for name, value in families()[family].items() if name != other_limit(chosen)}
    used = config.copied(loss=loss, options=tables_of(merge(chosen, table)))
    recipe = recipe if loss in CONTRASTIVE_LOSSES else {}
    if config.pairs:
        recipe = {"positive": PAIRS_POSITIVE}
        used = used.copied(**recipe)
    implied = conditional(family, loss, None), {"loss": loss, "mixed_negatives": used.contrastive.mixed_negatives}
    return merge(used.implied(), *implied, recipe, {"pooler": own_pooler}, table)


def recipe_reason(config: ResolvedConfig, family: str) -> str:
    """Returns a text that says where the values that were not given come from, and why."""
    preset = (config.given or {}).get("preset")
    if preset is not None and (preset, family) != ("encoder", "encoder"):
        return f"preset {preset}"
    if family != "encoder":
        return f"defaults of {family}"
    kept = ["its similarities are kept"] if "keep-similarities" in config.loss_terms else []
    cut = ["short passages of the rows are the positives"] if config.positive == "spans" else []
    why = " and ".join([*kept, *cut])
    return f"encoder: the model is already a sentence encoder{f', so {why}' if why else ''}"


def differences(config: TrainConfig, before: TrainConfig, chosen: Mapping[str, Any]) -> list[str]:
    """Returns the values in which a configuration differs from ``before``, without those in ``chosen``, as texts."""
    apart = {*flat(chosen), other_limit(chosen), "name", "preset"}
    apart |= {"negatives"} if chosen.keys() & AUGMENTATIONS.flagged() else set()
    old, new = merge(before.values()), {**vars(config), **merge(config.values())}
    return [
        f"{name if '.' in name else flag(name)} {text(new[name])} instead of {text(old[name])}"
        for name in sorted(old.keys() - apart, key=flag)
        if name in new and new[name] != old[name]
    ]


def text(value: object) -> str:
    """Returns a value for a message."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def repeated(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the stored values that are to be merged with the changes, and the table ``given`` of the new run.

    If the changes affect what is computed, only the values that the user gave are kept, with None for ``given``: the
    others are derived again. Options of methods that the changes switch off are left out.
    """
    kept = flat({name: value for name, value in stored.items() if name not in ("name", "given")})
    table: dict[str, Any] | None = stored.get("given")
    if table is not None:
        if set(changes) <= SAME_RESULTS:
            return kept, table
        kept = flat({name: value for name, value in table.items() if name != "name"})
    kept.pop(other_limit(changes) or "", None)
    off = set(TrainConfig(**kept).methods) - set(TrainConfig(**merge(changes, kept)).methods)
    return {name: value for name, value in kept.items() if name.rpartition(".")[0] not in off}, None


def resumed_config(
    resume: str | Path,
    changes: dict[str, Any] | None = None,
    where: str = "--resume",
    remedy: str = "omit these options",
) -> TrainConfig:
    """Returns the configuration with which a run is resumed: the stored one with the changes in ``changes``."""
    folder = find_checkpoint(Path(resume))
    stored, file = TrainConfig.from_toml(config_file(folder)), folder.parent.parent / CONFIG
    if file.exists():
        stored = _checked(stored, TrainConfig.from_toml(file), str(file), "undo the change")
    # A value with which the run began is no change where it was resolved since, as a preset; so are other spellings of
    # paths, and auto, for which the run keeps the precision that was chosen when it began.
    begun = {} if stored.given is None else TrainConfig(**stored.given).values()
    kept = {name: value for name, value in begun.items() if name not in MAY_CHANGE}
    kept |= {name: getattr(stored, name) for name, option in SETTINGS.items() if option.opt.paths}
    changes = {
        name: value
        for name, value in (changes or {}).items()
        if (name, value) != ("precision", "auto") and not (name in kept and _same(name, value, kept[name]))
    }
    given = None if stored.given is None else TrainConfig(**merge(changes, stored.given)).values()
    changed = stored.replace(**{**merge(changes, stored.values()), **changes, "given": given})
    return _checked(stored, changed, where, remedy)


def _checked(stored: TrainConfig, changed: TrainConfig, where: str, remedy: str) -> TrainConfig:
    """Returns ``changed``; raises ``InputError`` that lists the settings that differ although they may not change."""
    old, new = (_all(config, changed) for config in (stored, changed))
    problems = [
        f"{flag(name)} {text(new[name])} (the run has {text(old[name])})"
        for name in new
        if name not in MAY_CHANGE and new[name] != old[name]
    ]
    if problems:
        raise InputError(
            f"{where}: {'; '.join(problems)} cannot change in a run that has begun; start a new run, or {remedy}"
        )
    return changed


def _all(config: TrainConfig, named: TrainConfig) -> dict[str, Any]:
    """Returns all settings, and all options of the methods whose options are in ``named``, by flat name."""
    values = {name: getattr(config, name) for name in SETTINGS}
    for method in named.options:
        options = config.options_of(method)
        values |= {f"{method}.{option.name}": getattr(options, option.name) for option in options_of(type(options))}
    return values


def _same(name: str, one: Any, other: Any) -> bool:
    """Returns whether two values of a setting are equal; paths are, if they lead to the same place."""
    if name in SETTINGS and SETTINGS[name].opt.paths and isinstance(one, tuple) and isinstance(other, tuple):
        return [*map(os.path.abspath, one)] == [*map(os.path.abspath, other)]
    return bool(one == other)


def losses() -> dict[str, dict[str, Any]]:
    """Returns the settings of each loss by its name in the table of combinations."""
    contrastive: dict[str, dict[str, Any]] = {name: {"loss": name} for name in CONTRASTIVE_LOSSES}
    contrastive["mixed, release"] = {"loss": "mixed", "mix_variant": "release"}
    return contrastive | {name: {"loss": name} for name in LOSS_TERMS.names() if LOSS_TERMS.get(name).is_loss}


def combinations() -> dict[tuple[str, str, str], str]:
    """Returns the error message for each combination (positive, loss, form of UNA); "" if it is allowed."""
    messages = {}
    for positive, (loss, chosen), (form, una) in product(AUGMENTATIONS.names(), losses().items(), UNA.items()):
        source = {"pairs": "pairs.csv"} if positive == PAIRS_POSITIVE else {"corpus": "corpus.txt"}
        try:
            resolve(TrainConfig(**source, positive=positive, **chosen, **una), "bert-base")
            messages[positive, loss, form] = ""
        except InputError as error:
            messages[positive, loss, form] = str(error)
    return messages


def table_of_combinations() -> str:
    """Returns a Markdown table (rows: positives; columns: losses with forms of UNA), followed by the error messages."""
    messages = combinations()
    heads = dict.fromkeys(f"{loss}{f', {form}' if form else ''}" for _, loss, form in messages)
    rows: dict[tuple[str, ...], list[str]] = {}  # positives with equal entries share a row
    for positive in AUGMENTATIONS.names():
        rows.setdefault(tuple(text for key, text in messages.items() if key[0] == positive), []).append(positive)
    reasons = list(dict.fromkeys(reason for row in rows for reason in row if reason))
    lines = [f"| positive | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for row, names in rows.items():
        cells = ["yes" if not reason else f"no ({reasons.index(reason) + 1})" for reason in row]
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, 1))])

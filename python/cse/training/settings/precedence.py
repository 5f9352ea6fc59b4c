"""Values of settings that were not given: defaults by preset, loss and model family.

In order of precedence: flags; the configuration file; the preset; the defaults implied by the loss and other methods;
the pooling declared in the folder of the model; the defaults of the model family; those of all families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...augment import PAIRS_POSITIVE
from ...errors import InputError
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES
from .config import ResolvedConfig, TrainConfig
from .presets import conditional, families, preset_values
from .refusals import without_effect
from .values import merge, tables_of

DEFAULT_MODEL = "minilm"


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
    loss = chosen.get("loss") or recipe.get("loss", config.loss)
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

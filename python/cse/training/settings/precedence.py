"""Values of settings that were not given: defaults by preset, loss and model family.

In order of precedence, highest first: flags; the configuration file; the preset; the defaults implied by the loss and
other methods; the pooling declared in the folder of the model; the defaults of the model family; the defaults of all
families.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...augment.base import Edit
from ...errors import InputError
from ...features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...options import combination_fault, options_of
from .config import LOSS_SETTINGS, ResolvedConfig, TrainConfig, flag, with_tables
from .presets import conditional, families, preset_values

DEFAULT_MODEL = "minilm"


def with_preset(config: TrainConfig) -> TrainConfig:
    """Returns the configuration completed with the values of its preset and the default model.

    Given values take precedence. A configuration that was completed earlier is returned unchanged.
    """
    if config.preset is None and config.model is not None and config.given is not None:
        return config
    stored = preset_values(config.preset) if config.preset else {}
    values = config.values()
    if config.preset == "encoder":  # a table of family defaults; the defaults of the loss take precedence
        chosen = with_loss(config, "encoder")
        completed = chosen.copied(options=merge({"options": config.options}, stored).get("options", {}))
        stored = {"loss": chosen.loss, **stored, **loss_recipe(completed, "encoder")}
    if config.pairs:
        stored = {name: value for name, value in stored.items() if name != "positive"}
    # Values of the preset that do not apply: patience needs --dev, and eval_pooler belongs to the preset's pooler.
    dropped = {name for name, drop in (("patience", not config.dev), ("eval_pooler", bool(config.pooler))) if drop}
    stored = {name: value for name, value in stored.items() if name not in dropped}
    if other := other_limit(values):
        stored = {name: value for name, value in stored.items() if name != other}
    merged = merge(values, stored, {"model": DEFAULT_MODEL})
    merged.pop("preset", None)
    result = TrainConfig(**merged, given=config.values() if config.given is None else config.given)
    # ``resolve`` rejects options of methods that are not used, so such options of the preset are dropped.
    used = {*result.methods, *config.options, CONTRASTIVE}
    return result.copied(options={name: table for name, table in result.options.items() if name in used})


def resolve(
    config: TrainConfig, family: str, own_pooler: str | None = None, precision: str | None = None
) -> ResolvedConfig:
    """Returns the configuration with defaults for all values that were not given.

    Args:
        config: The given values; its preset is merged first.
        family: Model family, a table of ``presets/defaults.toml``.
        own_pooler: The pooling declared in the folder of a sentence-transformers model, if any.
        precision: The precision that ``auto`` was resolved to. Default: the precision in ``config``.

    Raises:
        InputError: If options were given for a method that the run does not use, or if a setting has no default.
    """
    named = set(config.options)
    config = with_loss(with_preset(config), family)
    chosen = config.values()
    declared = {"pooler": own_pooler} if own_pooler else {}
    tables = dict(families())
    if other := other_limit(chosen):
        tables[family] = {name: value for name, value in tables[family].items() if name != other}
    used = config.copied(options=merge(chosen, tables[family]).get("options", {}))
    values = merge(chosen, loss_recipe(used, family), declared, tables[family], tables["all"])
    values |= {"precision": precision} if precision else {}
    terms = (*values.get("loss_terms", ()), *values.pop("more_loss_terms", ()))
    resolved = ResolvedConfig(**values | {"loss_terms": tuple(dict.fromkeys(terms))}, given=config.given)
    if unused := sorted(named - {*resolved.methods, *({CONTRASTIVE} if resolved.loss in CONTRASTIVE_LOSSES else ())}):
        method = unused[0]
        given = ", ".join(f"{method}.{name}" for name in config.options[method]) or method
        raise InputError(
            f"{given}: without effect, since the run does not use {method}; add {_options_for(method)}, or remove this"
        )
    if problem := _without_effect(resolved):
        raise InputError(problem)
    return resolved


def _options_for(method: str) -> str:
    """Returns the options that make a run use a method."""
    if method == CONTRASTIVE:
        return f"--loss {' or '.join(CONTRASTIVE_LOSSES)}"
    for table, names in (
        (ENCODER_METHODS, ("--encoder-method",)),
        (FEATURE_AUGMENTATIONS, ("--feature-augmentation",)),
        (HOOKS, ("--anchor-hook", "--positive-hook")),
        (LOSS_TERMS, ("--loss-term",)),
    ):
        if method in table:
            return " or ".join(f"{name} {method}" for name in names)
    return f"--positive {method} or --negative {method}"


def _without_effect(config: ResolvedConfig) -> str | None:
    """Returns an error message for the first setting that the user gave and that changes nothing, else None."""
    chosen = {name: value for name, value in (config.given or {}).items() if value is not None and value is not False}
    for name, table in chosen.get("options", {}).items():
        options = config.contrastive if name == CONTRASTIVE else config.options_of(name)
        declared = {option.name: option for option in options_of(type(options))}

        def flag_of(key: str, method: str = name, known: Any = declared) -> str:
            return known[key].opt.flag or f"{method}.{key}"

        if fault := combination_fault(declared.values(), table, lambda key: getattr(options, key), flag_of):  # noqa: B023
            return fault
        unused = sorted(table.keys() & getattr(config.methods.get(name, {}).get(name), "of_negatives", ()))
        if unused and name not in config.negatives:
            return f"{name}.{unused[0]}: has an effect only with --negative {name}; add that, or leave it out"
    for name in config.encoder_methods:
        for setting, value in ENCODER_METHODS.get(name).requires(config.options_of(name)).items():
            if (actual := getattr(config, setting)) != value:
                return (
                    f"{flag(setting)} {actual}: --encoder-method {name} with these options needs {flag(setting)} "
                    f"{value}; leave {flag(setting)} out, or change the options (cse methods {name})"
                )
    features = {name: FEATURE_AUGMENTATIONS.get(name) for name in config.feature_augmentations}
    if "matryoshka" in config.loss_terms and (moved := [name for name, kind in features.items() if kind.other_space]):
        return (
            f"--dims would train the dimensions of the output of --feature-augmentation {moved[0]}, which is not "
            "saved; leave one of them out"
        )
    terms = {name: LOSS_TERMS.get(name) for name, table in config.methods.items() if table is LOSS_TERMS}
    encoding = [f"--feature-augmentation {name}" for name, kind in features.items() if kind.encodes]
    encoding += [f"--loss-term {name}" for name, term in terms.items() if term.encodes]
    mapping = [f"--feature-augmentation {name}" for name, kind in features.items() if kind.other_space]
    if pairs := [(one, other) for one in encoding for other in mapping if one != other]:
        return (
            f"{pairs[0][0]} adds embeddings of the encoder, and {pairs[0][1]} maps the others to another space; leave "
            "one of them out"
        )
    positive = AUGMENTATIONS.get(config.positive)
    is_view = issubclass(positive, Edit) and not positive.is_positive(config.options_of(config.positive))
    if is_view and not any("other" in term.reads for term in terms.values()):
        return (
            f"--positive {config.positive} with these options makes edited sentences that no loss term of the run "
            f"reads; add the loss term of its paper (cse methods {config.positive}), or choose another positive"
        )
    if config.loss in CONTRASTIVE_LOSSES:
        return None  # reads all views
    named: list[tuple[str, Collection[str]]] = [(f"--negative {name}", {"negative"}) for name in config.negatives]
    named += [(f"--feature-augmentation {name}", kind.changes) for name, kind in features.items()]
    for role in ("anchor", "positive"):
        settings = (f"{role}_hook", f"{role}_dropout", f"{role}_encoder")
        named += [(flag(name), {role}) for name in settings if name in chosen]
    if "positive" in chosen and issubclass(AUGMENTATIONS.get(config.positive), Edit):
        named.append((f"--positive {config.positive}", {"positive"}))
    read = frozenset().union(*(term.reads for term in terms.values()))
    for option, roles in named:
        if not read & set(roles):
            others = f"no {' and no '.join(f'{role}s' for role in sorted(roles))}"
            return f"--loss {config.loss} uses {others}, so {option} has no effect; leave one of them out"
    own = {option.name for option in options_of(LOSS_TERMS.options(config.loss))}
    for name, option in LOSS_SETTINGS.items():
        if name in chosen:
            remedy = f"use --set {config.loss}.{name}" if name in own else "leave one of them out"
            others = "--loss standard, focal and mixed"
            return f"--loss {config.loss} does not use {option}, which belongs to {others}; {remedy}"
    return None


def other_limit(values: Mapping[str, Any]) -> str | None:
    """Returns the limit, ``epochs`` or ``max_steps``, that must not be filled in because only the other was given.

    Returns None if both were given, or neither.
    """
    limits = [name for name in ("epochs", "max_steps") if values.get(name) is not None]
    return {"epochs": "max_steps", "max_steps": "epochs"}[limits[0]] if len(limits) == 1 else None


def loss_recipe(config: TrainConfig, family: str) -> dict[str, Any]:
    """Returns the defaults implied by the loss and by the other methods."""
    recipe: dict[str, Any] = {"mixed_negatives": config.contrastive.mixed_negatives}
    if config.pairs:
        recipe["positive"] = PAIRS_POSITIVE
        config = config.copied(positive=PAIRS_POSITIVE)
    elif config.loss in CONTRASTIVE_LOSSES and (terms := _unlabelled(config, family).get("loss_terms")):
        recipe["loss_terms"] = tuple(terms)
    return {**recipe, **conditional(family, config.loss, None), **config.implied()}


def _unlabelled(config: TrainConfig, family: str) -> dict[str, Any]:
    published = (config.given or config.values()).get("preset") not in (None, "encoder")
    return {} if config.pairs or published else conditional(family, "", False)


def with_loss(config: TrainConfig, family: str) -> TrainConfig:
    """Returns the configuration with the family's loss, unless a loss, pairs or a published preset was given."""
    loss = _unlabelled(config, family).get("loss")
    return config if loss is None or "loss" in config.values() else config.replace(loss=loss)


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


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merges mappings; each key gets its value from the first mapping in which it is present and not None.

    Options of methods are merged key by key.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in with_tables(layer).items():
            if key == "options":
                for method, table in value.items():
                    merged.setdefault("options", {})[method] = {**table, **merged.get("options", {}).get(method, {})}
            elif value is not None and merged.get(key) is None:
                merged[key] = value
    return merged

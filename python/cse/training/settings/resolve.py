"""The settings of a run: what a person gave, completed by the preset and the defaults, in groups.

In order of precedence: flags; the configuration file; the preset; what methods imply (``implies``); the defaults of
model, loss and task (``defaults``). This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from ...augment import PAIRS_POSITIVE
from ...errors import InputError
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, TEACHER
from ...losses.options import ContrastiveOptions
from ...options import options_of
from .declared import GROUPS, Data, Evaluation, Loss, Methods, Model, Optimisation, Output
from .defaults import COMMON, defaults
from .flat import merge, other_limit, tables_of, to_toml
from .given import TrainConfig
from .names import LOSS_SETTINGS, contrastive_options
from .presets import is_published, preset_values
from .refusals import without_effect

if TYPE_CHECKING:
    from ...encoder.resolve import Source

DEFAULT_MODEL = "minilm"


@dataclass(frozen=True)
class Resolved:
    """The settings of a run, in groups in which every setting has its value."""

    data: Data
    model: Model
    methods: Methods
    loss: Loss
    optimisation: Optimisation
    evaluation: Evaluation
    output: Output
    options: Mapping[str, Mapping[str, Any]]
    """Options by name of the method; those that are missing have the defaults of the method."""
    given: Mapping[str, Any]
    """The values that the user gave, by name."""

    @property
    def contrastive(self) -> ContrastiveOptions:
        """The options of the contrastive loss."""
        return contrastive_options(self.loss, self.options)

    def values(self) -> dict[str, Any]:
        """Returns all settings by name, and ``options``."""
        groups = (self.data, self.model, self.methods, self.loss, self.optimisation, self.evaluation, self.output)
        return {name: value for group in groups for name, value in vars(group).items()} | {"options": self.options}

    def changed(self, **values: Any) -> Self:
        """Returns a copy in which settings have other values, which are not checked."""
        groups: dict[str, Any] = {field: group for field, group in vars(self).items() if isinstance(group, GROUPS)}
        for field, group in groups.items():
            groups[field] = replace(group, **{name: values[name] for name in values.keys() & vars(group).keys()})
        return replace(self, **groups)

    def to_toml(self) -> str:
        """Returns the settings as TOML without None; options of methods and ``given`` are tables at the end."""
        return to_toml(self.values(), self.given)

    def with_used_options(self, methods: Mapping[str, Any]) -> Self:
        """Returns the settings with all options of the methods that are used, including defaults."""
        used = {name: asdict(method.options) for name, method in methods.items()}
        if self.loss.loss in CONTRASTIVE_LOSSES:
            used[CONTRASTIVE] = {name: value for name, value in used[CONTRASTIVE].items() if name not in LOSS_SETTINGS}
        return replace(self, options={name: table for name, table in used.items() if table})


def resolve(given: TrainConfig, find_model: Callable[[str], Source]) -> Resolved:
    """Returns the settings of a run; raises ``InputError`` for a combination that is refused.

    ``find_model`` returns the model with a name, on whose family and pooling the defaults depend.
    """
    config = with_preset(given)
    source = find_model(config.model)
    given_values = config.given or {}
    if given_values.get("preset") == "encoder" and given_values.get("pooler") is None and source.pooler:
        config = config.copied(pooler=source.pooler)
    values = merge(config.values(), _derived(config, source.family, source.pooler), COMMON)
    terms = dict.fromkeys((*values.get("loss_terms", ()), *values.pop("more_loss_terms", ())))
    terms.pop(values["loss"], None)  # TEACHER, which may be the loss
    complete = TrainConfig(**values | {"loss_terms": tuple(terms)}, given=config.given)
    for problem in filter(None, without_effect(complete, {**config.options, **given_values.get("options", {})})):
        raise InputError(problem)
    groups: dict[str, Any] = {
        group.__name__.lower(): group(**{option.name: getattr(complete, option.name) for option in options_of(group)})
        for group in GROUPS
    }
    return Resolved(**groups, options=complete.options, given=given_values)


def with_preset(config: TrainConfig) -> TrainConfig:
    """Returns what was given, completed by the values of the preset and the default model."""
    given = config.values()
    preset = merge(preset_values(config.preset)) if config.preset else {}
    if config.preset == "encoder":  # the family's defaults, of which the loss's take precedence
        preset = _derived(config, "encoder")
    # Values of the preset that do not apply: patience needs --dev, and eval_pooler belongs to the preset's pooler.
    conditions = {"positive": config.pairs, "patience": not config.dev, "eval_pooler": config.pooler}
    dropped = {other_limit(given), *(name for name, drop in conditions.items() if drop)}
    kept = {name: value for name, value in preset.items() if name not in dropped}
    values = merge(given, kept, {"model": DEFAULT_MODEL})
    if given.get("encoder_methods"):  # such as an adapter, beside the prompt, without which the preset has no meaning
        methods = (*kept.get("encoder_methods", ()), *given["encoder_methods"])
        values["encoder_methods"] = tuple(dict.fromkeys(methods))
    values.pop("preset", None)
    result = TrainConfig(**values, given=given if config.given is None else config.given)
    # ``resolve`` rejects options of methods that are not used, so such options of the preset are dropped.
    used = {*result.methods, *config.options, CONTRASTIVE}
    return result.copied(options={name: table for name, table in result.options.items() if name in used})


def _derived(config: TrainConfig, family: str, own_pooler: str | None = None) -> dict[str, Any]:
    """Returns the defaults of a run, by flat name: what its methods imply, and ``defaults``."""
    chosen, published = config.values(), is_published((config.given or config.values()).get("preset"))
    usual = defaults(
        family,
        chosen.get("loss"),
        pairs=bool(config.pairs),
        learn=config.learn,
        teacher=TEACHER in config.all_terms,
        published=published,
        pooler=own_pooler,
    )
    usual.pop(other_limit(chosen) or "", None)
    used = config.copied(loss=usual["loss"], options=tables_of(merge(chosen, usual)))
    if config.pairs:
        used = used.copied(positive=PAIRS_POSITIVE)
    implied: dict[str, Any] = {}
    for name, table in used.methods.items():
        implied |= table.get(name).implies(used.options_of(name))
    implied.pop(other_limit(chosen) or "", None)
    return merge(implied, usual, {"mixed_negatives": used.contrastive.mixed_negatives})

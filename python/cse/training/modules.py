"""The modules of a run: encoders, loss terms, feature methods, hooks and encoder methods."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..augment.base import View
from ..context import Context
from ..errors import InputError
from ..features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..features.base import EncoderMethod, FeatureMethod, Hook
from ..losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ..losses.base import BatchTerm, LossTerm
from ..models.attention import mask_always
from ..models.device import compile_backbone
from ..models.dropout import use_fast_dropout
from ..models.encoder import SentenceEncoder, check_mask, load_encoder
from ..models.resolve import Source, find_model
from ..registry import Registry, parse_options
from .batches import Batches
from .passes import rates_of
from .train_config import ResolvedConfig

__all__ = ["Modules", "build_modules", "connect", "create", "views_of"]


@dataclass
class Modules:
    """The modules of a run: its encoders, and by name its loss terms, feature methods, hooks and encoder methods."""

    encoder: SentenceEncoder
    second: SentenceEncoder | None
    terms: dict[str, LossTerm]
    features: dict[str, FeatureMethod]
    hooks: dict[str, Hook]
    methods: dict[str, EncoderMethod]

    @property
    def by_name(self) -> dict[str, Any]:
        """All methods by name."""
        return {**self.terms, **self.features, **self.hooks, **self.methods}

    @property
    def all(self) -> list[nn.Module]:
        """All modules, the encoder first."""
        second = [] if self.second is None else [self.second]
        more = (self.terms, self.features, self.hooks, self.methods)
        return [self.encoder, *second, *(module for table in more for module in table.values())]


def create(table: Registry[Any], name: str, options: Mapping[str, Mapping[str, Any]], context: Context) -> Any:
    """Constructs a method; ``options`` holds the options of all methods by name."""
    method = table.get(name)
    return method(parse_options(name, method.Options, options.get(name, {})), context)


def build_modules(config: ResolvedConfig, source: Source, context: Context, rank: int) -> Modules:
    """Loads the encoder and creates the other modules of a run, on the device of the run.

    Seeds PyTorch's generator, which is used only for the initial weights of new modules and, in training, for dropout.

    Args:
        config: The resolved configuration.
        source: The model.
        context: The resources of the run; this function sets ``context.encoder``.
        rank: Rank of this process; dropout masks differ between ranks.
    """
    torch.manual_seed(config.seed)
    device = context.device
    encoder = context.encoder = load_encoder(source, config.pooler, keep_head=config.keep_head).to(device)
    methods = {name: create(ENCODER_METHODS, name, config.options, context) for name in config.encoder_methods}
    check_mask(encoder.to(device))
    if (config.given or {}).get("keep_head") and encoder.head is None:
        raise InputError(f"--keep-head: --pooler {config.pooler} has no MLP head to keep; use --pooler cls")
    modules = Modules(
        encoder,
        _second_encoder(config.positive_encoder, config.pooler, config.keep_head, context),
        _loss_terms(config, context),
        {name: create(FEATURE_AUGMENTATIONS, name, config.options, context) for name in config.feature_augmentations},
        {
            name: create(HOOKS, name, config.options, context)
            for name in (config.anchor_hook, config.positive_hook)
            if name
        },
        methods,
    )
    for role, rate, each in (
        ("anchor", config.anchor_dropout, encoder),
        ("positive", config.positive_dropout, modules.second or encoder),
    ):
        if rate is not None and not rates_of(each.backbone):
            raise InputError(f"--{role}-dropout: {each.source.name} has no dropout that can be set; leave it out")
    for module in modules.all:
        module.to(device)
    one_pass = config.accumulate == 1 and config.chunk_size is None
    _accelerate(modules, device, config.compile, one_pass)
    if rank:
        torch.manual_seed(config.seed + 2**32 * rank)
    return modules


def connect(batches: Batches, views: tuple[View, View], modules: Modules) -> None:
    """Sets the attributes ``views``, ``partner_views`` and ``without_dropout`` of the batches."""
    terms = [term for term in modules.terms.values() if isinstance(term, BatchTerm)]
    batches.partner_views = lambda roles: next((found for term in terms if (found := term.partner_views(roles))), None)
    batches.views = views
    alike = modules.second is None
    batches.without_dropout = alike and all(_has_no_dropout(view, modules.encoder) for view in views)


def _accelerate(modules: Modules, device: str, compiled: bool, one_pass: bool) -> None:
    """Replaces slow parts of the backbones, and compiles the backbone of the first encoder if ``compiled``.

    On a GPU, attention always uses the mask (``mask_always``). On the CPU, dropout is replaced (``use_fast_dropout``),
    unless ``compiled``.

    Args:
        modules: The modules of the run.
        device: Device of the encoders.
        compiled: Value of ``--compile``.
        one_pass: Whether a step encodes one batch as a whole, without accumulation and chunks, as CUDA graphs require.
    """
    for each in (modules.encoder, modules.second):
        if each is None:
            continue
        if device != "cpu":
            mask_always(each.backbone)
        elif not compiled:
            use_fast_dropout(each.backbone)
    if compiled:
        one_pass = one_pass and modules.second is None and not modules.hooks
        compile_backbone(modules.encoder.backbone, device, graphs=one_pass)


def _second_encoder(name: str | None, pooler: str, keep_head: bool, context: Context) -> SentenceEncoder | None:
    """Returns the separate encoder of the positives (a copy of the first encoder, or another model), or None."""
    first = context.trained
    if name is None:
        return None
    if name == "copy":
        return copy.deepcopy(first)
    source = find_model(name)
    second = load_encoder(source, source.pooler or pooler, keep_head=keep_head)
    context.check_tokens(second.tokenizer, name, "--positive-encoder")
    if second.embedding_dim != first.embedding_dim:
        raise InputError(
            f"--positive-encoder {name}: its embeddings have {second.embedding_dim} dimensions, and those of "
            f"{first.source.name} have {first.embedding_dim}; name a model with embeddings of the same size"
        )
    return second.to(context.device)


def views_of(config: ResolvedConfig) -> tuple[View, View]:
    """Returns the views of anchors and positives, with the encoder, dropout probability and hook of each.

    If both views have the same hook, the purposes of the positives' random numbers get a prefix, so that the two views
    are changed differently. The random numbers of a hook that only one view has do not depend on the view.
    """
    second = "first" if config.positive_encoder is None else "second"
    draws = "positive " if config.positive_hook == config.anchor_hook is not None else ""
    return (
        View("anchor", "anchor", dropout=config.anchor_dropout, hook=config.anchor_hook),
        View("positive", "positive", second, config.positive_dropout, config.positive_hook, draws),
    )


def _has_no_dropout(view: View, encoder: SentenceEncoder) -> bool:
    if view.hook is not None or view.dropout is not None:
        return view.hook is None and view.dropout == 0
    return not any(getattr(module, "p", 0) for module in encoder.backbone.modules())


def _loss_terms(config: ResolvedConfig, context: Context) -> dict[str, LossTerm]:
    """Creates the loss terms: the run's loss first, then the additional terms, by name."""
    terms: dict[str, LossTerm] = {}
    if config.loss in CONTRASTIVE_LOSSES:
        terms[CONTRASTIVE] = LOSS_TERMS.get(CONTRASTIVE)(config.contrastive, context)
    names = config.loss_terms if terms else (config.loss, *config.loss_terms)
    return terms | {name: create(LOSS_TERMS, name, config.options, context) for name in names}

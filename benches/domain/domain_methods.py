"""Losses and other methods for training on in-domain documents; ``TrainConfig.imports`` loads them from this file.

=============  ====================================================================  ==============
name           effect                                                                registered as
=============  ====================================================================  ==============
keep           preserves the base model's similarities within the batch              loss term
near-base      penalises the squared L2 distance to the base weights                 loss term
freeze         freezes the embeddings and the lower layers                           encoder method
guided         masks false negatives, found with the base model (GISTEmbed)          feature method
=============  ====================================================================  ==============
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from cse.features import ENCODER_METHODS, FEATURE_AUGMENTATIONS
from cse.features.base import EncoderMethod, FeatureMethod
from cse.losses import LOSS_TERMS
from cse.losses.base import BatchTerm
from cse.views import BatchStep, Frozen, Views, parts_of


class Base:
    """A frozen copy of the encoder, made before training.

    In each step, it encodes each block of texts (``anchor``, ``positive`` and so on) at most once.
    """

    def __init__(self, context: Any) -> None:
        self.model = Frozen(copy.deepcopy(context.trained))
        self._step: BatchStep | None = None
        self._found: dict[str, Tensor] = {}

    @classmethod
    def of(cls, context: Any) -> Base:
        """Returns the copy that all methods of a run share; it is made in the first call."""
        if not hasattr(context, "base_of_domain_methods"):
            context.base_of_domain_methods = cls(context)
        base: Base = context.base_of_domain_methods
        return base

    def encode(self, block: str, step: BatchStep) -> Tensor:
        """Returns the unit-length embeddings ``(B, D)`` of a block of the batch."""
        if step.rows is not getattr(self._step, "rows", None):
            self._step, self._found = step, {}
        if block not in self._found:
            assert step.encode is not None
            with torch.no_grad():
                self._found[block] = normalize(step.encode(block, self.model), dim=-1)
        return self._found[block]


@dataclass(frozen=True)
class KeepOptions:
    """Options of ``keep``."""

    weight: float = 1.0
    temperature: float = 0.05
    views: Literal["anchor", "positive", "both", "cross"] = "both"
    lexical: float = 0.0
    """Weight (0 to 1) in the target of the TF-IDF cosines of rows; 0: the target has only the base model's cosines."""


class Keep(BatchTerm):
    """KL divergence of the encoder's in-batch similarities from the base model's.

    For each row, the softmax of its similarities to the other rows is computed at a temperature, once with the base
    model without dropout (the target) and once with the encoder. With ``views="cross"``, the similarities are those of
    anchors to the positives of other rows.
    """

    Options = KeepOptions

    def __init__(self, options: KeepOptions, context: Any) -> None:
        super().__init__(options, context)
        self.base = Base.of(context)
        self.matrix: Any = None
        if options.lexical:
            from sklearn.preprocessing import normalize as unit_rows

            self.matrix = unit_rows(context.index.transform(context.corpus.take(np.arange(len(context.corpus)))))

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the mean divergence, multiplied by the weight."""
        options = self.options
        sides = {
            "anchor": [("anchor", "anchor")],
            "positive": [("positive", "positive")],
            "both": [("anchor", "anchor"), ("positive", "positive")],
            "cross": [("anchor", "positive")],
        }[options.views]
        total = views["anchor"].new_zeros(())
        for first, second in sides:
            old = self.base.encode(first, step) @ self.base.encode(second, step).T
            new = normalize(views[first], dim=-1) @ normalize(views[second], dim=-1).T
            if self.matrix is not None:
                part = self.matrix[step.rows.numpy()]
                lexical = torch.from_numpy((part @ part.T).toarray()).to(old)
                old = (1 - options.lexical) * old + options.lexical * lexical
            own = torch.eye(len(old), dtype=torch.bool, device=old.device)
            target, found = (log_softmax((s / options.temperature).masked_fill(own, -1e4), dim=-1) for s in (old, new))
            total = total + (target.exp() * (target - found)).sum(-1).mean() / len(sides)
        self.metrics = {"kept": total.detach()}
        weighted: Tensor = options.weight * total
        return weighted


@dataclass(frozen=True)
class NearBaseOptions:
    """Options of ``near-base``."""

    weight: float = 1.0


class NearBase(BatchTerm):
    """Squared L2 distance of the transformer's weights from their initial values, multiplied by a weight."""

    Options = NearBaseOptions

    def __init__(self, options: NearBaseOptions, context: Any) -> None:
        super().__init__(options, context)
        parameters = [each for each in context.trained.backbone.parameters() if each.requires_grad]
        self.pairs = [(each, each.detach().clone()) for each in parameters]

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the squared distance, multiplied by the weight."""
        total = views["anchor"].new_zeros(())
        for now, base in self.pairs:
            total = total + (now - base).square().sum()
        weight: float = self.options.weight
        return weight * total


@dataclass(frozen=True)
class FreezeOptions:
    """Options of ``freeze``."""

    layers: int = 0
    """Number of lower layers that are not trained, in addition to the embedding layer."""


class Freeze(EncoderMethod):
    """Leaves the weights of the embeddings and of the lower layers unchanged."""

    Options = FreezeOptions

    def __init__(self, options: FreezeOptions, context: Any) -> None:
        super().__init__(options, context)
        embeddings, blocks = parts_of(context.trained.backbone)
        for part in (embeddings, *blocks[: options.layers]):
            part.requires_grad_(False)


@dataclass(frozen=True)
class GuidedOptions:
    """Options of ``guided``."""

    margin: float = 0.0
    """A negative is masked if its cosine with the anchor exceeds the cosine of the positive minus this margin, both
    computed with the base model."""


class Guided(FeatureMethod):
    """Masks negatives that the base model finds closer to the anchor than its positive (Solatorio 2024, GISTEmbed)."""

    Options = GuidedOptions

    def __init__(self, options: GuidedOptions, context: Any) -> None:
        super().__init__(options, context)
        self.base = Base.of(context)

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with log weights of (anchor, candidate) pairs: -inf for masked negatives, otherwise 0."""
        anchors = self.base.encode("anchor", step)
        positives = self.base.encode("positive", step)
        threshold = (anchors * positives).sum(-1, keepdim=True) - self.options.margin
        weights = dict(views.log_weights)
        for name in views.embeddings:
            if views.roles[name] == "anchor":
                continue
            close = anchors @ self.base.encode(name, step).T > threshold
            if views.roles[name] == "positive":
                close.fill_diagonal_(False)
            weights["anchor", name] = torch.zeros_like(anchors @ anchors.T).masked_fill_(close, -torch.inf)
        return views.replace(log_weights=weights)


LOSS_TERMS.register("keep", Keep)
LOSS_TERMS.register("near-base", NearBase)
ENCODER_METHODS.register("freeze", Freeze)
FEATURE_AUGMENTATIONS.register("guided", Guided)

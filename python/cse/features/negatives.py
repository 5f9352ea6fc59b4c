"""Methods that make embeddings without texts: noise, a queue of earlier embeddings, and changed positives.

- Gaussian noise (GS-InfoNCE; Wu et al. 2022, arXiv:2109.04321).
- DCLR: noise negatives, and in-batch negatives weighted by a second encoder (Zhou et al. 2022, arXiv:2205.00656).
- A momentum encoder with a queue of negatives (ESimCSE; Wu et al. 2022, arXiv:2109.04380, section 3.2).
- MODALS: positives changed in embedding space (Cheung and Yeung 2021), a baseline in UNA's appendix C.2. UNA's paper
  names the four operations but specifies neither their strength nor which other embeddings they use, and its released
  code does not contain them. Here, the other embeddings are those of the same view in the batch, and the strength is an
  option.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ..errors import InputError
from ..options import Opt
from .base import BatchStep, FeatureMethod, Views

if TYPE_CHECKING:
    from ..context import Context


@dataclass(frozen=True)
class GaussianOptions:
    """Options of the noise; the default is the published ratio, 192 noise vectors for a batch of 64.

    There is no option for the published standard deviations, because the length of a vector has no effect on a cosine.
    """

    negatives: Annotated[float, Gt(0), Opt("noise negatives per sentence of the batch")] = 3.0


class Gaussian(FeatureMethod):
    """Adds standard normal vectors, drawn anew for each batch, as negatives of every anchor."""

    Options = GaussianOptions
    summary = "Gaussian noise as negatives (GS-InfoNCE)"
    changes = frozenset({"negative"})

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``noise``."""
        anchor = views["anchor"]
        per_row = -(-self.options.negatives // 1)  # rounded up, because each row draws the same number of vectors
        drawn = step.normal("gaussian", int(per_row) * anchor.shape[1]).reshape(-1, anchor.shape[1])
        count = round(self.options.negatives * len(anchor))
        return views.with_negatives("noise", drawn[torch.arange(count, device=drawn.device)].to(anchor))


@dataclass(frozen=True)
class DCLROptions:
    """Options of DCLR; the defaults are the published settings for BERT-base, except for ``model``."""

    noise: Annotated[float, Ge(0), Opt("noise negatives per sentence of the batch")] = 1.0
    ascent_steps: Annotated[int, Ge(0), Opt("steps of gradient ascent for each noise negative", needs="noise")] = 4
    ascent_rate: Annotated[float, Ge(0), Opt("step length of the gradient ascent", needs=("noise", "ascent_steps"))] = (
        1e-3
    )
    temperature: Annotated[
        float, Gt(0), Opt("temperature of the loss in the gradient ascent", needs=("noise", "ascent_steps"))
    ] = 0.05
    model: Annotated[
        str, Opt("second encoder, with the same tokenizer, that weights the negatives; empty: not used")
    ] = ""
    threshold: Annotated[
        float,
        Ge(-1),
        Le(1),
        Opt("phi: sentences whose cosine is at least this value are not negatives of each other", needs="model"),
    ] = 0.9
    variant: Annotated[
        Literal["paper", "release"],
        Opt("release: in-batch negatives in the gradient ascent's loss, and dropout in the second encoder"),
    ] = "paper"


def ascend(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    steps: int,
    rate: float,
    temperature: float,
    in_batch: bool = False,
) -> Tensor:
    """Moves noise vectors by normalised gradient ascent on the anchors' contrastive loss, with the noise as negatives.

    Args:
        noise: ``(R, D)``.
        anchors: ``(B, D)``.
        positives: ``(B, D)``.
        steps: Number of steps.
        rate: Step length, the same for each row. Four steps of length 1e-3, the value in the released code, rotate a
            standard normal vector by about 1e-4 radians at D = 768.
        temperature: Temperature of the loss.
        in_batch: Whether the positives of the other anchors are also negatives in this loss.

    Returns:
        ``(R, D)``, detached.
    """
    a, p = (normalize(z.detach(), dim=-1) for z in (anchors, positives))
    fixed = a @ p.T if in_batch else (a * p).sum(-1, keepdim=True)
    target = torch.arange(len(a), device=a.device) * in_batch
    noise = noise.detach()
    for _ in range(steps):
        noise = noise.requires_grad_()
        with torch.enable_grad():
            logits = torch.cat([fixed, a @ normalize(noise, dim=-1).T], dim=1) / temperature
            (gradient,) = torch.autograd.grad(cross_entropy(logits, target), noise)
        noise = (noise + rate * normalize(gradient, dim=-1)).detach()
    return noise


class _WithDropout:
    """A frozen sentence encoder whose transformer applies dropout; its head stays in evaluation mode."""

    def __init__(self, frozen: Any) -> None:
        self.model = frozen.model

    def __call__(self, tokens: dict[str, Tensor]) -> Tensor:
        self.model.backbone.train()
        try:
            z: Tensor = self.model(tokens)
        finally:
            self.model.backbone.eval()
        return z


class DCLR(FeatureMethod):
    """Adds noise negatives, and removes in-batch negatives that are too similar to the anchor.

    The weight of an in-batch negative is 0 if the cosine of the two sentences under a second, frozen encoder is at
    least ``threshold``, else 1. Noise, synthetic and labelled negatives have weight 1. As in the paper, the weight
    multiplies the exponential in the denominator.

    In the gradient ascent, the only negatives are the noise vectors, and the second encoder runs without dropout. With
    ``variant="release"``, as in the released code, in-batch negatives are also part of the loss of the ascent. The
    second encoder then applies dropout in training and encodes anchors and positives separately, so that the weights
    are not symmetric, and a weight is 0 only if the cosine is above ``threshold``.

    There are further differences from the released code, which both variants have: the released code multiplies the
    logit by the weight, so that it becomes 0 for weight 0, and sums binary cross-entropies; here, the trained encoder
    has the head that the run's pooler implies, and padding is masked in the attention.

    Raises ``InputError`` for a second encoder with a different tokenizer, or if there is neither a second encoder nor
    noise.
    """

    Options = DCLROptions
    summary = "noise negatives, and in-batch negatives weighted by a second encoder (DCLR)"
    changes = frozenset({"negative"})

    def __init__(self, options: DCLROptions, context: Context) -> None:
        super().__init__(options, context)
        self.model: Any = None
        if not options.noise and not options.model:
            raise InputError("dclr.noise: is 0, and without dclr.model nothing else changes; set one of them")
        if options.model:
            self.model = context.load_model(options.model, "dclr.model", same_tokens=True)

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``noise``, and with the logarithms of the weights."""
        anchors, positives = views["anchor"], views["positive"]
        count = int(self.options.noise * len(anchors))
        if count:
            parts = [
                step.normal(f"dclr noise {number}", anchors.shape[1]) for number in range(-(-count // len(anchors)))
            ]
            noise = torch.cat(parts)[:count].to(anchors)
            options = self.options
            noise = ascend(
                noise,
                anchors,
                positives,
                options.ascent_steps,
                options.ascent_rate,
                options.temperature,
                in_batch=self.options.variant == "release",
            )
            views = views.with_negatives("noise", noise)
        if self.model is None or step.encode is None:
            return views
        names = ("anchor", "positive")
        h = self.known(step, names)
        pairs = {}
        for first in names:
            for second in names:
                s = h[first] @ h[second].T
                close = s > self.options.threshold if self.options.variant == "release" else s >= self.options.threshold
                close = close.fill_diagonal_(False)
                pairs[first, second] = torch.zeros_like(s).masked_fill_(close, -torch.inf).to(anchors)
        return views.replace(log_weights={**views.log_weights, **pairs})

    @torch.no_grad()
    def known(self, step: BatchStep, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns the second encoder's unit vectors ``(B, D)`` by view; for ``paper``, those of the anchors."""
        assert step.encode is not None
        if self.options.variant == "paper":
            h = normalize(step.encode("anchor", self.model), dim=-1)
            return dict.fromkeys(names, h)
        encoder = _WithDropout(self.model) if self.training else self.model
        return {name: normalize(step.encode(name, encoder), dim=-1) for name in names}


@dataclass(frozen=True)
class MomentumOptions:
    """Options of the queue; the defaults are the published settings for BERT-base with batches of 64."""

    size: Annotated[int, Ge(1), Opt("length of the queue of embeddings from earlier batches")] = 160
    decay: Annotated[float, Ge(0), Lt(1), Opt("decay of the moving average of the weights")] = 0.995
    variant: Annotated[
        Literal["paper", "release"],
        Opt("head of the momentum encoder; paper: a moving average; release: that of the encoder"),
    ] = "paper"


class Momentum(FeatureMethod):
    """Adds the sentences of earlier batches, encoded by a moving average of the encoder, as further negatives.

    The momentum encoder starts as a copy of the encoder, and runs without dropout. If the encoder has a head, the
    embeddings in the queue have passed through the momentum encoder's head: a moving average of the encoder's head, as
    in the paper, or with ``variant="release"`` the encoder's head itself, with its weights at the step at which the
    embeddings are computed, as in the released code. Checkpoints contain the momentum encoder and the queue; neither is
    saved with the encoder.
    """

    Options = MomentumOptions
    queue: Tensor
    filled: Tensor
    summary = "a queue of negatives from a momentum encoder (ESimCSE)"
    changes = frozenset({"negative"})

    def __init__(self, options: MomentumOptions, context: Context) -> None:
        super().__init__(options, context)
        self.source = (context.trained,)  # not a submodule
        self.encoder = copy.deepcopy(context.trained).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(options.size, context.trained.embedding_dim))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def train(self, mode: bool = True) -> Momentum:
        """Sets the mode; in training, the momentum encoder applies its head, but no dropout."""
        super().train(mode)
        self.encoder.eval()
        self.encoder.training = mode  # forward then applies the head; the submodules stay in evaluation mode
        return self

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the momentum encoder towards the encoder."""
        ours, theirs = self.encoder.parameters(), self.source[0].parameters()
        for average, parameter in zip(ours, theirs, strict=True):
            average.lerp_(parameter, 1 - self.options.decay)
        head = self.source[0].head if self.options.variant == "release" else None
        if head is not None and self.encoder.head is not None:
            self.encoder.head.load_state_dict(head.state_dict())

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``queue``, then adds this batch's anchors to the queue."""
        assert step.encode is not None
        valid = torch.arange(len(self.queue), device=self.queue.device) < self.filled
        views = views.with_negatives("queue", self.queue.clone().to(views["anchor"]), valid)
        with torch.no_grad():
            keys = step.encode("anchor", self.encoder).to(self.queue)
            self.queue = torch.cat([keys, self.queue])[: len(self.queue)]
            self.filled = self.filled + len(keys)
        return views


@dataclass(frozen=True)
class ModalsOptions:
    """Options of MODALS."""

    kind: Annotated[
        Literal["interpolation", "extrapolation", "linear", "noise"],
        Opt(
            "interpolation: towards the closest other row; extrapolation: away from the mean; "
            "linear: by the difference of two other rows; noise: by random noise"
        ),
    ] = "interpolation"
    magnitude: Annotated[float, Ge(0), Opt("m, the strength of the change (not published)")] = 0.2
    view: Annotated[Literal["anchor", "positive"], Opt("the view that is changed")] = "positive"
    detach: Annotated[bool, Opt("compute no gradient through the other rows, the mean and the standard deviation")] = (
        True
    )


class Modals(FeatureMethod):
    """Changes the embeddings x of a view by one of four operations, with m the magnitude.

    - ``interpolation``: x + m (y - x), with y the other row closest to x by cosine. (This follows the paper;
      the released code takes the farthest row of a random sample.)
    - ``extrapolation``: x + m (x - mean).
    - ``linear``: x + m (y1 - y2), with y1 and y2 two different other rows, drawn at random.
    - ``noise``: x + m sd e, with sd the standard deviation of each dimension and e standard normal.
    """

    Options = ModalsOptions
    summary = "changes the positives' embeddings with other rows or noise (MODALS)"

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with one of them changed; ``linear`` does not change a batch of fewer than three rows."""
        name = self.options.view
        return views.replace(embeddings={**views.embeddings, name: self.changed(views[name], step)})

    def changed(self, x: Tensor, step: BatchStep) -> Tensor:
        """Returns the embeddings ``(B, D)`` after the operation."""
        pool = x.detach() if self.options.detach else x
        m, batch = float(self.options.magnitude), len(x)
        if self.options.kind == "interpolation":
            h = normalize(x.detach(), dim=-1)
            closest = (h @ h.T).fill_diagonal_(-torch.inf).argmax(1)
            return x + m * (pool[closest] - x)
        if self.options.kind == "extrapolation":
            return x + m * (x - pool.mean(0))
        if self.options.kind == "noise":
            deviation = pool.std(0, correction=0)
            return x + m * step.normal("modals noise", x.shape[1]).to(x) * deviation
        if batch < 3:
            return x
        u = step.uniform("modals rows", 2).to(x)
        # Two different other rows, drawn as offsets from the next row; the second offset skips the first.
        first = (u[:, 0] * (batch - 1)).long()
        second = (u[:, 1] * (batch - 2)).long()
        second = second + (second >= first)
        own = torch.arange(batch, device=x.device)
        first, second = ((own + 1 + place) % batch for place in (first, second))
        return x + m * (pool[first] - pool[second])

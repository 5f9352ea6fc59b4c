"""A training step: encoding of the views of a batch, loss, and update of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..losses.base import LossTerm, Step, Views
from ..losses.contrastive import similarity_summary
from ..models.device import autocast
from ..models.encoder import SentenceEncoder
from .batches import Batch
from .config import ResolvedConfig

if TYPE_CHECKING:
    from .state import TrainState

__all__ = ["build_optimizer", "encode_views", "learning_rate", "training_step"]


def learning_rate(config: ResolvedConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step, counted from 0: linear decay to 0 over ``steps``, or constant."""
    return config.lr * (1 - step / steps) if config.lr_scheduler == "linear" else config.lr


def build_optimizer(modules: Sequence[torch.nn.Module], config: ResolvedConfig) -> torch.optim.Optimizer:
    """Returns AdamW with the defaults of the Hugging Face ``Trainer``: betas (0.9, 0.999), eps 1e-8.

    Weight decay is not applied to parameters of fewer than two dimensions (biases and normalisation weights).
    """
    parameters = unique_parameters(modules)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)


def unique_parameters(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
    """All parameters, each once: a loss term may hold the encoder as a submodule."""
    return list({id(each): each for module in modules for each in module.parameters()}.values())


def training_step(state: TrainState, batch: Batch, config: ResolvedConfig, rate: float, device: str) -> dict[str, Any]:
    """Performs one training step.

    The step does not synchronise with the device; the metrics are tensors on it. If the loss or a gradient is not
    finite, the weights and the moments of the optimizer are not changed, and ``finite`` is False.

    Args:
        state: The state of the run; its encoder, loss terms and optimizer are updated.
        batch: The batch, with tokens.
        config: The configuration.
        rate: Learning rate.
        device: Device of the encoder.

    Returns:
        ``loss``, ``loss/NAME`` for each term if there are several, the mean cosines (see
        ``cse.losses.contrastive.similarity_summary``), and ``finite``, as scalar tensors.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    tokens = {
        name: {key: value.to(device, non_blocking=True) for key, value in block.items()}
        for name, block in batch.tokens.items()
    }
    views = encode_views(state.encoder, batch, tokens, device)
    uniform = keyed_uniform(config.seed, batch, device)
    for feature in state.features:
        views.embeddings = feature(views.embeddings, uniform)
    partners = None if batch.partners is None else torch.from_numpy(batch.partners).to(device)
    step = Step(
        number=batch.step,
        epoch=batch.epoch,
        seed=config.seed,
        rows=torch.from_numpy(batch.rows).to(device),
        tokens=tokens,
        encoder=state.encoder,
        partners=partners,
        uniform=uniform,
    )
    loss, parts = sum_of_terms(state.terms, views, step)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = unique_parameters([state.encoder, *state.terms.values()])
    # Without clipping, the norm is computed as well, to detect gradients that are not finite.
    norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm or math.inf)
    finite = torch.isfinite(loss.detach()) & torch.isfinite(norm)
    # The fused optimizer skips the update if this flag is 1, as with a GradScaler, without a copy to the host.
    state.optimizer.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return {"loss": loss.detach(), **parts, **similarity_summary(views.embeddings, views.masks), "finite": finite}


def sum_of_terms(terms: Mapping[str, LossTerm], views: Views, step: Step) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of all terms; each by ``loss/NAME`` if there are several, and the metrics of the terms."""
    values = {name: term(views, step) for name, term in terms.items()}
    first, *others = values.values()
    total = first
    for value in others:
        total = total + value
    parts = {f"loss/{name}": value.detach() for name, value in values.items()} if others else {}
    for term in terms.values():
        parts.update(term.metrics)
    return total, parts


def encode_views(
    encoder: SentenceEncoder, batch: Batch, tokens: Mapping[str, Mapping[str, Tensor]], device: str
) -> Views:
    """Returns the embeddings of all views, each ``(B, D)`` float32, and their masks.

    A block is encoded in one forward pass in which it is repeated for each of its views, under different dropout masks.
    Blocks are padded separately, so that long synthetic negatives do not increase the padding of the sentences.
    """
    embeddings: dict[str, Tensor] = {}
    for name, block in batch.blocks.items():
        times = len(block.views)
        inputs = {key: value.repeat(times, 1) for key, value in tokens[name].items()}
        with autocast(device):
            z = encoder(inputs)
        embeddings.update(zip(block.views, z.float().view(times, len(batch.rows), -1), strict=True))
    masks = {view: torch.from_numpy(mask).to(device) for view, mask in batch.masks.items()}
    return Views(embeddings, masks)


def keyed_uniform(seed: int, batch: Batch, device: str) -> Callable[[str, int], Tensor]:
    """Returns a function ``uniform(purpose, n)``.

    Its result, ``(B, n)`` float32 in [0, 1), is a pure function of (seed, epoch, row, purpose).
    """

    def uniform(purpose: str, count: int) -> Tensor:
        stream = rng.PURPOSES + (crc32(purpose.encode()) << 16)
        columns = [rng.uniform(seed, batch.epoch, batch.rows, stream + i) for i in range(count)]
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32)).to(device)

    return uniform

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
from ..losses.chunks import in_chunks
from ..losses.contrastive import similarity_summary
from ..models.device import autocast, begin_step, on_device
from ..models.encoder import SentenceEncoder
from .batches import Batch
from .config import ResolvedConfig
from .distributed import World

if TYPE_CHECKING:
    from .state import TrainState

__all__ = [
    "build_optimizer",
    "by_length",
    "encode_views",
    "learning_rate",
    "propagate",
    "training_step",
    "unique_parameters",
]

SINGLE = World()
# Rows of a group of similar length on the CPU, where fewer rows are computed as efficiently; a GPU needs whole batches.
GROUP = 32


def learning_rate(config: ResolvedConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step, counted from 0.

    It rises linearly over the first ``warmup`` share of the steps, then decreases to 0 (``linear``, ``cosine``) or
    stays.
    """
    warm = round(config.warmup * steps)
    if step < warm:
        return config.lr * (step + 1) / (warm + 1)
    done = (step - warm) / max(steps - warm, 1)
    if config.lr_scheduler == "linear":
        return config.lr * (1 - done)
    if config.lr_scheduler == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    return config.lr


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


def training_step(
    state: TrainState,
    batches: Sequence[Batch],
    config: ResolvedConfig,
    rate: float,
    device: str,
    world: World = SINGLE,
) -> dict[str, Any]:
    """Performs one training step.

    The step does not synchronise with the device; the metrics are tensors on it. If the loss or a gradient is not
    finite, the weights and the moments of the optimizer are not changed, and ``finite`` is False.

    Args:
        state: The state of the run; its encoder, loss terms and optimizer are updated.
        batches: The batches, with tokens, whose gradients are averaged.
        config: The configuration.
        rate: Learning rate.
        device: Device of the encoder.
        world: The ranks of the run.

    Returns:
        ``loss``, ``loss/NAME`` for each term if there are several, the mean cosines (see
        ``cse.losses.contrastive.similarity_summary``), and ``finite``, as scalar tensors; means over the batches.
    """
    begin_step(device, config.compile)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    found = [propagate(state, batch, config, device, world, 1 / len(batches)) for batch in batches]
    metrics = found[0]
    if len(found) > 1:
        names = dict.fromkeys(name for each in found for name in each)
        metrics = {name: torch.stack([each[name] for each in found if name in each]).mean() for name in names}
    parameters = [p for p in unique_parameters([state.encoder, *state.terms.values()]) if p.requires_grad]
    world.sum_gradients(parameters, tuple((tuple(batch.views), len(batch.rows)) for batch in batches))
    # Without clipping, the norm is computed as well, to detect gradients that are not finite.
    norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm or math.inf)
    finite = torch.isfinite(metrics["loss"]) & torch.isfinite(norm)
    # The fused optimizer skips the update if this flag is 1, as with a GradScaler, without a copy to the host.
    state.optimizer.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return {**metrics, "finite": finite}


def propagate(
    state: TrainState, batch: Batch, config: ResolvedConfig, device: str, world: World, share: float
) -> dict[str, Tensor]:
    """Adds ``share`` times the gradients of a batch to those of the parameters, and returns its metrics."""
    tokens = {
        name: {key: value.to(device, non_blocking=True) for key, value in block.items()}
        for name, block in batch.tokens.items()
    }
    views = encode_views(state.encoder, batch, tokens, config, device, world)
    uniform = keyed_uniform(config.seed, batch, device)
    for feature in state.features:
        views.embeddings = feature(views.embeddings, uniform)
    step = Step(
        number=batch.step,
        epoch=batch.epoch,
        seed=config.seed,
        rows=on_device(batch.rows, device),
        tokens=tokens,
        encoder=state.encoder,
        partners=None if batch.partners is None else on_device(batch.partners, device),
        uniform=uniform,
        duplicates=None if batch.duplicates is None else on_device(batch.duplicates, device),
        part=batch.part,
        chunk_size=config.chunk_size,
        total=world.total,
    )
    loss, parts = sum_of_terms(state.terms, views, step)
    (loss * share).backward()  # type: ignore[no-untyped-call]
    return {"loss": loss.detach(), **parts, **similarity_summary(views.embeddings, views.masks)}


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
    encoder: SentenceEncoder,
    batch: Batch,
    tokens: Mapping[str, Mapping[str, Tensor]],
    config: ResolvedConfig,
    device: str,
    world: World = SINGLE,
) -> Views:
    """Returns the embeddings of all views, each ``(B, D)`` float32 (float64 for such an encoder), and their masks.

    A block is encoded in one forward pass in which it is repeated for each of its views, under different dropout masks;
    on the CPU in groups of similar length; or in chunks of ``config.chunk_size``, whose activations are recomputed.
    Blocks are padded separately, so that long synthetic negatives do not increase the padding of the sentences. Every
    rank encodes its part of the rows.
    """

    def encode(inputs: dict[str, Tensor]) -> Tensor:
        with autocast(device, config.precision):
            z: Tensor = encoder(inputs)
        return z if z.dtype == torch.float64 else z.float()

    weights = next(encoder.parameters())
    embeddings: dict[str, Tensor] = {}
    for name, block in batch.blocks.items():
        times = len(block.views)
        if name in tokens:
            inputs = {key: value.repeat(times, 1) for key, value in tokens[name].items()}
            if device == "cpu" and config.chunk_size is None and not config.compile:
                local = by_length(encode, inputs, GROUP)
            else:
                local = in_chunks(encode, inputs, config.chunk_size)
        else:
            # No rows, but a gradient, so that the loss of this rank has one.
            local = weights.flatten()[:0].reshape(0, encoder.embedding_dim)
        views = local.view(times, -1, local.shape[-1]) if len(local) else local.expand(times, 0, -1)
        for view, z in zip(block.views, views, strict=True):
            embeddings[view] = world.gather(z, len(batch.rows))
    masks = {view: on_device(mask, device) for view, mask in batch.masks.items()}
    return Views(embeddings, masks)


def by_length(function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """Applies a function to groups of rows of similar length, and returns the results in the order of the rows.

    A group has no columns that are padding in all its rows, so that less padding is computed. Up to ``size`` rows are
    passed as they are.

    Args:
        function: Maps tokens of n rows to a tensor of n rows, whatever their padding.
        inputs: Token ids, attention masks and so on, each ``(N, T)``.
        size: Rows of a group.
    """
    mask = inputs["attention_mask"]
    if len(mask) <= size:
        return function(dict(inputs))
    order = mask.sum(1).argsort(stable=True)
    found = []
    for rows in torch.split(order, size):
        used = mask[rows].any(0)
        found.append(function({name: values[rows][:, used] for name, values in inputs.items()}))
    return torch.cat(found)[order.argsort()]


def keyed_uniform(seed: int, batch: Batch, device: str) -> Callable[[str, int], Tensor]:
    """Returns a function ``uniform(purpose, n)``.

    Its result, ``(B, n)`` float32 in [0, 1), is a pure function of (seed, epoch, row, purpose).
    """

    def uniform(purpose: str, count: int) -> Tensor:
        stream = rng.PURPOSES + (crc32(purpose.encode()) << 16)
        columns = [rng.uniform(seed, batch.epoch, batch.rows, stream + i) for i in range(count)]
        return on_device(np.stack(columns, axis=1).astype(np.float32), device)

    return uniform

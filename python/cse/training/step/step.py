"""One training step: encodes the views of a batch, computes the loss, and updates the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from ...encoder.device import skips_by_flag
from ...encoder.tokens import POOLED
from ...losses.base import RowTerm
from ...losses.contrastive import Contrastive, similarity_summary
from ...views import BatchStep, Frozen, RowStep, Views, WithoutDropout
from ..batches.prepared import Batch
from .encode import Forward, Inputs, chunks_of, gathered_views, nothing, step_of_rows, with_dropout
from .ranks import World
from .state import TrainState

SINGLE = World()


def training_step(
    state: TrainState,
    batches: Sequence[Batch],
    forward: Forward,
    rate: float | Tensor,
    max_grad_norm: float = 0.0,
    world: World = SINGLE,
    inputs: Sequence[Inputs] | None = None,
) -> dict[str, Any]:
    """Performs one training step, and returns its metrics by name, scalar tensors on the device.

    They are ``loss``, ``loss/NAME`` for each of several terms, the metrics of the terms and ``similarity_summary``, all
    averaged over the batches, as the gradients are; and ``finite``, see ``skip_if_not_finite``. A recorded step reads
    ``rate`` from a scalar float32 tensor; ``inputs`` are the tensors of the batches, if they are on the device already.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    inputs = inputs or [Inputs(batch, forward.device, forward.seed) for batch in batches]
    share = 1 / len(batches)
    results = [propagate(state, batch, forward, world, share, own) for batch, own in zip(batches, inputs, strict=True)]
    metrics = results[0]
    if len(results) > 1:
        names = dict.fromkeys(name for result in results for name in result)
        metrics = {name: torch.stack([result[name] for result in results if name in result]).mean() for name in names}
        if "duplicates" in metrics:  # like the numbers of masked rows
            metrics["duplicates"] = torch.stack([r["duplicates"] for r in results if "duplicates" in r]).sum()
    parameters = state.trained
    world.sum_gradients(parameters, tuple((tuple(batch.views), len(batch.rows)) for batch in batches))
    # The norm is computed even without clipping, to detect gradients that are not finite.
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if max_grad_norm:
        clip_grads_with_norm_(parameters, max_grad_norm, norm)
    finite = skip_if_not_finite(state.optimizer, metrics["loss"], norm)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    for after in state.after_step:
        after()
    return {**metrics, "finite": finite}


def propagate(
    state: TrainState,
    batch: Batch,
    forward: Forward,
    world: World = SINGLE,
    share: float = 1.0,
    inputs: Inputs | None = None,
) -> dict[str, Tensor]:
    """Adds ``share`` times the gradients of a batch to those of the parameters; returns the metrics of the batch."""
    inputs = inputs or Inputs(batch, forward.device, forward.seed)
    views = gathered_views(state, inputs, forward, world)
    step = batch_step(state, inputs, forward, world)
    for feature in state.features.values():
        views = feature(views, step)
    values: dict[str, Tensor] = {}
    metrics: dict[str, Tensor] = {}
    # Every rank must use the gathered embeddings in its loss; see World.gather.
    total = 0.0 * next(iter(views.embeddings.values())).sum() if world.size > 1 else None
    for name, term in state.terms.items():
        if isinstance(term, RowTerm):
            value, local = row_value(term, views, inputs, forward, world, metrics, state.steps)
        else:
            value = term(views, step)
            local = value / world.size  # the value is the same on every rank
            metrics.update(term.metrics)
        total = local if total is None else total + local
        values[name] = value.detach()
    assert total is not None
    if total.requires_grad:
        (total * share).backward()  # type: ignore[no-untyped-call]
    if len(values) > 1:
        metrics |= {f"loss/{name}": value for name, value in values.items()}
    return {"loss": reduce(torch.add, values.values()), **metrics, **similarity_summary(views.embeddings, views.masks)}


def row_value(
    term: RowTerm, views: Views, inputs: Inputs, forward: Forward, world: World, metrics: dict[str, Tensor], steps: int
) -> tuple[Tensor, Tensor]:
    """Returns the value of a row term over all ranks, and this rank's share of it; only the share has a gradient."""
    batch = inputs.batch
    own = views.rows(batch.part)
    anchor = own["anchor"]
    zero = anchor.new_zeros(())
    total, count = zero, zero
    sums = {name: (zero, zero) for name in term.logged}
    for part in chunks_of(len(batch.rows[batch.part]), forward.chunk_size):
        # The models that loss terms add do not accept the mask of pooled tokens.
        chunk = {
            name: {key: values[part] for key, values in block.items() if key != POOLED}
            for name, block in inputs.tokens.items()
        }
        step = step_of_rows(inputs, (batch.part, part), chunk, steps)

        def value(chunk: Views, step: RowStep = step) -> tuple[Tensor, Tensor]:
            with forward.autocast():
                result: tuple[Tensor, Tensor] = term(chunk, step)
            return result

        if forward.chunk_size is None:
            loss, number = value(own.rows(part))
        else:
            loss, number = checkpoint(value, own.rows(part), use_reentrant=False)
        total, count = total + loss, count + number.detach()
        for name, before in sums.items():
            first, second = term.metrics[name]
            sums[name] = (before[0] + first.detach(), before[1] + second)
    for name, (first, second) in sums.items():
        metrics[name] = world.total(first) / world.total(second).clamp(min=1)
    local = total / world.total(count).clamp(min=1)
    return world.total(local.detach()), local


def batch_step(state: TrainState, inputs: Inputs, forward: Forward, world: World) -> BatchStep:
    """Returns the ``BatchStep`` that batch terms and feature methods receive in addition to the embeddings."""
    batch, tokens = inputs.batch, inputs.tokens
    block_of = {view.name: name for name, block in batch.blocks.items() for view in block.views}
    rates = {view.name: view.dropout for block in batch.blocks.values() for view in block.views}
    known: dict[tuple[str, Frozen | WithoutDropout], Tensor] = {}

    def further_pass(name: str, encoder: Any = None, rows: Tensor | None = None) -> Tensor:
        block = block_of.get(name, name)
        if not isinstance(encoder, (Frozen, WithoutDropout)):
            return embeddings(block, state.encoder if encoder is None else encoder, rates.get(name))
        if (block, encoder) not in known:
            if rows is not None and forward.by_groups and world.size == 1:  # elsewhere, shapes are fixed
                return some(block, encoder, rows)
            known[block, encoder] = embeddings(block, encoder)
        return known[block, encoder]

    def some(block: str, model: Frozen | WithoutDropout, rows: Tensor) -> Tensor:
        if not rows.any():  # one row, since some transformers reject empty batches
            rows = torch.arange(len(rows)) == 0
        chosen = {key: values[rows] for key, values in tokens[block].items()}
        z = forward.run(model.embed, chosen, whole_rows=model.packs)
        return z.new_zeros(len(rows), z.shape[1]).index_copy(0, rows.nonzero()[:, 0], z)

    def embeddings(block: str, model: Any, dropout: float | None = None) -> Tensor:
        if block in tokens:
            packs = getattr(model, "packs", False)
            run = model.embed if dropout is None else partial(with_dropout, model, dropout)
            return world.gather(forward.run(run, tokens[block], whole_rows=packs), len(batch.rows))
        width = getattr(getattr(model, "model", model), "embedding_dim", None)  # a Frozen wraps the model
        return world.gather(nothing(state.encoder, width), len(batch.rows))

    step = BatchStep(
        number=batch.step,
        steps=state.steps,
        epoch=batch.epoch,
        seed=forward.seed,
        rows=inputs.rows,
        uniform=inputs.uniform(),
        partners=inputs.partners,
        encode=further_pass,
    )
    main = next((term for term in state.terms.values() if isinstance(term, Contrastive)), None)
    if main is None:
        return step
    evaluate = partial(main.evaluate, step=step)
    return replace(step, contrastive=evaluate, temperature=main.options.temperature)


def skip_if_not_finite(optimizer: torch.optim.Optimizer, loss: Tensor, norm: Tensor) -> Tensor:
    """Makes all further steps of the optimizer do nothing once the loss or the norm of the gradient is not finite.

    The error is raised when the metrics are read; until then, the weights stay as after the last finite step. Returns a
    scalar bool tensor, True if both are finite.
    """
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    # The fused optimizer skips the update if this flag is 1, as with a GradScaler, without a copy to the host.
    found = (~finite).to(torch.float32)
    before = getattr(optimizer, "found_inf", None)
    # In the same memory, which a recorded step reads.
    optimizer.found_inf = found if before is None else torch.maximum(found, before, out=before)  # type: ignore[attr-defined]
    if not skips_by_flag(loss.device) and optimizer.found_inf:  # type: ignore[attr-defined]
        optimizer.zero_grad(set_to_none=True)  # parameters without gradients are not updated
    return finite

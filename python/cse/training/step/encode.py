"""Encoding of a batch: its tensors on the device, forward passes of its views, and gathering across processes.

The activations of a chunk are not kept (gradient caching; Gao et al. 2021, GradCache).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ... import rng
from ...augment.base import View
from ...encoder.device import autocast, copied_to, on_device
from ...encoder.fast.lengths import GROUP, by_length, one_lookup
from ...encoder.trained import SentenceEncoder
from ...hooks.base import hooked
from ...views import RowStep, Views, entry_keys
from ..batches.prepared import CLASSES, SENTENCES, Batch
from .ranks import World

if TYPE_CHECKING:
    from .state import TrainState

Draw = tuple[tuple[slice, ...], str, int]  # parts of the rows, purpose, and count of random numbers; see Inputs.uniform
# Name of an additional input: the position of each row in the view, which selects the ``RowStep`` of a chunk.
ROW = "row"
# Attributes that hold the dropout probability in attention modules without a dropout module (ModernBERT, Llama).
RATES = ("attention_dropout", "dropout_rate")


class Inputs:
    """The tensors of a batch on the device of the encoder, and random numbers for its rows."""

    def __init__(self, batch: Batch, device: str, seed: int = 0) -> None:
        self.batch, self.device, self.seed = batch, device, seed
        packed = batch.packed or batch.pack()
        self._memory = copied_to(packed.memory, device)
        views = packed.views(self._memory)
        self.rows: Tensor = views["rows",]
        """``(B,)`` int64 row numbers in the corpus."""
        self.partners = views.get(("partners",))
        """See ``Batch``."""
        self.masks, self.keys = (
            {name[1]: tensor for name, tensor in views.items() if name[0] == kind} for kind in ("mask", "keys")
        )
        """By block name; see ``Block.mask`` and ``Batch.keys``."""
        self.tokens = {name: {key: views["tokens", name, key] for key in block} for name, block in batch.tokens.items()}
        """See ``Batch.tokens``."""
        self.draws: list[tuple[Draw, Tensor]] = []
        self._known: Iterator[tuple[Draw, Tensor]] = iter(())
        self._drawn_before = 0

    def uniform(self, *parts: slice) -> Callable[[str, int], Tensor]:
        """Returns a function ``uniform(purpose, n)`` that returns uniform random numbers in [0, 1) for some rows.

        Its result, ``(rows, n)`` float32, is a pure function of (seed, epoch, row, purpose). The rows are
        the batch's, from which each of ``parts`` takes a slice in turn.
        """

        def uniform(purpose: str, count: int) -> Tensor:
            draw = (parts, purpose, count)
            known, values = next(self._known, (None, None))
            if known != draw or values is None:
                values = on_device(self._drawn(*draw), self.device)
                self.draws.append((draw, values))
            return values

        return uniform

    def _drawn(self, parts: tuple[slice, ...], purpose: str, count: int) -> npt.NDArray[np.float32]:
        rows = self.batch.rows
        for part in parts:
            rows = rows[part]
        values = rng.Draws(self.seed, self.batch.epoch).uniform(rows, purpose, count).astype(np.float32)
        return np.minimum(values, np.nextafter(np.float32(1), np.float32(0)))  # rounding to float32 may give 1

    def refill(self, batch: Batch) -> None:
        """Replaces the tensors by another batch of the same shape, and draws its random numbers."""
        self.batch = batch
        self._memory.copy_((batch.packed or batch.pack()).memory, non_blocking=True)
        for draw, values in self.draws:
            values.copy_(on_device(self._drawn(*draw), self.device))
        self._known, self._drawn_before = iter(self.draws), len(self.draws)

    @property
    def drew_others(self) -> bool:
        """Whether the step has asked for other random numbers since ``refill``, or in another order."""
        return len(self.draws) != self._drawn_before


def shape_of(batch: Batch) -> Any:
    """Returns a key that is equal for batches that a step encodes and compares by the same operations."""
    blocks = tuple((name, block.views, block.shared, block.local) for name, block in batch.blocks.items())
    return (batch.packed or batch.pack()).layout, blocks, batch.repeats


def chunks_of(rows: int, size: int | None) -> list[slice]:
    """Returns slices that divide ``rows`` rows into chunks of ``size`` rows (None: one chunk)."""
    size = size or max(rows, 1)
    return [slice(start, start + size) for start in range(0, rows, size)]


@dataclass(frozen=True)
class Forward:
    """Settings for encoding the rows of this rank: device, precision, chunks, and groups of similar length."""

    device: str
    precision: str = "fp32"  # fp32 or bf16
    chunk_size: int | None = None  # rows whose activations are in memory at a time; None: all
    compiled: bool = False  # whether the transformer is compiled, and therefore needs batches of a fixed shape
    seed: int = 0

    @property
    def by_groups(self) -> bool:
        """Whether rows are encoded in groups of similar length: only on the CPU, where small batches are efficient."""
        return self.device == "cpu" and self.chunk_size is None and not self.compiled

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context manager that sets the precision of forward passes."""
        return autocast(self.device, self.precision)

    def run(
        self,
        embed: Callable[[dict[str, Tensor]], Tensor],
        tokens: Mapping[str, Tensor],
        times: int = 1,
        whole_rows: bool = False,
    ) -> Tensor:
        """Returns the embeddings ``(times * n, D)`` of n rows in float32 (float64 for a float64 encoder).

        ``embed`` is the method of an encoder, which returns embeddings ``(n, D)`` of tokens ``(n, T)``.

        The activations of chunks are recomputed in the backward pass, with the same random numbers.
        """

        def in_precision(inputs: dict[str, Tensor]) -> Tensor:
            with self.autocast():
                z = embed(inputs)
            return z if z.dtype == torch.float64 else z.float()

        inputs = {key: value.repeat(times, 1) for key, value in tokens.items()}
        if self.by_groups and not whole_rows:
            return by_length(in_precision, inputs, GROUP)
        if self.chunk_size is None:
            return in_precision(inputs)
        parts = chunks_of(len(next(iter(inputs.values()))), self.chunk_size)
        chunks = [{key: values[part] for key, values in inputs.items()} for part in parts]
        return torch.cat([checkpoint(in_precision, chunk, use_reentrant=False) for chunk in chunks])


def nothing(encoder: SentenceEncoder, width: int | None = None) -> Tensor:
    """Returns empty embeddings ``(0, width)`` in the autograd graph; default width: the encoder's embedding size."""
    trained = next((p for p in encoder.parameters() if p.requires_grad), next(encoder.parameters()))
    z: Tensor = trained.flatten()[:0].reshape(0, width or encoder.embedding_dim)
    return z


def encode_views(state: TrainState, inputs: Inputs, forward: Forward) -> dict[str, Tensor]:
    """Returns the embeddings of this rank's rows by view name, each ``(n, D)``.

    Views of a block with the same encoder, dropout probability and hook are encoded in one forward pass, which contains
    the block once per view, or only once if it is ``shared``. Blocks are padded separately.
    """
    batch, tokens = inputs.batch, inputs.tokens
    own = step_of_rows(inputs, (batch.part,), {}, state.steps)

    def row_step(places: Tensor) -> RowStep:  # indexed on the device, so that the host does not wait
        return replace(own, rows=own.rows[places], uniform=lambda name, count: own.uniform(name, count)[places])

    embeddings: dict[str, Tensor] = {}
    with ExitStack() as stack:
        if forward.by_groups:
            ids = [block["input_ids"] for block in tokens.values()]
            for encoder in (state.encoder, state.second):
                if encoder is not None:
                    stack.enter_context(one_lookup(encoder.backbone, ids))
        for name, block in batch.blocks.items():
            for key in dict.fromkeys(view.passes for view in block.views):
                views = [view for view in block.views if view.passes == key]
                encoder = state.second if views[0].encoder == "second" and state.second is not None else state.encoder
                if name not in tokens:  # this rank has no rows
                    embeddings |= {view.name: nothing(encoder) for view in views}
                    continue
                run, given = encoder_of(views[0], encoder, state, tokens[name], row_step)
                times = 1 if block.shared else len(views)
                whole = views[0].hook is not None or encoder.packs
                local = forward.run(run, given, times, whole_rows=whole)
                parts = local.view(times, -1, local.shape[-1]).expand(len(views), -1, -1)
                embeddings |= {view.name: z for view, z in zip(views, parts, strict=True)}
    # In the order of the blocks and their views, even if some views shared a forward pass.
    return {name: embeddings[name] for name in batch.views}


def gathered_views(state: TrainState, inputs: Inputs, forward: Forward, world: World) -> Views:
    """Returns the views of all rows of the batch; ranks exchange embeddings and masks in one transfer, keys in one."""
    batch = inputs.batch
    local = encode_views(state, inputs, forward)
    keys = gathered_keys(inputs, world)
    taught = keys["anchor"][:, -1] >= 0 if CLASSES in inputs.keys else None  # the numbers of the classes are the last
    masks: dict[str, Tensor] = {}
    owned: dict[str, Tensor] = {}  # the masks of the rows of this rank
    for name, mask in inputs.masks.items():
        block = batch.blocks[name]
        (owned if block.local else masks).update({view.name: mask for view in block.views})
    if world.size == 1:
        return Views(local, batch.roles, {**masks, **owned}, keys=keys, taught=taught, repeats=batch.repeats)
    columns = [*local.values(), *(mask[:, None].to(next(iter(local.values())).dtype) for mask in owned.values())]
    whole = world.gather(torch.cat(columns, dim=1), len(batch.rows))
    gathered = torch.split(whole, [z.shape[1] for z in columns], dim=1)
    everything = dict(zip([*local, *(f"mask of {name}" for name in owned)], gathered, strict=True))
    masks |= {name: everything[f"mask of {name}"][:, 0] > 0.5 for name in owned}
    return Views({name: everything[name] for name in local}, batch.roles, masks, keys=keys, taught=taught)


def gathered_keys(inputs: Inputs, world: World) -> dict[str, Tensor]:
    """Returns ``Views.keys`` of all rows of the batch."""
    if not inputs.keys:
        return {}
    batch = inputs.batch
    columns = world.gather(torch.stack(list(inputs.keys.values()), dim=1), len(batch.rows)).unbind(1)
    keys = dict(zip(inputs.keys, columns, strict=True))
    by_view = {view.name: keys[name] for name, block in batch.blocks.items() for view in block.views}
    return entry_keys(by_view, batch.roles, [keys[name] for name in (SENTENCES, CLASSES) if name in keys])


def step_of_rows(
    inputs: Inputs, parts: tuple[slice, ...], tokens: Mapping[str, Mapping[str, Tensor]], steps: int
) -> RowStep:
    """Returns the ``RowStep`` that row terms and hooks receive for some rows; see ``Inputs.uniform`` for ``parts``."""
    return RowStep(
        number=inputs.batch.step,
        steps=steps,
        epoch=inputs.batch.epoch,
        seed=inputs.seed,
        rows=reduce(getitem, parts, inputs.rows),
        uniform=inputs.uniform(*parts),
        tokens=tokens,
    )


def encoder_of(
    view: View,
    encoder: SentenceEncoder,
    state: TrainState,
    tokens: Mapping[str, Tensor],
    step: Callable[[Tensor], RowStep],
) -> tuple[Callable[[dict[str, Tensor]], Tensor], Mapping[str, Tensor]]:
    """Returns the function that encodes the rows of a view, and its inputs; ``step`` takes the positions of rows."""
    if view.hook is None:
        return encoder.embed if view.dropout is None else partial(with_dropout, encoder, view.dropout), tokens
    hook = state.hooks[view.hook]

    def with_hook(inputs: dict[str, Tensor]) -> Tensor:
        inputs = dict(inputs)
        with dropout_of(encoder.backbone, view.dropout):
            facts = step(inputs.pop(ROW)[:, 0])
            if view.draws:
                uniform = facts.uniform
                facts = replace(facts, draws=view.draws, uniform=lambda name, count: uniform(view.draws + name, count))
            inputs = hook.tokens(inputs, facts)
            z: Tensor = encoder.embed(inputs, hooked(hook, encoder.backbone, inputs, facts))
            return z

    ids = tokens["input_ids"]
    return with_hook, {**tokens, ROW: torch.arange(len(ids), device=ids.device)[:, None]}


@contextmanager
def dropout_of(backbone: nn.Module, probability: float | None) -> Iterator[None]:
    """Context manager in which a transformer has the given dropout probability; None: it is unchanged."""
    before = [] if probability is None else rates_of(backbone)
    try:
        for module, name, _ in before:
            setattr(module, name, probability)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def with_dropout(model: Any, probability: float, tokens: dict[str, Tensor]) -> Tensor:
    """Encodes tokens with the given dropout probability in the transformer of ``model``, its ``backbone``."""
    with dropout_of(model.backbone, probability):
        z: Tensor = model.embed(tokens)
    return z


def rates_of(backbone: nn.Module) -> list[tuple[Any, str, float]]:
    """Returns the dropout probabilities in a transformer: the module, the name of the attribute, and its value."""
    rates: list[tuple[Any, str, float]] = []
    for module in backbone.modules():
        names = ("p",) if isinstance(module, nn.Dropout) else RATES
        rates += [(module, name, getattr(module, name)) for name in names if isinstance(vars(module).get(name), float)]
    return rates

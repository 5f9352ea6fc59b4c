"""Training with several processes (ranks), started by torchrun, and the signals that end a run.

Every rank prepares the same batches and encodes its part of the rows. The loss of the run is the sum of the losses of
the ranks. A batch term, which compares all rows of the batch, has the same value on every rank and is divided by the
number of ranks. A row term is a mean over the items of the rows, such as tokens; each rank divides the sum over its
rows by the number of items in all rows. Gathering embeddings sums their gradients over the ranks in the backward pass.
Summing the gradients of the parameters over the ranks then gives the gradients of the whole batch.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...background import handle_stops
from ...encoder.device import distributed_backend, use_gpu
from ...errors import RunError

# Other ranks wait while rank 0 evaluates. The timeout need not be short, because torchrun ends all ranks if one dies.
TIMEOUT = timedelta(hours=6)
# Intended seconds of training between two exchanges of signals (see ``Agreement``). docs/training.md promises at most
# two seconds; the margin is needed because steps differ in length.
PERIOD = 1.0


@dataclass(frozen=True)
class World:
    """The ranks of a run. With one rank, the methods work without communication."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # number of the rank on its machine, which is also the number of its GPU
    kind: str = "cpu"  # kind of the devices between which the ranks exchange tensors: cuda with NCCL, cpu with Gloo
    _used: dict[Hashable, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this rank evaluates the model and writes the files of the run."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """Returns the device of this rank: with several ranks on GPUs, ``cuda`` becomes ``cuda:N``."""
        return f"{name}:{self.local_rank}" if self.size > 1 and name == self.kind != "cpu" else name

    def part(self, rows: int, rank: int | None = None) -> slice:
        """Returns the slice of the rows of a batch that a rank (default: this one) encodes."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.size, rows * (rank + 1) // self.size)

    def gather(self, local: Tensor, rows: int) -> Tensor:
        """Returns the rows of all ranks, ``(rows, F)``, given the rows of this rank, ``local``: ``(n, F)``.

        The gradients are summed over the ranks, so that every rank must use the result in its loss.
        """
        if self.size == 1:
            return local
        parts = [self.part(rows, rank) for rank in range(self.size)]
        gathered: Tensor = _Gather.apply(local, parts, self.rank)  # type: ignore[no-untyped-call]
        return gathered

    def total(self, value: Tensor) -> Tensor:
        """Returns the sum of a tensor over the ranks; with several ranks, the sum has no gradient."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], kind: Hashable) -> None:
        """Replaces the gradients of the parameters with their sums over the ranks, in one transfer.

        ``kind`` is a key, the same on every rank: the ranks agree at the first step with this key which parameters have
        gradients. A parameter without one on this rank contributes 0.
        """
        if self.size == 1:
            return
        if kind not in self._used:
            has = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
            dist.all_reduce(has, op=dist.ReduceOp.MAX)
            self._used[kind] = [number for number, any_rank in enumerate(has.tolist()) if any_rank]
        numbers = set(self._used[kind])
        if any(p.grad is not None and number not in numbers for number, p in enumerate(parameters)):
            raise RunError(
                "a loss term has gradients for parameters that had none at an earlier step with the same views; with "
                "several processes a term must use the same parameters at every step"
            )
        used = [parameters[number] for number in self._used[kind]]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in used])
        dist.all_reduce(flat)
        start = 0
        for parameter in used:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def highest(self, *values: int) -> list[int]:
        """Returns the maximum of each number over the ranks."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, device=self.kind)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        return [int(value) for value in numbers.tolist()]

    def collect(self, value: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, which have equal shapes, in the order of ranks."""
        if self.size == 1:
            return [value]
        own = value.to(self.kind)  # NCCL exchanges only tensors on the GPU
        tensors = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(tensors, own)
        return [tensor.to(value.device) for tensor in tensors]

    def agreed(self, make: Callable[[], str]) -> str:
        """Returns, on every rank, the text that rank 0 makes; an error on rank 0 is raised on every rank."""
        if self.size == 1:
            return make()
        box: list[str | Exception] = [""]
        if self.is_main:
            try:
                box = [make()]
            except Exception as error:
                box = [error]
        dist.broadcast_object_list(box)
        if isinstance(box[0], Exception):
            raise box[0]
        return box[0]


class _Gather(torch.autograd.Function):
    """Gathers rows in the forward pass, and sums their gradients over the ranks in the backward pass."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, parts: list[slice], rank: int) -> Tensor:
        ctx.part = parts[rank]
        longest = max(part.stop - part.start for part in parts)
        padded = local.new_zeros((longest, local.shape[1]))
        padded[: len(local)] = local
        everything = [torch.empty_like(padded) for _ in parts]
        dist.all_gather(everything, padded)
        return torch.cat([tensor[: part.stop - part.start] for tensor, part in zip(everything, parts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)  # autograd may use the gradient elsewhere
        dist.all_reduce(total)
        return total[ctx.part], None, None


@contextmanager
def connected(device: str) -> Iterator[World]:
    """Context manager that connects the ranks started by torchrun, if any, until the process ends.

    One process can train several times. The backend is NCCL for CUDA and Gloo for the CPU.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    local = int(os.environ["LOCAL_RANK"])
    backend = distributed_backend(device)
    kind = use_gpu(backend, local)
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=TIMEOUT)
        # When the process ends, not after a run: connecting again would wait for other ranks.
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    yield World(dist.get_rank(), dist.get_world_size(), local, kind)


class StopRequest:
    """Context manager that records SIGINT, SIGTERM and SIGHUP, so that the step in progress is finished and saved."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = handle_stops(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class Agreement:
    """Decides when the ranks exchange their signals, so that all of them stop at the same step.

    Exchanges are about ``PERIOD`` seconds of training apart, or one step: torchrun kills the ranks 30 s after a signal,
    but an exchange at every step would stall a GPU. The step of the next one follows from the step time of the slowest
    rank. ``step`` is the number of steps done so far.
    """

    def __init__(self, world: World, stop: StopRequest, step: int = 0) -> None:
        self.world, self.stop = world, stop
        self._asked_at = time.perf_counter()
        self._asked, self._next = step, step

    def signal(self, step: int, *, now: bool = False) -> int:
        """Returns the highest signal number that any rank has received; 0 if there is none, or no exchange is due."""
        if self.world.size == 1:
            return self.stop.number
        if step < self._next and not now:
            return 0
        microseconds = 1e6 * (time.perf_counter() - self._asked_at) / max(step - self._asked, 1)
        number, slowest = self.world.highest(self.stop.number, int(microseconds) + 1)
        self._next = step + max(1, int(PERIOD * 1e6) // slowest)
        self._asked, self._asked_at = step, time.perf_counter()
        return number

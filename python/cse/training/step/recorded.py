"""Training steps that are recorded on a GPU once for each shape of their batches, and replayed.

A GPU computes a step of a small transformer faster than Python can start its kernels. A recorded step (a CUDA graph)
starts them all at once. It reads batches, random numbers and learning rate from fixed memory, and runs the kernels of
an eager step, with the same random numbers; results do not depend on when a step is recorded.

What Python does in a step happens only once, when the step is recorded. Steps are therefore recorded only if all
methods of the run declare themselves ``recordable``. A second check is ``Watch``: before a shape is recorded, two eager
steps must do the same work, and neither may wait for the GPU or copy anything to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import first_line
from ..batches.prepared import Batch
from .encode import Forward, Inputs, shape_of
from .ranks import World
from .state import TrainState
from .step import training_step

# Steps of further shapes are not recorded; a graph takes several megabytes.
MOST_SHAPES = 32
WATCHED = 2
OTHER_DRAWS = "two steps of one shape draw different random numbers"


class Recorder(Protocol):
    """Records operations on a device; see ``cse.encoder.device.GraphRecorder``."""

    def running(self) -> Any:
        """Returns a context manager in which operations run that are recorded later."""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that runs the operations of ``function``, which is not run itself."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of a step, with their numbers, and the first of them that cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []
        self.reason = ""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = str(function)
        if name.startswith(("prim.", "profiler.")):
            return result
        leaves = tree_leaves((args, kwargs))
        self.operations.append(f"{name} {[(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in leaves]}")
        devices = {x.device for x in (*leaves, *tree_leaves(result)) if isinstance(x, Tensor)}
        if _waits(function, args):
            self.reason = self.reason or f"{name} makes the host wait for the device"
        elif len(devices) > 1 and function.overloadpacket.__name__ in ("_to_copy", "copy_"):
            self.reason = self.reason or f"{name} copies a tensor from one device to another"
        return result

    def difference(self, other: Watch) -> str:
        """Returns why a step cannot be recorded, of which two instances were watched; empty if it can be."""
        if reason := self.reason or other.reason:
            return reason
        if len(self.operations) != len(other.operations):
            return f"two steps of one shape run {len(self.operations)} and {len(other.operations)} operations"
        pairs = zip(self.operations, other.operations, strict=True)
        return next((f"two steps of one shape differ in {one.split()[0]}" for one, two in pairs if one != two), "")


def _waits(function: Any, args: Any) -> bool:
    if function.overloadpacket.__name__ in ("index", "index_put", "index_put_"):  # a mask is converted to indices
        return any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return torch.Tag.data_dependent_output in function.tags or torch.Tag.dynamic_output_shape in function.tags


@dataclass
class Shape:
    """The steps whose batches have one shape."""

    inputs: list[Inputs]
    """The memory from which all of them but the first read."""
    watched: list[Watch] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Names of the metrics."""
    metrics: Tensor | None = None
    """``(len(names),)`` float32, the metrics of the step that was replayed last."""
    replay: Callable[[], None] | None = None


class RecordedStep:
    """Performs training steps, with the results of ``training_step``.

    The first step of a shape is eager, so that a compiled transformer is compiled and the random numbers are known that
    the step draws. The next two are watched, unless the transformer is compiled, since it would not be compiled in a
    watched step. If a step cannot be recorded, this and all later ones are eager.
    """

    def __init__(
        self,
        state: TrainState,
        forward: Forward,
        max_grad_norm: float,
        recorder: Recorder | None,
        warn: Callable[[str], None],
        world: World,
    ) -> None:
        self.state, self.forward, self.max_grad_norm, self.world = state, forward, max_grad_norm, world
        self.warn, self.recorder = warn, recorder
        self.shapes: dict[Any, Shape] = {}
        self.rate = torch.zeros((), device=forward.device)
        self.buffers = [
            (module, name, buffer)
            for top in state.modules().values()
            for module in top.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        others = [name for name, method in state.by_name.items() if not method.recordable]
        if recorder is None:
            self._refuse(f"the device {forward.device} has no CUDA graphs")
        elif forward.chunk_size is not None or world.size > 1:
            self._refuse("--chunk-size is set" if world.size == 1 else "there are several processes")
        elif others:
            self._refuse(f"{others[0]} does not declare itself recordable")

    def __call__(self, batches: Sequence[Batch], rate: float) -> dict[str, Any]:
        """Performs a step; the arguments and the result are as for ``training_step``."""
        if self.recorder is None:
            return training_step(self.state, batches, self.forward, rate, self.max_grad_norm, self.world)
        with self.recorder.running():
            key = tuple(map(shape_of, batches))
            if key in self.shapes:
                return self._again(self.shapes[key], batches, rate)
            inputs = [Inputs(batch, self.forward.device, self.forward.seed) for batch in batches]
            if len(self.shapes) < MOST_SHAPES:
                self.shapes[key] = Shape(inputs)
            return self._eager(batches, rate, inputs)

    def _again(self, shape: Shape, batches: Sequence[Batch], rate: float) -> dict[str, Any]:
        for inputs, batch in zip(shape.inputs, batches, strict=True):
            inputs.refill(batch)
        self.rate.fill_(rate)
        if shape.replay is None and not self.forward.compiled and len(shape.watched) < WATCHED:
            with Watch() as watch:
                metrics = self._eager(batches, self.rate, shape.inputs)
            shape.watched.append(watch)
            reason = shape.watched[0].difference(watch) if len(shape.watched) == WATCHED else ""
            if reason := OTHER_DRAWS if any(inputs.drew_others for inputs in shape.inputs) else reason:
                self._refuse(reason)
            return metrics
        if shape.replay is None and not self._record(shape, batches):
            return training_step(self.state, batches, self.forward, rate, self.max_grad_norm)
        assert shape.replay is not None
        assert shape.metrics is not None
        shape.replay()
        return dict(zip(shape.names, shape.metrics.clone().unbind(), strict=True))

    def _record(self, shape: Shape, batches: Sequence[Batch]) -> bool:
        """Records a step; returns whether this succeeded."""
        assert self.recorder is not None

        def step() -> None:
            metrics = self._eager(batches, self.rate, shape.inputs)
            if any(inputs.drew_others for inputs in shape.inputs):
                raise RuntimeError(OTHER_DRAWS)
            shape.names, shape.metrics = list(metrics), torch.stack([value.float() for value in metrics.values()])

        groups = self.state.optimizer.param_groups
        try:
            for group in groups:
                group["capturable"] = True
            shape.replay = self.recorder.record(step)
        except Exception as error:  # the eager step raises the error of a method again
            self.state.optimizer.zero_grad(set_to_none=True)
            self._refuse(f"a step could not be recorded ({first_line(error)})")
        finally:
            for group in groups:
                group["capturable"] = False
        return shape.replay is not None

    def _eager(self, batches: Sequence[Batch], rate: float | Tensor, inputs: list[Inputs]) -> dict[str, Any]:
        with self._same_buffers():
            return training_step(self.state, batches, self.forward, rate, self.max_grad_norm, inputs=inputs)

    @contextmanager
    def _same_buffers(self) -> Iterator[None]:
        """Context manager at whose end buffers that were replaced have their new values in their old memory."""
        done = False
        try:
            yield
            done = True
        finally:
            for module, name, memory in self.buffers:
                now = module._buffers[name]
                if now is not None and now is not memory:
                    if done:
                        memory.copy_(now)
                    module._buffers[name] = memory

    def _refuse(self, reason: str) -> None:
        self.recorder = None
        self.shapes.clear()
        self.warn(f"steps are not recorded as CUDA graphs, because {reason}")

"""A CUDA graph on the CPU: the operations of a step are recorded once, and replayed without running Python.

As with a CUDA graph, a replay runs only the recorded operations, on the same memory. What Python did in the recorded
step (numbers that it read, tensors that it made, buffers that it replaced) keeps its value. Comparing replayed steps
with eager ones thus finds steps that cannot be recorded. ``NotRecordable`` is raised for what a CUDA graph refuses or
would silently keep: values that the host reads, shapes that depend on values, and tensors that are made on the host.
"""

import gc
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cse.training.step.recorded import _waits


class NotRecordable(RuntimeError):
    """A step that cannot be replayed."""


def storage(x):
    return x.untyped_storage()._cdata


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


class EmulatedGraph(TorchDispatchMode):
    """Records the operations within the context; at its end, memory that existed before has its earlier contents."""

    def __init__(self):
        super().__init__()
        # Everything that exists before the recording keeps its memory until a replay.
        self.kept = [x for x in gc.get_objects() if type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"]
        self.before = {storage(x) for x in self.kept}
        self.known = set(self.before)
        self.saved = {}
        self.operations = []

    def __exit__(self, *error):
        super().__exit__(*error)
        with torch.no_grad():
            for values, contents in self.saved.values():
                values.copy_(contents)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if str(function).startswith(("prim.", "profiler.")):
            return function(*args, **kwargs)
        if _waits(function, args):
            raise NotRecordable(f"{function} makes the host wait")
        given = tensors((args, kwargs))
        if name == "lift_fresh" and not args[0].ndim:  # a Python number, as in x[:, 0] = 1: an argument of a kernel
            self.known.add(storage(args[0]))
            self.kept.append(args[0])
        for x in given:
            if storage(x) not in self.known and x.numel():
                raise NotRecordable(f"{function} reads a tensor that was made on the host")
        mutates = function._schema.is_mutable
        if mutates or "batch_norm" in name:  # whose schema does not say that it changes the running statistics
            for x in given:
                if storage(x) in self.before and storage(x) not in self.saved:
                    whole = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
                    self.saved[storage(x)] = (whole, whole.clone())
        result = function(*args, **kwargs)
        made = tensors(result)
        fresh = [x for x in made if storage(x) not in {storage(other) for other in given}]
        self.known.update(map(storage, fresh))
        self.kept += fresh
        if mutates or fresh:
            self.operations.append((function, args, kwargs, made, mutates))
        return result

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, made, mutates in self.operations:
            result = function(*args, **kwargs)
            for old, new in [] if mutates else zip(made, tensors(result), strict=True):
                if storage(old) != storage(new) and old.numel():
                    old.copy_(new)


class EmulatedRecorder:
    """Records operations on the CPU, with the interface of ``cse.encoder.device.GraphRecorder``."""

    def running(self):
        return nullcontext()

    def record(self, function):
        generator = torch.get_rng_state()
        try:
            with EmulatedGraph() as graph:
                function()
        finally:
            torch.set_rng_state(generator)
        return graph.replay

"""Device-dependent code: selection, precision, threads, generator states."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy.typing as npt
import torch

from .. import _core
from ..errors import InputError

__all__ = [
    "autocast",
    "begin_step",
    "compile_backbone",
    "describe_device",
    "fixed_length",
    "for_transfer",
    "generator_states",
    "on_device",
    "pick_device",
    "restore_generators",
    "set_threads",
    "uncompiled",
]


def pick_device(name: str) -> str:
    """Returns the device to use: ``name``, or for ``auto`` CUDA if available, else the CPU.

    Raises ``InputError`` if a tensor cannot be created on the device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"--device {name}: not usable here ({why}); try --device cpu") from None
    return name


def set_threads(threads: int) -> None:
    """Sets the number of CPU threads of PyTorch and of the Rust core; 0 keeps their defaults."""
    if threads:
        torch.set_num_threads(threads)
        _core.set_default_threads(threads)


def autocast(device: str, precision: str = "auto") -> AbstractContextManager[Any]:
    """Returns a context manager for the precision of a forward pass.

    Args:
        device: A PyTorch device.
        precision: ``bf16``: bfloat16 autocast. ``fp32``: none. ``auto``: bf16 on CUDA, else fp32.
    """
    if precision == "fp32" or (precision == "auto" and not device.startswith("cuda")):
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def compile_backbone(backbone: torch.nn.Module, device: str, graphs: bool) -> None:
    """Compiles a transformer in place; the names of its weights do not change.

    Args:
        backbone: The transformer.
        device: Its device. On CUDA it is compiled for inputs of one length, else for those of any length.
        graphs: Whether, on CUDA, its kernels are launched as CUDA graphs, one for the forward and one for the backward
            pass. The outputs and gradients of a step are in the memory of the graphs, which the next ``begin_step``
            reuses: all forward passes of a step must come before its only backward pass.
    """
    if device.startswith("cuda"):
        backbone.compile(dynamic=False, mode="reduce-overhead" if graphs else "default")
    else:
        backbone.compile(dynamic=True)


def begin_step(device: str, compiled: bool) -> None:
    """Tells the CUDA graphs of a compiled transformer that nothing of the last step is needed any more."""
    if compiled and device.startswith("cuda"):
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def fixed_length(device: str, compiled: bool, max_length: int) -> int | None:
    """Returns the length to which all batches are padded, or None for that of their longest sentence.

    On CUDA, kernels that are compiled for one shape are faster, and another shape would be compiled anew.
    """
    return max_length if compiled and device.startswith("cuda") else None


def for_transfer(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Returns a tensor in memory from which it is copied to the device without waiting: on CUDA, pinned memory."""
    return tensor.pin_memory() if device.startswith("cuda") else tensor


def on_device(values: npt.NDArray[Any], device: str) -> torch.Tensor:
    """Returns an array as a tensor on the device, without waiting for it."""
    return for_transfer(torch.from_numpy(values), device).to(device, non_blocking=True)


def uncompiled() -> AbstractContextManager[Any]:
    """Returns a context manager in which a compiled transformer runs uncompiled.

    Evaluation would be compiled anew, for another mode and other shapes, which takes longer than it saves.
    """
    set_stance = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    stance: AbstractContextManager[Any] = set_stance("force_eager") if set_stance else nullcontext()
    return stance


def describe_device(device: str, precision: str = "auto") -> str:
    """Returns the device with its name, precision and number of CPU threads, as text."""
    cuda = device.startswith("cuda")
    used = precision if precision != "auto" else "bf16" if cuda else "fp32"
    name = f"{torch.cuda.get_device_name(device)}, " if cuda else ""
    return f"{device} ({name}{used}, {torch.get_num_threads()} threads)"


def generator_states(device: str) -> dict[str, torch.Tensor]:
    """Returns the states of PyTorch's generators that dropout uses: ``cpu``, and on CUDA ``cuda``, uint8 each."""
    states = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, torch.Tensor], device: str) -> None:
    """Sets the states of PyTorch's generators; a state of a device that is not used is ignored."""
    torch.set_rng_state(states["cpu"])
    if device.startswith("cuda") and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)

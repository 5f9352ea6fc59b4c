"""Device-dependent code: selection, precision, threads, generator states."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .. import _core
from ..errors import InputError

__all__ = ["autocast", "describe_device", "pick_device", "set_threads"]


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


def autocast(device: str) -> AbstractContextManager[Any]:
    """Returns a context manager: bfloat16 autocast on CUDA, float32 on other devices."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.startswith("cuda") else nullcontext()


def describe_device(device: str) -> str:
    """Returns the device with its name (or fp32) and the number of CPU threads, as text."""
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else "fp32"
    return f"{device} ({kind}, {torch.get_num_threads()} threads)"

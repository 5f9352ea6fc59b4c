"""Description of the software versions and the machine of a run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .._core import __version__
from ..models.device import device_name

__all__ = ["environment"]

PACKAGES = ("transformers", "tokenizers", "numpy", "scipy", "safetensors")


def environment(device: str, precision: str, reason: str) -> dict[str, Any]:
    """Returns versions, platform, processor, cores, threads, device, and the precision with the reason for it.

    Two runs can be bit-identical only if versions, processor, number of threads, device and precision are the same.
    """
    found = {"cse": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": found,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "precision": precision,
        "precision_reason": reason,
    }

"""Device-dependent code: choice of device and precision, threads, compilation, and generator states."""

from __future__ import annotations

import platform
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy.typing as npt
import torch

from .. import _core
from ..errors import InputError, first_line, unknown

__all__ = [
    "PRECISIONS",
    "autocast",
    "begin_step",
    "bf16_instructions",
    "bf16_speedup",
    "compile_backbone",
    "describe_device",
    "fixed_length",
    "for_transfer",
    "generator_states",
    "on_device",
    "pick_device",
    "pick_precision",
    "restore_generators",
    "set_threads",
    "uncompiled",
]

PRECISIONS = ("fp32", "bf16", "auto")
# Names of the bfloat16 instruction sets, by their keys in torch.cpu.get_capabilities.
BF16_INSTRUCTIONS = {
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX",
    "bf16": "Arm BF16",
    "sve_bf16": "SVE BF16",
}


def pick_device(name: str) -> str:
    """Returns the device to use: ``name`` itself or, for ``auto``, CUDA if it is available and otherwise the CPU.

    Raises ``InputError`` if a tensor cannot be created on the device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = first_line(error)
        raise InputError(f"--device {name}: not usable here ({why}); try --device cpu") from None
    return name


def set_threads(threads: int) -> None:
    """Sets the number of CPU threads of PyTorch and of the Rust core; 0 keeps their defaults."""
    if threads:
        torch.set_num_threads(threads)
        _core.set_default_threads(threads)


def pick_precision(device: str, precision: str = "auto") -> tuple[str, str]:
    """Returns the precision of forward passes, ``fp32`` or ``bf16``, and the reason for it as text.

    The weights are float32 in both cases. ``auto`` selects bf16 on CUDA, and on processors that have bfloat16
    instructions and multiply matrices faster with them; otherwise it selects fp32. The processor is timed once per
    process, so the choice may differ between processes: code that resumes earlier work should store the chosen
    precision and pass it as ``precision``.

    Args:
        device: A PyTorch device.
        precision: One of ``PRECISIONS``.

    Raises:
        InputError: If the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise unknown("--precision", precision, PRECISIONS)
    kind = torch.device(device).type
    if precision == "bf16" and kind == "cpu" and not bf16_instructions():
        return precision, "as configured; emulated and slow, since the processor has no instructions for bf16"
    if precision != "auto":
        return precision, "as configured"
    if kind == "cuda":
        return "bf16", "the default on CUDA"
    if kind != "cpu":
        return "fp32", f"the default on {kind}"
    names = " and ".join(bf16_instructions())
    if not names:
        return "fp32", "the processor has no instructions for bf16"
    speedup = bf16_speedup()
    if speedup <= 1:
        return "fp32", f"a bf16 matrix product with {names} takes {1 / speedup:.1f} times as long as in fp32"
    return "bf16", f"with {names}, a matrix product is {speedup:.1f} times as fast as in fp32"


def bf16_instructions() -> tuple[str, ...]:
    """Returns the names of the processor's bfloat16 instruction sets, as reported by PyTorch; empty if it has none."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:
        reported = capabilities()
        return tuple(text for name, text in BF16_INSTRUCTIONS.items() if reported.get(name))
    # Older versions of PyTorch have only private functions, which were added in different versions.
    private = {"AVX512-BF16": "_is_avx512_bf16_supported", "AMX": "_is_amx_tile_supported"}
    found = [text for text, name in private.items() if getattr(torch.cpu, name, bool)()]
    # ``_is_mkldnn_bf16_supported`` is called only on Arm, because on x86 it also returns True for AVX512 without
    # bfloat16. Some builds of PyTorch lack this operator.
    if platform.machine().lower() in ("aarch64", "arm64"):
        with suppress(AttributeError, RuntimeError):
            found += ["Arm BF16"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    return tuple(found)


@cache
def bf16_speedup() -> float:
    """Returns the speedup of a matrix product on the CPU in bfloat16 over float32; 2.0 means twice as fast.

    The measurement takes a tenth of a second. The matrices are as large as in a linear layer of a small transformer.
    """
    fastest = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    # Constants are used because drawing random numbers would change the state of the generator.
    pairs = {kind: (torch.ones(512, 384, dtype=kind), torch.ones(384, 384, dtype=kind)) for kind in fastest}
    until = time.perf_counter() + 0.1
    while time.perf_counter() < until:
        for kind, (left, right) in pairs.items():
            started = time.perf_counter()
            torch.mm(left, right)
            fastest[kind] = min(fastest[kind], time.perf_counter() - started)
    return fastest[torch.float32] / fastest[torch.bfloat16]


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Returns a context manager for the precision of a forward pass.

    Args:
        device: A PyTorch device.
        precision: As returned by ``pick_precision``: ``bf16`` enables bfloat16 autocast, ``fp32`` does nothing.
    """
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def compile_backbone(backbone: torch.nn.Module, device: str, graphs: bool) -> None:
    """Compiles a transformer in place; the names of its weights do not change.

    Args:
        backbone: The transformer.
        device: Device of the transformer. On CUDA, the transformer is compiled for inputs of one length; on other
            devices, for inputs of any length.
        graphs: On CUDA, whether the kernels are launched as CUDA graphs, one for the forward pass and one for the
            backward pass. The graphs hold the outputs and gradients of a step in memory that is reused after the next
            ``begin_step``. All forward passes of a step must come before its only backward pass.
    """
    if device.startswith("cuda"):
        backbone.compile(dynamic=False, mode="reduce-overhead" if graphs else "default")
    else:
        backbone.compile(dynamic=True)


def begin_step(device: str, compiled: bool) -> None:
    """Marks a new step: CUDA graphs of a compiled transformer may then overwrite the results of the previous step."""
    if compiled and device.startswith("cuda"):
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def fixed_length(device: str, compiled: bool, max_length: int) -> int | None:
    """Returns the length to which all batches are padded, or None if each is padded to its longest sentence.

    On CUDA, kernels that are compiled for one shape are faster, and every other shape would be compiled separately.
    """
    return max_length if compiled and device.startswith("cuda") else None


def for_transfer(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Returns a tensor that can be copied to the device asynchronously: for CUDA, a tensor in pinned memory."""
    return tensor.pin_memory() if device.startswith("cuda") else tensor


def on_device(values: npt.NDArray[Any], device: str) -> torch.Tensor:
    """Returns an array as a tensor on the device, without waiting for the copy to finish."""
    return for_transfer(torch.from_numpy(values), device).to(device, non_blocking=True)


def uncompiled() -> AbstractContextManager[Any]:
    """Returns a context manager in which a compiled transformer runs uncompiled.

    Evaluation runs without dropout, and its inputs differ in shape from those of training; compiling the transformer
    for these shapes would take longer than it saves. Before PyTorch 2.6, the context has no effect.
    """
    set_stance = getattr(torch.compiler, "set_stance", None)
    stance: AbstractContextManager[Any] = set_stance("force_eager") if set_stance else nullcontext()
    return stance


def describe_device(device: str, precision: str, reason: str) -> str:
    """Describes the device (on CUDA with its name), the precision and the reason for it, and the CPU threads."""
    name = f"{torch.cuda.get_device_name(device)}, " if device.startswith("cuda") else ""
    return f"{device} ({name}{precision}: {reason}; {torch.get_num_threads()} threads)"


def generator_states(device: str) -> dict[str, torch.Tensor]:
    """Returns the states (uint8) of the PyTorch generators that dropout uses: ``cpu`` and, on CUDA, also ``cuda``."""
    states = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, torch.Tensor], device: str) -> None:
    """Sets the states of PyTorch's generators; states of devices that are not in use are ignored."""
    torch.set_rng_state(states["cpu"])
    if device.startswith("cuda") and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)

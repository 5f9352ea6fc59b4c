"""Everything that depends on the kind of device: CPU, CUDA (also ROCm), and Apple's GPUs (``mps``), which are untried.

No other module calls ``torch.cuda`` or the corresponding modules of other devices.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy.typing as npt
import torch

import cse._core as _core

from ..errors import InputError, first_line, unknown

PRECISIONS = ("fp32", "bf16", "auto")
GPUS = ("cuda", "mps")
# Backends of torch.distributed by kind of device. Several processes cannot use any other kind.
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
# Parts of out-of-memory messages of PyTorch's CPU allocator, of oneDNN, of CUDA and MPS, and of cuBLAS.
NO_MEMORY = ("can't allocate memory", "could not create a primitive", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# Names of the bfloat16 instruction sets, by their keys in torch.cpu.get_capabilities.
BF16_INSTRUCTIONS = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX", "bf16": "Arm BF16", "sve_bf16": "SVE BF16"}


def pick_device(name: str) -> str:
    """Returns the device to use: ``name``, if it is usable, or, for ``auto``, the GPU if there is one, else the CPU."""
    if name == "auto":
        return _gpu_kind() or "cpu"
    if name.startswith("xpu"):
        raise InputError(f"--device {name}: Intel's GPUs are not supported; use --device cpu")
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = first_line(error)
        raise InputError(f"--device {name}: not usable here ({why}); try --device cpu") from None
    return name


def _gpu_kind() -> str | None:
    """Returns the kind of the GPU that is available, one of ``GPUS``, or None."""
    gpu = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return gpu.type if gpu is not None and gpu.type in GPUS else None


def _kind(device: str) -> str:
    return torch.device(device).type


def _number(device: str) -> tuple[str, ...]:
    """Returns the argument that selects a device in functions of its module; functions of ``torch.mps`` have none."""
    return () if _kind(device) == "mps" else (device,)


_threads_before: list[int] = []  # that of PyTorch before the first call of ``set_threads`` that changed it


def set_threads(threads: int) -> None:
    """Sets the number of CPU threads of PyTorch and of the Rust core; 0: those that they had before the first call."""
    if threads and not _threads_before:
        _threads_before.append(torch.get_num_threads())
    if _threads_before:
        torch.set_num_threads(threads or _threads_before[0])
        _core.set_default_threads(threads)


def pick_precision(device: str, precision: str = "auto") -> tuple[str, str]:
    """Returns the precision of forward passes, ``fp32`` or ``bf16``, and the reason for it as text.

    ``auto`` times the processor once per process: code that resumes earlier work has to store the choice.
    """
    if precision not in PRECISIONS:
        raise unknown("--precision", precision, PRECISIONS)
    kind = _kind(device)
    if precision == "bf16" and kind == "cpu" and not bf16_instructions():
        slow = "emulated and slow, since the processor has no instructions for bf16"
        return precision, f"the value of --precision; {slow}"
    if precision != "auto":
        return precision, "the value of --precision"
    if kind == "cuda":
        if torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] < 8:
            return "fp32", "the GPU has no instructions for bf16"
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
    if (capabilities := getattr(torch.cpu, "get_capabilities", None)) is not None:
        reported = capabilities()
        return tuple(text for name, text in BF16_INSTRUCTIONS.items() if reported.get(name))
    # Older versions of PyTorch have only private functions. That for Arm also returns True for AVX512 without bfloat16,
    # and some builds of PyTorch lack it.
    private = {"AVX512-BF16": "_is_avx512_bf16_supported", "AMX": "_is_amx_tile_supported"}
    sets = [text for text, name in private.items() if getattr(torch.cpu, name, bool)()]
    if platform.machine().lower() in ("aarch64", "arm64"):
        with suppress(AttributeError, RuntimeError):
            sets += ["Arm BF16"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    return tuple(sets)


@cache
def bf16_speedup() -> float:
    """Returns the speedup of a matrix product on the CPU in bfloat16 over float32, measured in a tenth of a second."""
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
    """Returns a context manager for a forward pass: bfloat16 autocast for ``bf16``, nothing for ``fp32``."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(_kind(device), dtype=torch.bfloat16)


def compile_backbone(backbone: torch.nn.Module, device: str) -> None:
    """Compiles a transformer in place: on CUDA for inputs of one length, on other devices for any length."""
    backbone.compile(dynamic=_kind(device) != "cuda")


class GraphRecorder:
    """Records operations on a CUDA device as CUDA graphs, whose memory is shared; the operations run on one stream."""

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager in which operations run on the stream, after those before it and before those after it."""
        around = torch.cuda.current_stream()
        self._stream.wait_stream(around)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            around.wait_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that runs the operations of ``function`` on the same memory; nothing runs before."""
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                function()
        except BaseException:
            generator.graphsafe_set_state(before)  # the state of a failed recording cannot be used
            raise
        return graph.replay


def recorder_of(device: str) -> GraphRecorder | None:
    """Returns what records operations on a device, or None for a device without CUDA graphs."""
    return GraphRecorder(device) if _kind(device) == "cuda" else None


def fixed_length(device: str, compiled: bool, max_length: int) -> int | None:
    """Returns the length to which all batches are padded, or None if each is padded to its longest sentence."""
    return max_length if compiled and _kind(device) == "cuda" else None


def multiple_of_lengths(device: str) -> int:
    """Returns the number of which the lengths of all batches are multiples: 8 on CUDA, for fast matrix products."""
    return 8 if _kind(device) == "cuda" else 1


def for_transfer(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Returns a tensor that can be copied to the device asynchronously: for CUDA, a tensor in pinned memory."""
    return tensor.pin_memory() if _kind(device) == "cuda" else tensor


def copied_to(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Returns a tensor on the device, without waiting for the copy, except on ``mps``, where it could be freed."""
    return tensor.to(device, non_blocking=torch.device(device).type != "mps")


def on_device(values: npt.NDArray[Any], device: str) -> torch.Tensor:
    """Returns an array as a tensor on the device, without waiting for the copy to finish; see ``copied_to``."""
    return copied_to(for_transfer(torch.from_numpy(values), device), device)


def device_name(device: str) -> str:
    """Returns the name of a CUDA device, as its driver reports it; for other devices, the device itself."""
    return str(torch.cuda.get_device_name(device)) if _kind(device) == "cuda" else device


def describe_device(device: str, precision: str, reason: str) -> str:
    """Describes the device (of a GPU with its name), the precision and the reason for it, and the CPU threads."""
    name = device_name(device)
    named = "" if name == device else f"{name}, "
    count = torch.get_num_threads()
    return f"{device} ({named}{precision}: {reason}; {count} thread{'s' if count > 1 else ''})"


def generator_states(device: str) -> dict[str, torch.Tensor]:
    """Returns the states (uint8, on the CPU) of the generators that dropout uses, by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if (kind := _kind(device)) in GPUS:
        states[kind] = getattr(torch, kind).get_rng_state(*_number(device))
    return states


def restore_generators(states: dict[str, torch.Tensor], device: str) -> None:
    """Sets the states of PyTorch's generators; states of devices that are not in use are ignored."""
    torch.set_rng_state(states["cpu"])
    if (kind := _kind(device)) in GPUS and kind in states:
        getattr(torch, kind).set_rng_state(states[kind], *_number(device))


@contextmanager
def kept_generators(device: str) -> Iterator[None]:
    """Context manager at whose end PyTorch's generators have the states that they had at its beginning."""
    states = generator_states(device)
    try:
        yield
    finally:
        restore_generators(states, device)


def skips_by_flag(device: str | torch.device) -> bool:
    """Returns whether the fused AdamW of a device skips an update if ``found_inf`` is 1; on ``mps``, it does not."""
    return torch.device(device).type != "mps"


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that the memory of the CPU or of a GPU is used up."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(text in str(error) for text in NO_MEMORY)


def distributed_backend(device: str) -> str:
    """Returns the backend of torch.distributed for a device, which may be ``auto``."""
    kind = (_gpu_kind() or "cpu") if device == "auto" else device.partition(":")[0]
    if kind not in BACKENDS:
        raise InputError(f"--device {device}: only one process can train on {kind}; use --device cpu, or no torchrun")
    return BACKENDS[kind]


def use_gpu(backend: str, number: int) -> str:
    """Makes GPU ``number`` the current one of this process, and returns its kind; ``cpu`` with the backend ``gloo``."""
    if backend == BACKENDS["cpu"]:
        return "cpu"
    if number >= (count := torch.cuda.device_count()):
        raise InputError(f"torchrun --nproc-per-node: more processes than the {count} GPUs of this machine; lower it")
    torch.cuda.set_device(number)
    return "cuda"

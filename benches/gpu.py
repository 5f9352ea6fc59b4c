"""Tests and measures cse on one GPU in at most ten minutes, and writes the results to one JSON file.

    python benches/gpu.py --json gpu.json        # on a machine with an H100, an H200 or another CUDA device
    python benches/gpu.py --smoke --json f.json  # every section on the CPU with tiny sizes, in a minute

The sections, in this order:

agreement    loss and gradients of the first step on the GPU, in fp32 and in bf16, compared with fp32 on the CPU
             (without dropout)
tests        pytest -m "cuda and not slow"
steps        steps of a model of the size of BERT-base with random weights in bf16, eager (--no-graphs), recorded and
             compiled, standard and with UNA's pairs, 64 and 512 sentences: ms a step, the part of it in which Python
             starts kernels, time of the kernels, gaps between them, launches, peak memory, seconds before the first
             timed step, and the kernels that take longest
training     training of a model of the size of BERT-base with random weights in bf16: standard, focal, mixed, and
             standard with UNA's pairs at every step; the plain loop and sentence-transformers of benches/train.py
resume       whether a run resumed from a checkpoint has the bits of an uninterrupted one, with the default
             operations and with deterministic ones
compile      standard, UNA's pairs, and sentence-transformers with torch.compile
ranks        two processes (NCCL), if there are two GPUs: losses compared with those of one process

Of each trained system, the table gives ms and tokens a step (tokens of all views, without padding), tokens a second,
the share of the dense bf16 peak of the GPU (6 x matrix parameters x tokens operations), the share of the measured rate
of a matrix product, the fraction of the time for which the loop waits for a batch, and the peak memory of tensors. The
first steps are not timed. A section that fails is reported, and the others still run; the exit code is then 1. The JSON
file is written after each section, so an aborted run leaves the results so far.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import torch

import train as systems

ROOT = Path(__file__).resolve().parents[1]
# Dense bf16 peaks with accumulation in fp32, in TFLOP/s, from the vendor's data sheets (where these give the rate with
# sparsity, half of it). The first pattern that matches the name of the GPU applies.
PEAKS = {
    r"H200 NVL": 835.5,
    r"H200": 989.5,
    r"H100 NVL": 835.5,
    r"H100 PCIe": 756.5,
    r"H100": 989.5,
    r"GH200": 989.5,
    r"A100": 312.0,
    r"L40S": 362.1,
    r"RTX 4090": 165.2,
}
UNA = {"una": {"every": 1, "use_as": "pairs"}, "negatives": ("una",)}
LOSSES: dict[str, dict[str, Any]] = {
    "standard": {},
    "focal": {"loss": "focal"},
    "mixed": {"loss": "mixed"},
    "UNA pairs": UNA,
}
STEPS = {name: LOSSES[name] for name in ("standard", "UNA pairs")}  # also the losses of --smoke


class Bench:
    """The sections of the benchmark and their results.

    Args:
        options: The options of the command.
        folder: An empty folder for files.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        from cse.encoder.device import device_name

        self.options, self.folder = options, folder
        self.began = time.perf_counter()
        name = device_name(options.device)
        self.peak = peak_of(name)
        self.results: dict[str, Any] = {
            "device": name,
            "smoke": options.smoke,
            "batch_size": options.batch_size,
            "max_length": systems.LENGTH,
            "bf16_peak": self.peak,
            "versions": {"python": sys.version.split()[0], **versions()},
            "seconds": {},
            "errors": {},
            "left_out": {},
        }
        self.rows = systems.sentences(options.batch_size * options.steps)
        (folder / "model").mkdir()
        self.model = systems.random_model(options.model, str(folder / "model"))
        self.corpus = folder / "corpus.txt"
        self.corpus.write_text("\n".join(self.rows) + "\n", encoding="utf8")

    @property
    def left(self) -> float:
        """Seconds until the end of the time limit."""
        return float(60 * self.options.minutes - (time.perf_counter() - self.began))

    def section(self, name: str, run: Callable[[], Any], needs: float = 0.0) -> None:
        """Runs a section and stores its result; ``needs`` is its estimated time in seconds on a GPU."""
        if needs > self.left and not self.options.smoke:
            self.results["left_out"][name] = f"{self.left:.0f} s were left, and it needs about {needs:.0f} s"
        else:
            started = time.perf_counter()
            print(f"== {name}", flush=True)
            try:
                found = run()
                if isinstance(found, str):
                    self.results["left_out"][name] = found
                else:
                    self.results[name] = found
            except Exception as error:
                self.failed(name, error)
            self.results["seconds"][name] = round(time.perf_counter() - started, 1)
        if note := self.results["left_out"].get(name):
            print(f"{name}: left out: {note}", flush=True)
        gc.collect()
        self.save()

    def failed(self, name: str, error: Exception) -> None:
        """Stores the error of a section or a system, and prints it with its traceback."""
        self.results["errors"][name] = f"{type(error).__name__}: {error}"[:2000]
        traceback.print_exception(error)

    def save(self) -> None:
        """Writes the results to a temporary file, and renames it."""
        from cse.io import dumps, write_text

        if self.options.json:
            write_text(self.options.json, dumps(self.results, indent=2) + "\n")

    def config(self, **values: Any) -> Any:
        """Returns a configuration for this model and corpus."""
        from cse import TfidfIndex, TrainConfig

        if not (self.folder / "tfidf").exists():
            TfidfIndex.build(self.corpus).save(self.folder / "tfidf")
        settings = {
            "corpus": self.corpus,
            "model": self.model,
            "tfidf": self.folder / "tfidf",
            "output": self.folder / "runs",
            "device": self.options.device,
            "batch_size": self.options.batch_size,
            "max_length": systems.LENGTH,
            "dev": systems.write_pairs(str(self.folder), self.rows),
            "eval_every": 0,
            **systems.PLAIN,
            **systems.ADAM_FLAGS,
        }
        return TrainConfig(**{**settings, **values})

    def agreement(self) -> dict[str, dict[str, float]]:
        """Compares the first step with one on the CPU: relative error of the loss, and of the gradients as one vector.

        In fp32, raises ``AssertionError`` for an error above 1e-3.
        """
        found: dict[str, dict[str, float]] = {}
        for name, values in (STEPS if self.options.smoke else LOSSES).items():
            expected, loss = self.first_step(device="cpu", precision="fp32", **values)
            for precision in ("fp32", "bf16"):
                after, rounded = self.first_step(precision=precision, **values)
                errors = {
                    "loss": abs(rounded - loss) / max(abs(loss), 1e-12),
                    "gradients": float((after - expected).norm() / expected.norm()),
                    "cosine": float(torch.cosine_similarity(after.double(), expected.double(), dim=0)),
                }
                found[f"{precision}: {name}"] = errors
                print(f"{precision}: {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in errors.items()))
        wrong = [name for name, each in found.items() if name.startswith("fp32") and each["gradients"] > 1e-3]
        assert not wrong, f"gradients differ from those on the CPU: {wrong}"
        return found

    def first_step(self, **values: Any) -> tuple[torch.Tensor, float]:
        """Returns the gradients of the first step without dropout, as one vector on the CPU, and its loss."""
        from cse.training.batches.prepared import Prefetcher
        from cse.training.setup import prepare
        from cse.training.step.step import propagate

        run = prepare(self.config(batch_size=min(16, self.options.batch_size), **values))
        for module in run.state.modules().values():
            module.eval()
        with Prefetcher(run.batches, run.state.encoder.tokenizer, systems.LENGTH, device=run.device) as batches:
            metrics = propagate(run.state, batches.get(0)[0], run.forward)
        gradients = [p.grad.float().cpu().flatten() for p in run.state.weights().values() if p.grad is not None]
        return torch.cat(gradients), float(metrics["loss"])

    def training(self, compiled: bool) -> dict[str, Any] | str:
        """Times the systems, and prints their table."""
        from cse.encoder.device import bf16_instructions

        if compiled and self.options.smoke:
            return "not with --smoke, because compiling takes longer than a minute"
        self.options.compile = compiled
        precision = "bf16" if self.options.device != "cpu" or bf16_instructions() else "fp32"
        names = STEPS if compiled or self.options.smoke else LOSSES
        runs: dict[str, Any] = {f"cse, {name}": (systems.time_cse, LOSSES[name]) for name in names}
        if not compiled:
            runs["plain loop"] = (systems.time_plain, {})
        if all(map(find_spec, ("sentence_transformers", "datasets", "accelerate"))):
            runs[systems.THEIRS] = (systems.time_sentence_transformers, {})
        rates, found = self.rates(), {}
        print(SYSTEM_HEAD)
        for name, (function, values) in runs.items():
            if self.left < 0 and not self.options.smoke:
                break
            try:
                run = partial(function, self.model, self.rows, self.options, precision, **values)
                found[name] = self.timed(run, rates)
            except Exception as error:
                self.failed(f"{'compile' if compiled else 'training'}: {name}", error)
            else:
                print(table_row(name, found[name]), flush=True)
        return {"precision": precision, **rates, "systems": found}

    def rates(self) -> dict[str, float]:
        """Returns the number of matrix parameters of the model, and the measured FLOP/s of a matrix product."""
        encoder, _ = systems.load(self.model, "cpu")
        return {"parameters": systems.matrix_parameters(encoder), "flops": matrix_rate(self.options.device)}

    def timed(self, run: Callable[[], systems.Timing], rates: dict[str, Any]) -> dict[str, Any]:
        """Runs a system; returns its times and the figures of a row of the table."""
        gc.collect()
        if self.options.device != "cpu":
            torch.cuda.reset_peak_memory_stats()  # noqa: TID251
        with waits() as waited:
            timing = run()
        needed = 6 * rates["parameters"] * timing.tokens / timing.seconds
        steps = self.options.steps - self.options.warm

        def share(seconds: list[float]) -> float | None:
            return sum(seconds[self.options.warm :]) / (steps * timing.seconds) if seconds else None

        return {
            "seconds": timing.seconds,
            "tokens": timing.tokens,
            "tokens_per_second": timing.tokens / timing.seconds,
            "share_of_peak": needed / self.peak if self.peak else None,
            "share_of_measured": needed / rates["flops"],
            "wait_for_data": share(waited.loop),
            "device_waits": share(waited.device()),
            "peak_bytes": systems.peak(self.options.device),
        }

    def steps(self) -> dict[str, Any]:
        """Times and profiles steps of several kinds, the most important first, as long as there is time."""
        found: dict[str, Any] = {}
        kinds = {"eager": {"graphs": False}, "graphs": {"graphs": True}}
        kinds |= {"compile": {"graphs": False, "compile": True}, "graphs, compile": {"graphs": True, "compile": True}}
        sizes = (self.options.batch_size, 8 * self.options.batch_size)[: 1 if self.options.smoke else 2]
        plan = [
            (kind, size, name)
            for pair in (("eager", "graphs"), ("graphs, compile", "compile"))
            for size, kind, name in product(sizes, pair, STEPS)
        ]
        print(STEP_HEAD)
        for kind, size, name in plan:
            if ("compile" in kind and self.options.smoke) or self.left < (60 if "compile" in kind else 20):
                continue
            label = f"{kind}: {name}, {size}"
            try:
                each = found[label] = self.timed_steps(batch_size=size, **kinds[kind], **STEPS[name])
            except Exception as error:
                self.failed(f"steps: {label}", error)
            else:
                print(step_row(label, each), flush=True)
        return found

    def timed_steps(self, **values: Any) -> dict[str, Any]:
        """Returns the times of steps of a run, per step and in ms, without its evaluation and its log."""
        from cse.training.batches.prepared import Prefetcher
        from cse.training.callbacks import Callback
        from cse.training.loop import Trainer
        from cse.training.setup import prepare
        from cse.training.step.ranks import World

        gc.collect()
        if self.options.device != "cpu":
            torch.cuda.reset_peak_memory_stats()  # noqa: TID251
        warm, count, profiled = (5, 3, 2) if self.options.smoke else (12, 40, 4)
        began = time.perf_counter()
        run = prepare(self.config(precision="bf16", max_steps=warm + count + profiled, **values))
        run.state.train()
        step = Trainer(run, World(), Callback()).step
        tokenizer, length = run.state.encoder.tokenizer, run.settings.data.max_length
        compiled = run.settings.optimisation.compile
        with Prefetcher(run.batches, tokenizer, length, run.tokens, run.device, compiled) as batches:

            def perform(first: int, steps: int) -> tuple[float, float, float]:
                systems.sync(self.options.device)
                started = time.perf_counter()
                for number in range(first, first + steps):
                    step(batches.get(number), 1e-5)
                issued = time.perf_counter()
                systems.sync(self.options.device)
                return started, (issued - started) / steps, (time.perf_counter() - started) / steps

            perform(0, warm)
            started, host, whole = perform(warm, count)
            with torch.profiler.profile() as profiler:
                perform(warm + count, profiled)
        return {
            "ms": 1e3 * whole,
            "host": 1e3 * host,
            "start": started - began,
            "peak_bytes": systems.peak(self.options.device),
            **kernels(profiler, profiled, on_gpu=self.options.gpu),
        }

    def resume(self) -> dict[str, bool]:
        """Compares the weights of a resumed run, bit for bit, with those of an uninterrupted one, with dropout."""
        from cse import train
        from cse.training.loop import resumed_config

        found = {}
        for deterministic in (True,) if self.options.smoke else (False, True):
            label = "deterministic" if deterministic else "default"
            config = self.config(max_steps=4, save_every=2, keep_checkpoints=2, precision="bf16", **UNA)
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
            try:
                whole = train(config.replace(name=f"{label}-whole")).folder
                part = train(config.replace(name=f"{label}-part")).folder
                saved = part / "checkpoints" / "step-00000002"
                train(resumed_config(saved), resume=saved)
            finally:
                torch.use_deterministic_algorithms(False)
            found[label] = same_weights(whole, part)
            print(f"{label} operations: the resumed run {'equals' if found[label] else 'DIFFERS FROM'} the other")
        assert found["deterministic"], "a resumed run differs from an uninterrupted one with deterministic operations"
        return found

    def tests(self) -> dict[str, int]:
        """Runs the tests marked ``cuda``, without slow ones; raises ``AssertionError`` if one fails."""
        report = self.folder / "tests.xml"
        files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.cuda" in path.read_text(encoding="utf8")]
        workers = ["-n", "6"] if find_spec("xdist") and not self.options.smoke else []
        command = [sys.executable, "-m", "pytest", "-m", "cuda and not slow", "-q", *workers, f"--junit-xml={report}"]
        limit = max(self.left - 330, 60)  # leaves time for the sections that follow
        try:
            done = subprocess.run([*command, *map(str, files)], cwd=ROOT, env=environment(), check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pytest -m cuda did not end within {limit:.0f} s") from None
        suite = next(ElementTree.parse(report).iter("testsuite"))
        found = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
        print(found)
        assert done.returncode == 0, f"pytest -m cuda ended with exit code {done.returncode}: {found}"
        return found

    def ranks(self) -> dict[str, Any] | str:
        """Compares the losses of two processes with those of one, without dropout."""
        from cse import train

        if torch.cuda.device_count() < 2 and not self.options.smoke:  # noqa: TID251
            return "there is only one GPU"
        without = {"positive": "delete", "anchor_dropout": 0.0, "positive_dropout": 0.0}
        config = self.config(precision="fp32", max_steps=6, log_every=1, **without)
        one = logged(train(config.replace(name="ranks-1")).folder)
        path = self.folder / "ranks.toml"
        path.write_text(config.to_toml(), encoding="utf8")
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cse"]
        command = [sys.executable, "-m", *launch, "train", "--config", str(path), "--name", "ranks-2", "--json"]
        subprocess.run(command, check=True, env=environment(), timeout=240, stdout=subprocess.DEVNULL)
        two = logged(self.folder / "runs" / "ranks-2")
        error = max(abs(b - a) / max(abs(a), 1e-12) for a, b in zip(one, two, strict=True))
        print(f"losses of two processes: relative error {error:.2g}")
        assert error < 1e-2, f"losses of one and of two processes differ: {one}, {two}"
        return {"losses": [one, two], "largest_error": error}


def matrix_rate(device: str) -> float:
    """Measures the operations per second of a large matrix product, in the precision that ``auto`` selects."""
    from cse.encoder.device import pick_device, pick_precision

    name = pick_device(device)
    dtype = torch.bfloat16 if pick_precision(name, "auto")[0] == "bf16" else torch.float32
    size = 1024 if name == "cpu" else 8192
    a = torch.randn(size, size, device=name, dtype=dtype)
    best = math.inf
    for _ in range(4):
        started = time.perf_counter()
        float((a @ a)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def kernels(profiler: Any, steps: int, on_gpu: bool) -> dict[str, Any]:
    """Returns ms a step in kernels and in gaps between them, their number, and the ten that take longest."""
    kind = "CUDA" if on_gpu else "CPU"
    events = sorted((e for e in profiler.events() if e.device_type.name == kind), key=lambda e: e.time_range.start)
    busy = gaps = 0.0
    end = events[0].time_range.start if events else 0.0
    times: Counter[str] = Counter()
    for event in events:
        start, stop = event.time_range.start, event.time_range.end
        times[event.name] += (stop - start) / 1e3 / steps
        gaps += max(0.0, start - end)
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return {
        "kernels": busy / 1e3 / steps,
        "gaps": gaps / 1e3 / steps,
        "launches": len(events) / steps,
        "longest": {name[:90]: ms for name, ms in times.most_common(10)},
    }


class Waits:
    """For how long the training loop of cse waits for the batches of each step, and the device with it, in seconds.

    The loop starts steps before the device has ended those before them, so that it may wait while the device works.
    """

    def __init__(self) -> None:
        self.loop: list[float] = []
        self._marks: list[tuple[Any, Any]] = []  # in the queue of the device: before and after the wait of each step

    def add(self, get: Callable[[], Any], on_gpu: bool) -> Any:
        """Returns what ``get`` returns, and measures how long that takes."""
        event: Callable[..., Any] = torch.cuda.Event  # noqa: TID251
        marks = [event(enable_timing=True) for _ in range(2 * on_gpu)]
        for mark in marks[:1]:
            mark.record()
        started = time.perf_counter()
        batches = get()
        self.loop.append(time.perf_counter() - started)
        for mark in marks[1:]:
            mark.record()
            self._marks.append((marks[0], mark))
        return batches

    def device(self) -> list[float]:
        """Returns for how long the device had nothing to do meanwhile; a CPU computes nothing while the loop waits."""
        return [before.elapsed_time(after) / 1e3 for before, after in self._marks] or self.loop


@contextlib.contextmanager
def waits() -> Iterator[Waits]:
    """Context manager that measures the waits of the training loop of cse for batches; read after a synchronisation."""
    from cse.training.batches.prepared import Prefetcher

    found, get = Waits(), Prefetcher.get

    def timed(self: Any, step: int) -> Any:
        return found.add(lambda: get(self, step), self.device.startswith("cuda"))

    with patch.object(Prefetcher, "get", timed):
        yield found


def peak_of(name: str) -> float | None:
    """Returns the dense bf16 peak of a GPU in FLOP/s, or None if it is not in ``PEAKS``."""
    return next((1e12 * peak for pattern, peak in PEAKS.items() if re.search(pattern, name)), None)


def logged(run: Path) -> list[float]:
    """Returns the losses of the steps in the log of a run."""
    lines = map(json.loads, (run / "log.jsonl").read_text(encoding="utf8").splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def same_weights(first: Path, second: Path) -> bool:
    from safetensors.torch import load_file

    one, two = (load_file(run / "last" / "model.safetensors") for run in (first, second))
    return one.keys() == two.keys() and all(torch.equal(values, two[name]) for name, values in one.items())


# The heads of the two tables.
STEP_HEAD = "| step | ms | host | kernels | gaps | launches | peak GB | start s |\n| --- |" + " ---: |" * 7
SYSTEM_HEAD = (
    "| system | ms a step | tokens a step | tokens/s | share of peak | of measured | wait | peak GB |\n"
    "| --- |" + " ---: |" * 7
)


def step_row(label: str, found: dict[str, Any]) -> str:
    times = " | ".join(f"{found[key]:.1f}" for key in ("ms", "host", "kernels", "gaps"))
    return f"| {label} | {times} | {found['launches']:,.0f} | {found['peak_bytes'] / 1e9:.1f} | {found['start']:.0f} |"


def table_row(name: str, found: dict[str, Any]) -> str:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    return (
        f"| {name} | {1000 * found['seconds']:,.1f} | {found['tokens']:,.0f} | {found['tokens_per_second']:,.0f} | "
        f"{percent(found['share_of_peak'])} | {percent(found['share_of_measured'])} | "
        f"{percent(found['wait_for_data'])} | {found['peak_bytes'] / 1e9:.1f} |"
    )


def versions() -> dict[str, str]:
    found = {}
    for name in ("cse", "torch", "transformers", "sentence-transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def environment() -> dict[str, str]:
    """Returns the environment of processes that this program starts, which import the same cse."""
    import cse

    paths = [str(Path(cse.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="default: cuda, or cpu with --smoke")
    parser.add_argument("--smoke", action="store_true", help="run every section on the CPU with tiny sizes")
    parser.add_argument("--batch-size", type=int, help="default: 64, or 8 with --smoke")
    parser.add_argument("--steps", type=int, help="default: 120, or 4 with --smoke")
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit")
    parser.add_argument("--json", type=Path, help="file to which the results are written")
    options = parser.parse_args()
    smoke = options.smoke
    options.device = options.device or ("cpu" if smoke else "cuda")
    options.model = "random-tiny" if smoke else "random-bert"
    options.batch_size = options.batch_size or (8 if smoke else 64)
    options.steps = options.steps or (4 if smoke else 120)
    options.warm, options.gpu, options.emulate = (1 if smoke else 20), options.device != "cpu", False
    if options.steps <= options.warm:
        parser.error(f"--steps: the first {options.warm} steps are not timed; give more steps")
    from cse.encoder.device import pick_device
    from cse.errors import InputError

    try:
        pick_device(options.device)
    except InputError as error:
        sys.exit(f"{error}; with --smoke, all sections run on the CPU")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        bench.section("agreement", bench.agreement, 40)
        bench.section("tests", bench.tests, 60)
        bench.section("steps", bench.steps, 60)
        bench.section("training", partial(bench.training, compiled=False), 60)
        bench.section("resume", bench.resume, 40)
        bench.section("compile", partial(bench.training, compiled=True), 60)
        bench.section("ranks", bench.ranks, 60)
    print(f"{(time.perf_counter() - bench.began) / 60:.1f} minutes on {bench.results['device']}")
    if bench.results["errors"]:
        sys.exit(f"failed: {bench.results['errors']}")


if __name__ == "__main__":
    main()

"""One whole run: from a corpus to scores on the STS sets, in one lease of a GPU.

    python benches/whole.py CORPUS ... --sts DIR --base MODEL|FILE.zip --json whole.json [--seconds 540] [--work DIR]
                            [--parts NAME ...]
    python benches/whole.py --smoke --json FILE        400 sentences, 30 steps of 8, on the CPU, without compile

CORPUS are one or more plain text files, which may be compressed. The parts, in this order: the index (``build-tfidf``,
without the matrix); the base model on the STS sets (``before``); for each of the losses focal, standard and mixed, with
``--una``, one epoch of batches of 64 rows of 32 tokens, and the STS sets again, with the difference and its interval
(``una LOSS``); 300 steps of ``sentence-transformers``' trainer; 200 steps of 1,024 rows with ``--chunk-size 16``
(``chunks``), and of 64 with ``--compile`` (``compile``); and whether a run of 200 steps that is killed after a half,
and resumed, logs the losses of an uninterrupted one, with deterministic operations (``resume``). ``--parts`` names the
parts to run beside the first two. A part is begun only if it can end before ``--seconds`` minus 60, by the rate of the
first run; a run that would not end is stopped as by a signal. The JSON file is written after each part.

Of each run: seconds from the start of the process, rows a second, ms a step (median and 99th percentile, over groups of
ten steps, after which the loop reads the metrics), the shares of the time for which the loop waits for batches and the
device has nothing to do meanwhile, and the peak memory of tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()  # before the imports that take seconds

import numpy as np  # noqa: E402
import torch  # noqa: E402

import train as systems  # noqa: E402
from gpu import logged, waits  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
LOSSES = ("focal", "standard", "mixed")
PARTS = (*(f"una {loss}" for loss in LOSSES), "sentence-transformers", "chunks", "compile", "resume")
LENGTH, GROUP = 32, 10
RESERVE = 60.0  # seconds before the limit at which everything has ended
SCORING = 30.0  # seconds that the scores of a model take at most


class Whole:
    """The parts, and what they found so far."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work, self.short = options, work, 6 if options.smoke else 200
        self.found: dict[str, Any] = {"parts": {}, "errors": {}}
        self.rate: float | None = None  # seconds of a step of the first run

    def left(self) -> float:
        """Returns the seconds until everything must have ended."""
        return float(self.options.seconds) - RESERVE - (time.perf_counter() - BEGAN)

    def part(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """Runs a part, and stores what it returns, its seconds, and when it ended."""
        began = time.perf_counter()
        try:
            record = run()
        except Exception as error:
            self.found["errors"][name] = "".join(traceback.format_exception(error))[-2000:]
        else:
            now = time.perf_counter()
            self.found["parts"][name] = {"seconds": now - began, "ended": now - BEGAN, **record}
            print(f"{name}: {json.dumps(self.found['parts'][name])[:300]}", flush=True)
        self.options.json.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf8")

    def index(self) -> dict[str, Any]:
        from cse.tfidf.build import build_index

        info, _, _ = build_index(self.options.corpus, self.work / "tfidf", matrix=False)
        return {"rows": info.rows, "terms": info.terms}

    def scores(self, model: str) -> Any:
        from cse.evaluation.run import evaluate

        plain = model == self.base and not (Path(model) / "modules.json").exists() and model != "minilm"
        about: dict[str, Any] = {"pooler": "cls_before_pooler"} if plain else {}
        return evaluate(model, "sts", self.options.sts, device=self.options.device, allow_partial=True, **about)

    def before(self) -> dict[str, Any]:
        self.first = self.scores(self.base)
        report = self.first.reports["sts"]
        tasks = {row["task"]: row["spearman"] for row in report.rows}
        return {"average": report.summary["average_of_seven"], "tasks": tasks}

    def config(self, name: str, **changes: Any) -> Any:
        """Returns the configuration of a run with ``--una``."""
        from cse import TrainConfig

        values: dict[str, Any] = {
            "corpus": tuple(self.options.corpus),
            "tfidf": str(self.work / "tfidf"),
            "model": self.base,
            "una": True,
            "batch_size": self.options.batch,
            "max_length": LENGTH,
            "epochs": 1,
            "max_steps": self.options.steps,
            "eval_every": 0,
            "log_every": GROUP,
            "device": self.options.device,
            "output": str(self.work / "runs"),
            "name": name,
        }
        return TrainConfig(**values | changes)

    def run(self, name: str, scores: bool = True, **changes: Any) -> dict[str, Any]:
        from cse import train
        from cse.errors import Interrupted
        from cse.training.callbacks import Callback

        device = self.options.device

        class Clock(Callback):
            def __init__(self) -> None:
                self.times: list[tuple[int, float]] = []
                self.losses: list[float] = []

            def on_log(self, records: Sequence[dict[str, Any]]) -> None:
                systems.sync(device)
                self.times.append((records[-1]["step"], time.perf_counter()))
                self.losses += [record["loss"] for record in records]

        clock = Clock()
        timer = threading.Timer(max(self.left() - SCORING, 1.0), os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        stopped = False
        with waits() as waited:
            try:
                train(self.config(name, **changes), clock)
            except Interrupted:
                stopped = True
            finally:
                timer.cancel()
        steps, times = (np.array(each, dtype=np.float64) for each in zip(*clock.times, strict=True))
        groups = np.diff(times) / np.maximum(np.diff(steps), 1) if len(times) > 1 else np.array([np.nan])
        trained = times[-1] - times[0] if len(times) > 1 else np.nan
        self.rate = self.rate or float(np.median(groups))
        if not all(map(np.isfinite, clock.losses)):
            raise ValueError("a loss is not finite")
        last = int(steps[-1])
        record = {
            "steps": last,
            "stopped": stopped,
            "rows a second": float(changes.get("batch_size", self.options.batch) * (last - steps[0]) / trained),
            "ms a step": [1000 * float(np.quantile(groups, share)) for share in (0.5, 0.99)],
            "waits": float(sum(waited.loop[int(steps[0]) :]) / trained),
            "device waits": float(sum(waited.device()[int(steps[0]) :]) / trained),
            "peak bytes": systems.peak(device),
            "loss": [float(np.mean(part)) for part in (clock.losses[:GROUP], clock.losses[-GROUP:])],
        }
        return {**record, **(self.after(self.work / "runs" / name / ("last" if stopped else "best")) if scores else {})}

    def chunks(self) -> dict[str, Any]:
        size, rows = (2, 4) if self.options.smoke else (16, 1024)
        return {"batch_size": rows, "chunk_size": size, "max_steps": self.short}

    def resumed(self) -> dict[str, Any]:
        """Kills a run in the middle of its epoch, in a process of its own, and resumes it."""
        from cse import train
        from cse.training.folder.stored import resumed_config

        half = self.short // 2
        killed, whole = self.work / "runs" / "killed", self.work / "runs" / "uninterrupted"
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            train(self.config("uninterrupted", max_steps=self.short, save_every=half, log_every=1))
            with subprocess.Popen([sys.executable, __file__, "--train", str(whole), killed.name]) as process:
                while process.poll() is None and not list(killed.glob("checkpoints/step-????????")):
                    time.sleep(0.01)
                time.sleep(0.1)  # some steps later
                process.kill()
            if process.returncode == 0:
                raise ValueError("the run ended before it was killed")
            train(resumed_config(killed), resume=killed)
        finally:
            torch.use_deterministic_algorithms(False)
        one, two = logged(whole), logged(killed)
        return {"steps": [len(one), len(two)], "largest difference": float(np.abs(np.subtract(one, two)).max())}

    def after(self, model: Path) -> dict[str, Any]:
        from cse.evaluation.run import compare_results

        result = self.scores(str(model))
        (found,) = compare_results([[self.first], [result]], False)
        tasks = {task["task"]: [task["a"], task["b"], task.get("low"), task.get("high")] for task in found.tasks}
        return {"average": result.reports["sts"].summary["average_of_seven"], "tasks": tasks}

    def others(self) -> dict[str, Any]:
        from cse.data.corpus import Corpus
        from cse.encoder.device import pick_precision

        steps = min(300, self.options.steps or 300)
        corpus = Corpus.open(list(self.options.corpus))
        about = {"steps": steps, "warm": min(20, steps // 2), "compile": False, "emulate": False}
        options = argparse.Namespace(device=self.options.device, batch_size=self.options.batch, **about)
        precision = pick_precision(self.options.device, "auto")[0]
        rows = corpus.take(range(min(len(corpus), self.options.batch * steps)))
        timing = systems.time_sentence_transformers(self.base, rows, options, precision)
        return {"steps": steps, **timing._asdict()}

    def all(self) -> None:
        self.base = str(self.options.base)
        if self.base.endswith(".zip"):
            from cse_papers.reproduce.base_file import unpack

            self.base = str(unpack(Path(self.base), self.work / "base"))
        from cse.encoder.device import device_name, pick_device

        self.options.device = pick_device(self.options.device)
        self.found |= {"device": device_name(self.options.device), "base": Path(self.base).name}
        self.part("index", self.index)
        self.part("before", self.before)
        epoch = self.options.steps or self.found["parts"].get("index", {}).get("rows", 0) // self.options.batch
        parts: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {  # with the steps that they take
            **{f"una {loss}": (epoch, partial(self.run, loss, loss=loss)) for loss in LOSSES},
            "sentence-transformers": (self.short, self.others),
            "chunks": (16 * self.short, partial(self.run, "chunks", False, **self.chunks())),
            "compile": (self.short, partial(self.run, "compile", False, compile=True, max_steps=self.short)),
            "resume": (3 * self.short, self.resumed),
        }
        for name in self.options.parts:
            steps, run = parts[name]
            needed = (self.rate or 0.0) * steps + 2 * SCORING
            if self.options.smoke and name == "compile":
                continue  # it takes minutes on a CPU
            if self.left() > needed or self.options.smoke:
                self.part(name, run)
            else:
                self.found["errors"][name] = f"not begun: {needed:.0f} s needed, {self.left():.0f} left"
        self.found["seconds"] = time.perf_counter() - BEGAN
        self.options.json.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf8")


def smoke(options: argparse.Namespace, work: Path) -> None:
    """Sets the options of a small run on the installed sentences."""
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")[:400]
    (work / "corpus.txt").write_text("\n".join(sample) + "\n", encoding="utf8")
    (work / "sts").mkdir()
    pairs = [f"{number % 6}\t{sample[number]}\t{sample[number + 300]}\tx" for number in range(40)]
    (work / "sts" / "stsb.test.tsv").write_text("\n".join(pairs) + "\n", encoding="utf8")
    options.corpus, options.sts, options.device = [str(work / "corpus.txt")], str(work / "sts"), "cpu"
    options.steps, options.batch = 30, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--sts")
    parser.add_argument("--base", default="minilm")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--steps", type=int, help="steps of each run; default: one epoch")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--parts", nargs="+", metavar="NAME", choices=PARTS, default=PARTS)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)  # a run, and the name of its repetition
    options = parser.parse_args()
    if options.train:
        from cse import TrainConfig, train

        torch.use_deterministic_algorithms(True, warn_only=True)
        train(TrainConfig.from_toml(Path(options.train[0]) / "config.toml").replace(name=options.train[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        if options.smoke:
            smoke(options, work)
        if not options.corpus or options.sts is None or options.json is None:
            parser.error("name CORPUS, --sts DIR and --json FILE, or --smoke and --json FILE")
        whole = Whole(options, work)
        whole.all()
    raise SystemExit(bool(whole.found["errors"]))


if __name__ == "__main__":
    main()

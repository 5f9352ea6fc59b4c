"""Measures the time to the first batch and the memory of a training run on a large corpus with cached rows.

    python benches/start.py    # ten million sentences need 3 GB of temporary files; use --sentences 1000000 for fewer
    python benches/start.py --first-step    # only the time from the start of a process to the end of the first step

The text is generated as in growth.py. The first run writes the rows to the cache; the rows of its first batch are
compared with the lines of the file. After that, each of ``--rounds`` new processes prepares two runs up to their
first batches: one on the sample corpus, so that all imports are done, and then one on the large corpus. Only the latter
is timed. Then a loop over ten million integers is timed, to show how busy the machine is.

Two further processes train for a few steps, one on the sample and one on the large corpus. The difference between their
peaks of anonymous resident memory (Linux) is the memory that the rows of the large corpus need.

``--first-step`` trains on the sample corpus (10,000 sentences) in ``--rounds`` new processes. It prints when the
packages were imported, the run was prepared, its 500 held-out sentences were evaluated, and the first step ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

from cse import Callback, TrainConfig, train
from cse.training.batches.tokens import Prefetcher
from cse.training.run import Run
from cse.training.setup import prepare
from growth import BLOCK, append, say

SAMPLE = str(files("cse") / "resources" / "sample.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=10_000_000, help=f"a multiple of {BLOCK:,}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--first-step", action="store_true", help="measure only the time to the end of the first step")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "CORPUS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, corpus = options.child
        print(json.dumps({"write": write, "start": start, "peak": peak, "step": first_step}[what](corpus, options)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.folder = Path(folder)
        print(phases(options) if options.first_step else report(Path(folder), options))


def child(what: str, corpus: str | Path, options: argparse.Namespace) -> Any:
    """Calls the function of this name in a new process; returns its result."""
    arguments = ["--child", what, str(corpus), "--folder", str(options.folder), "--model", options.model]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def phases(options: argparse.Namespace) -> str:
    rounds = []
    for _ in range(options.rounds):
        started = time.time()
        ends = child("step", SAMPLE, options)
        rounds.append({phase: end - started for phase, end in ends.items()})
    lines = []
    for phase in rounds[0]:
        seconds = [times[phase] for times in rounds]
        lines.append(f"{phase}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    return "\n".join([f"after the start of the process, in {len(rounds)} processes:", *lines])


def report(folder: Path, options: argparse.Namespace) -> str:
    corpus = folder / "corpus.txt"
    say(f"{options.sentences:,} sentences made in {append(corpus, 0, options.sentences, 0):.0f} s")
    wrote = child("write", corpus, options)
    assert wrote["rows"] == options.sentences
    check(corpus, wrote["first batch"])
    taken, loops = zip(*(child("start", corpus, options) for _ in range(options.rounds)), strict=True)
    small, large = child("peak", SAMPLE, options), child("peak", corpus, options)
    return "\n".join(
        [
            f"{options.sentences:,} sentences, {corpus.stat().st_size:,} bytes; first start: {wrote['seconds']:.1f} s",
            f"from the end of the imports to the first batch: {statistics.median(taken):.2f} s "
            f"({min(taken):.2f} to {max(taken):.2f} in {len(taken)} processes); "
            f"a loop over ten million integers: {statistics.median(loops):.2f} s, {min(loops):.2f} to {max(loops):.2f}",
            f"peak anonymous memory: {large:,.0f} MB, {large - small:,.0f} MB more than with the sample corpus",
        ]
    )


def check(corpus: Path, batch: dict[str, str]) -> None:
    """Checks that the texts of a batch equal the lines of the file with the same row numbers."""
    wanted = {int(row): text for row, text in batch.items()}
    assert wanted
    with open(corpus, encoding="utf8", newline="\n") as file:
        for row, line in enumerate(file):
            if row in wanted:
                assert wanted.pop(row) == line.rstrip("\n"), f"row {row}"
    assert not wanted


def configuration(corpus: str, options: argparse.Namespace) -> TrainConfig:
    folder = options.folder
    return TrainConfig(
        corpus=corpus,
        model=options.model,
        output=str(folder / "runs"),
        cache=str(folder / "cache"),
        max_steps=4,
        eval_every=0,
        device="cpu",
    )


def first_batch(corpus: str, options: argparse.Namespace) -> tuple[Run, dict[str, str]]:
    run = prepare(configuration(corpus, options))
    with Prefetcher(run.batches, run.state.encoder.tokenizer, run.settings.data.max_length) as prefetcher:
        batch = prefetcher.get(0)[0]
    texts = run.batches.corpus.take(batch.rows)
    return run, {str(row): text for row, text in zip(batch.rows, texts, strict=True)}


def write(corpus: str, options: argparse.Namespace) -> dict[str, Any]:
    """Prepares the run, which caches the rows; returns the number of rows, the first batch, and the elapsed seconds."""
    started = time.perf_counter()
    run, texts = first_batch(corpus, options)
    return {
        "rows": len(run.batches.corpus),
        "first batch": texts,
        "seconds": time.perf_counter() - started,
    }


def start(corpus: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the seconds that a run needs to its first batch, after another was prepared, and that a loop needs."""
    first_batch(SAMPLE, options)
    started = time.perf_counter()
    first_batch(corpus, options)
    ended = time.perf_counter()
    total = 0
    for i in range(10_000_000):
        total += i
    return ended - started, time.perf_counter() - ended


def first_step(corpus: str, options: argparse.Namespace) -> dict[str, float]:
    """Trains one step; returns when each phase ended, in seconds since the epoch."""
    ends = {"imported": time.time()}

    class Clock(Callback):
        def on_train_begin(self, run: Run) -> None:
            ends["prepared"] = time.time()

        def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
            ends.setdefault("evaluated", time.time())

        def on_step_end(self, step: int, steps: int) -> None:
            ends["first step"] = time.time()

    train(configuration(corpus, options).replace(max_steps=1), Clock())
    return ends


def peak(corpus: str, options: argparse.Namespace) -> float:
    """Returns the peak anonymous resident memory of a short run, in MB."""
    found, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            status = Path("/proc/self/status").read_text()
            found.append(int(status.split("RssAnon:")[1].split()[0]) * 1024 / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        train(configuration(corpus, options))
    finally:
        ended.set()
        watcher.join()
    return max(found)


if __name__ == "__main__":
    main()

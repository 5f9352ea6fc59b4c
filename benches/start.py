"""Measures the time to the first batch and the memory of a training run on a large corpus with cached rows.

    python benches/start.py    # ten million sentences need 3 GB of temporary files; use --sentences 1000000 for fewer

The text is generated as in growth.py. The first run writes the rows to the cache; the rows of its first batch are
compared with the lines of the file. After that, each of ``--rounds`` new processes prepares two runs up to their
first batches: one on the sample corpus, so that all imports are done, and then one on the large corpus. Only the latter
is timed. Then a loop over ten million integers is timed, to show how busy the machine is.

Two further processes train for a few steps, one on the sample and one on the large corpus. The difference between their
peaks of anonymous resident memory (Linux) is the memory that the rows of the large corpus need.
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

from cse import TrainConfig, train
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
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "CORPUS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, corpus = options.child
        print(json.dumps({"write": write, "start": start, "peak": peak}[what](corpus, options)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(report(Path(folder), options))


def report(folder: Path, options: argparse.Namespace) -> str:
    corpus = folder / "corpus.txt"
    say(f"{options.sentences:,} sentences made in {append(corpus, 0, options.sentences, 0):.0f} s")

    def child(what: str, corpus: str | Path) -> Any:
        arguments = ["--child", what, str(corpus), "--folder", str(folder), "--model", options.model]
        done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    wrote = child("write", corpus)
    assert wrote["rows"] == options.sentences
    check(corpus, wrote["first batch"])
    taken, loops = zip(*(child("start", corpus) for _ in range(options.rounds)), strict=True)
    small, large = child("peak", SAMPLE), child("peak", corpus)
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
    with Prefetcher(run.batches, run.state.encoder.tokenizer, run.config.max_length) as prefetcher:
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

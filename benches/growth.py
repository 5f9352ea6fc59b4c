"""Measures time and memory of `cse build-tfidf --no-matrix` by corpus size, for 10,000 to 10 million sentences.

    python benches/growth.py                 # needs 1.2 GB of temporary files; --max 300000 for a short run

The text is generated, so that its distribution is the same at every size. Words are sampled independently from a Zipf
distribution with two slopes: 1 up to a certain rank (the knee), and steeper beyond it. Gerlach and Altmann measured
this shape for English (Physical Review X 3, 021006, 2013). The vocabulary is unbounded and grows by Heaps' law, whose
exponent is measured and printed. Knee and slope are chosen so that 10,000 sentences have about as many terms as
10,000 sentences of Wikipedia.

Sentences are appended to one file. At each size, the command is measured on this file: the wall time of the process
from start to exit, and its peak resident memory (wait4). First, the numbers of rows, words and terms at the smallest
size are compared with a count in Python. Exponents are the slopes of log(cost - cost for a one-row corpus) against
log(size), fitted to sizes of at least 100,000 sentences. The cost for a one-row corpus is the constant cost of starting
Python and of imports.

Writes benches/results/growth.json and prints a table. growth_ray.py measures commands on a Ray cluster with the same
text.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "growth.json"
CSE = [sys.executable, "-c", "from cse.cli import main; main()"]
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
FIT_FROM = 100_000
BLOCK = 10_000  # sentences generated at a time, with a seed for each block; every size is a multiple of it
KNEE, SLOPE = 7_873, 1.77
LETTERS, STEMS = b"etaonisrhlducmpg", b"theandforwasonebutnotyouallcanherhimshehadouttwo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max", type=int, default=SIZES[-1], help="the maximum number of sentences")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--largest-once", action="store_true", help="measure the largest size only once")
    parser.add_argument("--augment", action="store_true", help="also measure cse augment, with the index of each size")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.max]
    if not sizes:
        parser.error(f"--max: is too small; give at least {SIZES[0]}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = grow(Path(folder), sizes, options)
    found["exponents"] = exponents(found)
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def grow(folder: Path, sizes: list[int], options: argparse.Namespace) -> dict[str, Any]:
    corpus, one = folder / "corpus.txt", folder / "one.txt"
    one.write_text("the\n")
    points = [{"sentences": 1, **measure(one, folder, options.repeat, options.augment)}]
    before = 0
    # The text is generated in a separate process, because the peak memory of a child includes its parent's.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as maker:
        for size in sizes:
            seconds = maker.submit(append, corpus, before, size, options.seed).result()
            say(f"{size - before:,} sentences made in {seconds:.1f} s ({(size - before) / seconds:,.0f}/s)")
            if size == sizes[0]:
                counted = maker.submit(count, corpus).result()
                said = json.loads(run("build-tfidf", corpus, "-o", folder / "tfidf", "--no-matrix", "--json")[2])
                assert (said["rows"], said["tokens"], said["terms"]) == counted, (said, counted)
            repeat = 1 if options.largest_once and size == sizes[-1] else options.repeat
            points.append({"sentences": size, **measure(corpus, folder, repeat, options.augment)})
            say(f"{size:,}: {json.dumps(points[-1])}")
            before = size
    return {
        "machine": {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()},
        "seed": options.seed,
        "one row": points[0],
        "sizes": points[1:],
    }


def append(corpus: Path, start: int, end: int, seed: int) -> float:
    """Appends sentences `start` to `end - 1` of the generated text to the file; returns the elapsed seconds."""
    import numpy as np

    started = time.perf_counter()
    with open(corpus, "ab") as file:
        for block in range(start // BLOCK, end // BLOCK):
            file.write(sentences(np.random.default_rng([seed, block])))
        file.flush()
        os.fsync(file.fileno())  # otherwise, the text may be written to disk while the commands are timed
    return time.perf_counter() - started


def sentences(rng: Any) -> bytes:
    """Returns a block of lines with 21 words on average (standard deviation 10), as in Wikipedia."""
    import numpy as np

    lengths = 1 + rng.gamma(4, 5, BLOCK).round().astype(np.int64)
    ends = np.cumsum(lengths) - 1
    ranks = draw(rng.random(ends[-1] + 1))
    # A word is its rank in base 16, with the lowest digit first. The lowest digit is written as three letters, and each
    # further digit as one letter, so the most frequent words have 3 letters, and the word of rank 1,000,000 has 7. A
    # row of the array is a word and its separator; unused bytes are 0 and removed at the end.
    letters, stems = np.frombuffer(LETTERS, np.uint8), np.frombuffer(STEMS, np.uint8).reshape(16, 3)
    words = np.zeros((len(ranks), 16), np.uint8)
    words[:, :3] = stems[ranks & 15]
    words[:, 15] = ord(" ")
    words[ends, 15] = ord("\n")
    rest, at, column = ranks >> 4, np.arange(len(ranks)), 3
    while len(at := at[(some := rest > 0)]):
        rest = rest[some]
        words[at, column] = letters[rest & 15]
        rest, column = rest >> 4, column + 1
    return words.tobytes().translate(None, delete=b"\0")


def draw(uniform: Any) -> Any:
    """Converts uniform numbers to word ranks of density C/x up to the knee, and C/knee * (x/knee)^-slope beyond it."""
    import numpy as np

    c = 1 / (math.log(KNEE) + 1 / (SLOPE - 1))
    head = c * math.log(KNEE)
    x = np.exp(np.minimum(uniform, head) / c)
    beyond = np.flatnonzero(uniform > head)
    x[beyond] = KNEE * ((1 - uniform[beyond]) / (1 - head)) ** (-1 / (SLOPE - 1))
    return np.minimum(x, 2.0**52 - 1).astype(np.int64)  # at most 13 digits; about one rank in 10^10 is capped


def count(corpus: Path) -> tuple[int, int, int]:
    """Counts rows, words and terms in Python; words are ASCII letters, for which all tokenizers agree."""
    rows = words = 0
    terms: set[str] = set()
    with open(corpus, encoding="ascii", newline="\n") as file:
        for row in file:
            split = row.split()
            rows, words = rows + 1, words + len(split)
            terms.update(split)
    return rows, words, len(terms)


def measure(corpus: Path, folder: Path, repeat: int, augment: bool) -> dict[str, Any]:
    """Returns the size and counts of the corpus, and each command's times and peak memory (maximum over the runs)."""
    tfidf, out = folder / "tfidf", folder / "negatives.txt"
    builds = [run("build-tfidf", corpus, "-o", tfidf, "--no-matrix", "--json") for _ in range(repeat)]
    said = json.loads(builds[0][2])
    found = {"bytes": corpus.stat().st_size, "words": said["tokens"], "terms": said["terms"], "build": taken(builds)}
    if augment:
        found["augment"] = taken([run("augment", corpus, "-o", out, "--tfidf", tfidf, "--json") for _ in range(repeat)])
        out.unlink()
    return found


def taken(runs: list[tuple[float, float, str]]) -> dict[str, Any]:
    return {"seconds": [seconds for seconds, _, _ in runs], "peak_mb": max(peak for _, peak, _ in runs)}


def run(*arguments: object) -> tuple[float, float, str]:
    """Runs a `cse` command; returns its wall time, its peak resident memory in MB, and its standard output."""
    with tempfile.TemporaryFile("w+") as out:  # a pipe would not be read during wait4
        started = time.perf_counter()
        child = subprocess.Popen([*CSE, *map(str, arguments)], stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, child.args)
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert usage.ru_maxrss > ours, "the measured peak may be that of this process, not of the command"
        out.seek(0)
        return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6, out.read()


def exponents(found: dict[str, Any]) -> dict[str, float]:
    """Returns the exponents, fitted to sizes of at least FIT_FROM; empty if there are fewer than two such sizes."""
    one, sizes = found["one row"], [point for point in found["sizes"] if point["sentences"] >= FIT_FROM]
    if len(sizes) < 2:
        return {}
    rows = [point["sentences"] for point in sizes]
    fitted = {"terms against words": slope([p["words"] for p in sizes], [p["terms"] for p in sizes])}
    for command in ("build", "augment"):
        if command in one:
            base, costs = one[command], [point[command] for point in sizes]
            spent = [middle(cost) - middle(base) for cost in costs]
            held = [cost["peak_mb"] - base["peak_mb"] for cost in costs]
            fitted[f"{command}: time against sentences"] = slope(rows, spent)
            fitted[f"{command}: memory against sentences"] = slope(rows, held)
    return fitted


def slope(x: list[float], y: list[float]) -> float:
    return statistics.linear_regression([math.log(v) for v in x], [math.log(max(v, 1e-9)) for v in y]).slope


def middle(cost: dict[str, Any]) -> float:
    seconds: list[float] = cost["seconds"]
    return statistics.median(seconds)


def table(found: dict[str, Any]) -> str:
    commands = [command for command in ("build", "augment") if command in found["one row"]]
    heads = ["sentences", "bytes", "terms"]
    for command in commands:
        heads += [f"{command}, s", "sentences/s", "peak MB"]
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * len(heads)}"]
    for point in [found["one row"], *found["sizes"]]:
        cells = [f"{point[key]:,}" for key in ("sentences", "bytes", "terms")]
        for command in commands:
            seconds = middle(point[command])
            cells += [f"{seconds:.2f}", f"{point['sentences'] / seconds:,.0f}", f"{point[command]['peak_mb']:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{name}: {value:.3f}" for name, value in found["exponents"].items())])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

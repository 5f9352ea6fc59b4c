"""Compares the speed of the Rust core with that of other implementations, in one run on one machine.

    python benches/core.py corpus.txt        # plain text, one sentence per line

Results are checked before anything is timed. On the first 20,000 rows, document frequencies must equal those of
scikit-learn; on the first 100 rows, negatives must equal those of the reference implementation in Python; on the whole
file, the numbers of documents and terms must equal those of the program rust/examples/std_loop.rs, which this script
builds with cargo. Commands are timed as whole processes, from start to exit. Their times are medians of --repeat runs,
and are also given relative to `wc -w` on the same file. nlpaug is included if it is installed. The script writes
benches/results/core.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "core.json"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # for the reference implementation
CSE = [sys.executable, "-c", "from cse.cli import main; main()"]
SOME = 20_000  # rows for the checks and for ``TfidfIndex.augment``
FEW = 2_000  # rows for the reference implementation in Python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with open(options.corpus, encoding="utf8", newline="\n") as file:
        rows = [row.rstrip("\n") for row in islice(file, SOME)]
    loop = build_loop()
    with tempfile.TemporaryDirectory() as folder:
        check(rows, Path(folder))
        check_loop(loop, options.corpus)
        found = measure(options.corpus, rows, Path(folder), options.repeat, loop)
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def check(rows: list[str], folder: Path) -> None:
    """Checks document frequencies against scikit-learn, and 100 negatives against the reference implementation."""
    import numpy as np
    from sklearn.feature_extraction.text import CountVectorizer

    from cse import TfidfIndex
    from una_reference import ReferenceIndex

    (folder / "some.txt").write_text("\n".join(rows), encoding="utf8", newline="\n")
    index = TfidfIndex.build(folder / "some.txt", tokenizer="whitespace")
    counter = CountVectorizer(tokenizer=str.split, token_pattern=None, binary=True)
    df = np.asarray(counter.fit_transform(rows).sum(axis=0)).ravel()
    assert counter.get_feature_names_out().tolist() == index.terms
    assert df.tolist() == index.df.tolist()
    twin = ReferenceIndex.build(rows)
    ours = index.augment(rows[:100], seed=1, radius=500)
    theirs = [twin.augment(t, seed=1, epoch=0, row=n, beta=0.5, radius=500) for n, t in enumerate(rows[:100])]
    assert ours == theirs


def build_loop() -> str:
    """Builds std_loop; returns its path, read from cargo's output because the target directory is configurable."""
    build = ["cargo", "build", "--release", "--example", "std_loop", "--message-format", "json"]
    root = Path(__file__).parent.parent
    said = subprocess.run(build, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return next(str(line["executable"]) for line in map(json.loads, said) if line.get("executable"))


def check_loop(loop: str, corpus: Path) -> None:
    """Checks the counts of std_loop, on the file and on its halves, against an index of ``whitespace`` tokens."""
    from cse import TfidfIndex

    def counts(*part: str) -> dict[str, Any]:
        said = subprocess.run([loop, corpus, *part], check=True, capture_output=True, text=True).stdout
        found: dict[str, Any] = json.loads(said)
        return found

    index = TfidfIndex.build(corpus, tokenizer="whitespace")
    whole, halves = counts(), [counts("1/2"), counts("2/2")]
    assert (whole["documents"], whole["terms"]) == (index.info.documents, len(index)), whole
    for key, total in (("documents", index.info.documents), ("df", int(index.df.sum()))):
        assert whole[key] == sum(half[key] for half in halves) == total, (key, whole, halves)


def measure(corpus: Path, rows: list[str], folder: Path, repeat: int, loop: str) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    from cse import TfidfIndex
    from una_reference import ReferenceIndex

    def command(*arguments: object) -> Callable[[], object]:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        words = list(map(str, arguments))
        return lambda: subprocess.run(words, check=True, capture_output=True, env=environment)

    def halves() -> None:
        running = [subprocess.Popen([loop, corpus, part], stdout=subprocess.DEVNULL) for part in ("1/2", "2/2")]
        assert [one.wait() for one in running] == [0, 0]

    tfidf, out = folder / "tfidf", folder / "negatives.txt"
    commands = {
        "wc -w": command("wc", "-w", corpus),
        "cse build-tfidf --no-matrix": command(*CSE, "build-tfidf", corpus, "-o", tfidf, "--no-matrix"),
        "cse build-tfidf": command(*CSE, "build-tfidf", corpus, "-o", tfidf),
        "cse augment": command(*CSE, "augment", corpus, "-o", out, "--tfidf", tfidf),
        "Rust loop (standard library only), one thread": command(loop, corpus),
        "two Rust loops, each on one half of the file": halves,
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeat):  # interleaved, so that changes in the machine's load affect all commands
        for name, run in commands.items():
            times[name].append(timed(run))
    index = TfidfIndex.open(tfidf)
    sentences = index.info.rows
    batches = [(rows[i : i + 64], list(range(i, i + 64))) for i in range(0, len(rows) - 63, 64)]

    def augment_lists() -> None:
        for texts, numbers in batches:
            index.augment(texts, rows=numbers)

    augment_lists()
    list_time = statistics.median(timed(augment_lists) for _ in range(repeat)) / (64 * len(batches))
    open_time = statistics.median(timed(lambda: TfidfIndex.open(tfidf)) for _ in range(repeat))

    with open(corpus, encoding="utf8", newline="\n") as file:
        everything = file.read().split("\n")
    sklearn_time = timed(lambda: TfidfVectorizer().fit_transform(everything))
    twin_rows = rows[:FEW]
    twin_build = timed(lambda: ReferenceIndex.build(twin_rows)) / len(twin_rows)
    twin = ReferenceIndex.build(twin_rows)

    def augment_twin() -> None:
        for number, text in enumerate(twin_rows):
            twin.augment(text, seed=0, epoch=0, row=number, beta=0.5, radius=twin.default_radius())

    return {
        "corpus": {"sentences": sentences, "bytes": corpus.stat().st_size, "terms": len(index)},
        "machine": {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()},
        "seconds": times,
        "scikit-learn fit_transform": sklearn_time,
        "augment(list of 64), one thread, per sentence": list_time,
        "open": open_time,
        "twin statistics, per sentence": twin_build,
        "twin augment, per sentence": timed(augment_twin) / len(twin_rows),
        **wordpieces(rows),
        **nlpaug(twin_rows, folder),
    }


def wordpieces(rows: list[str]) -> dict[str, float]:
    """Times an index of the pieces of MiniLM, and its negatives; returns {} if the model is not installed."""
    from cse import InputError, TfidfIndex
    from cse.encoder.resolve import find_model
    from cse.encoder.trained import load_tokenizer
    from cse.tfidf.pieces import Pieces

    try:
        pieces = Pieces.of(load_tokenizer(find_model("minilm")), "minilm")
    except InputError:
        return {}
    build = timed(lambda: TfidfIndex.from_texts(rows, tokenizer="wordpieces", pieces=pieces)) / len(rows)
    index = TfidfIndex.from_texts(rows, tokenizer="wordpieces", pieces=pieces)
    augment = timed(lambda: index.augment(rows)) / len(rows)
    words = TfidfIndex.from_texts(rows)
    assert len({len(index.augment(rows)), len(words.augment(rows)), len(rows)}) == 1
    return {
        "from_texts, wordpieces, per sentence": build,
        "augment, wordpieces, per sentence": augment,
        "from_texts, unicode, per sentence": timed(lambda: TfidfIndex.from_texts(rows)) / len(rows),
        "augment, unicode, per sentence": timed(lambda: words.augment(rows)) / len(rows),
    }


def nlpaug(rows: list[str], folder: Path) -> dict[str, float]:
    """Times nlpaug's TF-IDF augmenter; returns {} if nlpaug is not installed."""
    from cse.tfidf.speed import NLPAUG_ROWS, nlpaug_augment, per_minute

    augment = nlpaug_augment(rows, str(folder))
    if augment is None:
        print("no row for nlpaug: it is not installed", file=sys.stderr)
        return {}
    some = [row for row in rows if row.strip()][:NLPAUG_ROWS]
    rate = per_minute(lambda: [augment(row) for row in some], len(some), 1)
    return {"nlpaug TfIdfAug.augment, per sentence": 60 / rate["per_minute"]}


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def table(found: dict[str, Any]) -> str:
    n, wc = found["corpus"]["sentences"], statistics.median(found["seconds"]["wc -w"])
    lines = [
        f"{n:,} sentences, {found['corpus']['bytes'] / 1e6:,.0f} MB, {found['corpus']['terms']:,} terms, "
        f"{found['machine']['cores']} cores",
        "",
        "| program | time | range | relative to `wc -w` | sentences/s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, times in found["seconds"].items():
        middle = statistics.median(times)
        spread = f"{min(times):.2f} to {max(times):.2f}"
        label = f"`{name}`" if name.startswith(("cse ", "wc ")) else name
        lines.append(f"| {label} | {middle:.2f} s | {spread} | {middle / wc:.2f} | {n / middle:,.0f} |")
    sklearn = found["scikit-learn fit_transform"]
    lines.append(
        f"| scikit-learn `TfidfVectorizer.fit_transform` | {sklearn:.2f} s | one run | {sklearn / wc:.1f} "
        f"| {n / sklearn:,.0f} |"
    )
    rates = [
        ("plain Python reference, building the index", "twin statistics, per sentence"),
        ("plain Python reference, negatives", "twin augment, per sentence"),
        ("nlpaug `TfIdfAug.augment`", "nlpaug TfIdfAug.augment, per sentence"),
        ("`TfidfIndex.augment`, lists of 64, one thread", "augment(list of 64), one thread, per sentence"),
        ("`TfidfIndex.augment`, `--tokenizer wordpieces` of MiniLM", "augment, wordpieces, per sentence"),
    ]
    lines += [f"| {label} | | | | {1 / found[key]:,.0f} |" for label, key in rates if key in found]
    lines.append(f"| `TfidfIndex.open` | {found['open']:.2f} s | | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

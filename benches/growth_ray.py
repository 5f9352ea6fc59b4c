"""Measures rows per second of ``cse augment`` and ``cse encode`` with 1 and 2 workers of a Ray cluster.

    python benches/growth_ray.py --rows 3000000

The text is generated as in growth.py.
Each worker runs on a node with one core; both nodes are processes on this machine. The generated corpus is split into
``FILES`` files. Every file that the cluster writes must equal the file that the command writes without a cluster. The
rates are read from the summaries that the commands print. The times in these summaries include starting the workers and
loading the index or the model, but not starting Python and the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from growth import BLOCK, CSE, append, say

FILES = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="number of sentences in the corpus")
    parser.add_argument("--encoded", type=int, default=1600, help="number of sentences to encode")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.rows < BLOCK or options.rows % BLOCK:
        parser.error(f"--rows must be a multiple of {BLOCK}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(compare(Path(folder), options.rows, options.encoded, options.repeat, options.seed))


def compare(folder: Path, rows: int, encoded: int, repeat: int, seed: int) -> str:
    """Returns the table for a corpus of ``rows`` rows; only the first ``encoded`` rows are encoded."""
    from ray.cluster_utils import Cluster

    corpus = folder / "corpus.txt"
    append(corpus, 0, rows, seed)
    lines = corpus.read_bytes().splitlines(keepends=True)
    for name, chosen in (("augment", lines), ("encode", lines[:encoded])):
        for number in range(FILES):
            first, last = len(chosen) * number // FILES, len(chosen) * (number + 1) // FILES
            (folder / f"{name}-{number}.txt").write_bytes(b"".join(chosen[first:last]))
    corpus.unlink()
    cse("build-tfidf", f"{folder}/augment-*.txt", "-o", folder / "tfidf", "--no-matrix")
    commands = {
        "augment": ["augment", f"{folder}/augment-*.txt", "--tfidf", folder / "tfidf", "--threads", 1],
        "encode": ["encode", "minilm", f"{folder}/encode-*.txt", "--threads", 1],
    }
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    rates: dict[tuple[str, str], list[float]] = {}
    try:
        for name, command in commands.items():
            for _ in range(repeat):
                found = cse(*command, "--parts", "-o", folder / f"{name}-here", fresh=folder / f"{name}-here")
                rates.setdefault((name, "local, 1 thread"), []).append(found["rows_per_second"])
        for workers in (1, 2):
            cluster.add_node(num_cpus=1)
            for name, command in commands.items():
                for _ in range(repeat):
                    there = folder / f"{name}-there"
                    address = {"RAY_ADDRESS": cluster.address}
                    found = cse(*command, "--engine", "ray", "-o", there, fresh=there, env=address)
                    for path in (folder / f"{name}-here").iterdir():
                        assert path.read_bytes() == (there / path.name).read_bytes(), path.name
                    rates.setdefault((name, f"{workers} workers"), []).append(found["rows_per_second"])
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
    table = [
        "| rows/s, median (range) | local, 1 thread | 1 worker | 2 workers | 2 / 1 |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in commands:
        one, two = (statistics.median(rates[name, f"{workers} workers"]) for workers in (1, 2))
        cells = [rates[name, kind] for kind in ("local, 1 thread", "1 workers", "2 workers")]
        shown = [f"{statistics.median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})" for each in cells]
        table.append(f"| {name} | {' | '.join(shown)} | {two / one:.2f} |")
    return "\n".join(table)


def cse(*arguments: object, fresh: Path | None = None, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Removes the folder ``fresh`` if given, runs a command with ``--json``, and returns the command's summary."""
    if fresh is not None:
        shutil.rmtree(fresh, ignore_errors=True)
    command = [*CSE, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    say(f"{' '.join(map(str, arguments[:2]))} {env or ''}: {found.get('rows_per_second', '')}")
    return found


if __name__ == "__main__":
    main()

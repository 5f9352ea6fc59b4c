"""Prints the tables of the documentation, with all their rows, from the stored results in benches/results.

    python benches/stored_tables.py [NAME ...]

A name is that of a stored file: core, encode, search, growth, train, gpu, static or adapt_peers. Nothing is measured.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "domain")]

import adapt_peers  # noqa: E402
import core  # noqa: E402
import encode  # noqa: E402
import gpu  # noqa: E402
import growth  # noqa: E402
import static  # noqa: E402
import train  # noqa: E402


def training(found: dict[str, Any]) -> str:
    """Returns the table of the speed of training on processors."""
    timings = {
        tuple(key.split(": ")): [train.Timing(**each) for each in times] for key, times in found["timings"].items()
    }
    least = {kind: tuple(each.values()) for kind, each in found["minimum"].items()}
    with contextlib.redirect_stdout(io.StringIO()) as text:
        train.report(
            timings, least, SimpleNamespace(batch_size=found["batch_size"], device="cpu", emulate=False, json=None)
        )
    return "\n".join(line for line in text.getvalue().splitlines() if line.startswith("|"))


def on_gpu(found: dict[str, Any]) -> str:
    """Returns the two tables of the speed on a GPU."""
    steps = [gpu.STEP_HEAD, *(gpu.step_row(*each) for each in found["steps"].items())]
    systems = [gpu.SYSTEM_HEAD, *(gpu.table_row(*each) for each in found["training"]["systems"].items())]
    return "\n".join([*steps, "", *systems])


def statics(found: dict[str, Any]) -> str:
    """Returns the two tables of static encoders: for search, and of STS."""
    names = {"stsb": "STS-B", "sts13": "STS13", "sts16": "STS16"}
    lines = [f"| vectors | {' | '.join(names.values())} |", "| --- |" + " ---: |" * len(names)]
    for name, scores in found["sts"].items():
        lines.append(f"| {name} | {' | '.join(f'{scores[each]:.1f}' for each in names)} |")
    return "\n".join([static.table(found["collections"]), "", *lines])


def searches(found: dict[str, Any]) -> str:
    """Returns the table of the speed of the search."""
    times = found["search"]
    rows = {
        "one query, by vectors": times["one_query"]["ours"],
        "one query, `numpy.argpartition(vectors @ query)`": times["one_query"]["numpy"],
        "one query, `--hybrid`": times["rankings"]["hybrid"],
        "a thousand queries, by vectors": times["thousand_queries"]["ours"],
        "a thousand queries, the matrix product alone": times["thousand_queries"]["product"],
    }
    head = f"| {found['rows']:,} rows, {found['threads']} threads | ms |\n| --- | ---: |"
    return "\n".join([head, *(f"| {name} | {1000 * seconds:,.0f} |" for name, seconds in rows.items())])


TABLES = {
    "core": core.table,
    "encode": encode.table,
    "search": searches,
    "growth": growth.table,
    "train": training,
    "gpu": on_gpu,
    "static": statics,
    "adapt_peers": adapt_peers.table,
}


def printed(name: str) -> str:
    """Returns the tables of a stored file of results, in Markdown."""
    text: str = TABLES[name](json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf8")))
    return text


if __name__ == "__main__":
    if unknown := sorted(set(sys.argv[1:]) - set(TABLES)):
        sys.exit(f"{', '.join(unknown)}: no stored file with tables; the names are {', '.join(TABLES)}")
    for each in sys.argv[1:] or TABLES:
        print(printed(each), end="\n\n")

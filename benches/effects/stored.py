"""The stored results of benches/effects: one Parquet file, benches/results/effects.parquet.

    python benches/effects/stored.py     adds the new results in benches/results/effects/BASE/*.json to the file

A run writes one JSON file, so that nothing is lost if it is stopped. Each row of the Parquet file is a run: its base,
settings, seed, scores, seconds, machine and commit, and the 1,000 resampled values of three scores (int16, x 100).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).resolve().parents[1] / "results" / "effects"
FILE = RESULTS.with_suffix(".parquet")
PLAIN = ("name", "system", "tau", "seed", "change")
AS_JSON = ("arguments", "scores", "encode_seconds", "train_seconds", "identity", "environment")
RESAMPLED = ("mean", "STS-B", "STS-B dev")


def row_of(base: str, record: dict[str, Any]) -> dict[str, Any]:
    """The row of a result."""
    row = {"base": base, **{key: record.get(key) for key in PLAIN}}
    row |= {key: json.dumps(record[key]) if key in record else None for key in AS_JSON}
    for title in RESAMPLED:
        draws = record.get("resampled", {}).get(title)
        row[title] = None if draws is None else [round(100 * float(value)) for value in draws.split()]
    return row


def record_of(row: dict[str, Any]) -> dict[str, Any]:
    """The result of a row."""
    record = {key: row[key] for key in PLAIN if row[key] is not None}
    record |= {key: json.loads(row[key]) for key in AS_JSON if row[key] is not None}
    draws = {title: row[title] for title in RESAMPLED if row[title] is not None}
    return record | {"resampled": {title: " ".join(f"{v / 100:.2f}" for v in each) for title, each in draws.items()}}


@cache
def packed(base: str) -> dict[str, dict[str, Any]]:
    """The results of a base in the Parquet file, by name."""
    rows = pq.read_table(FILE, filters=[("base", "=", base)]).to_pylist() if FILE.exists() else []
    return {row["name"]: record_of(row) for row in rows}


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of the base that a folder is named after, by name, sorted; those of new runs are in the folder."""
    own = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}
    known = packed(folder.name) if folder.parent == RESULTS else {}
    return dict(sorted({**known, **own}.items()))


def pack() -> None:
    """Adds the results of new runs to the Parquet file, and deletes their JSON files."""
    new = sorted(RESULTS.glob("*/*.json"))
    rows = pq.read_table(FILE).to_pylist() if FILE.exists() else []
    kept = {(row["base"], row["name"]): row for row in rows}
    kept |= {
        (path.parent.name, path.stem): row_of(path.parent.name, json.loads(path.read_text("utf-8"))) for path in new
    }
    fields = [pa.field("base", pa.string()), pa.field("name", pa.string()), pa.field("system", pa.string())]
    fields += [pa.field("tau", pa.float64()), pa.field("seed", pa.int64()), pa.field("change", pa.string())]
    fields += [pa.field(key, pa.string()) for key in AS_JSON]
    fields += [pa.field(title, pa.list_(pa.int16())) for title in RESAMPLED]
    table = pa.Table.from_pylist([kept[key] for key in sorted(kept)], schema=pa.schema(fields))
    part = FILE.with_suffix(".part")
    pq.write_table(table, part, compression="zstd", compression_level=19)
    part.replace(FILE)
    for path in new:
        path.unlink()
    for folder in {path.parent for path in new}:
        if not any(folder.iterdir()):
            folder.rmdir()
    print(f"{FILE}: {table.num_rows} runs")


if __name__ == "__main__":
    pack()

"""Files of stored runs: Parquet files with a row for each record of a cell (see ``cells``), in named sets.

python -m cse_papers.reproduce.stored FILE.parquet SET FOLDER     adds the cells in FOLDER to a set of the file
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cse.errors import InputError
from cse.io import dumps, write_atomically

Key = tuple[str, str | None, int | None]
"""Row, column and seed of a record."""
Records = dict[Key, dict[str, Any]]


def key_of(record: dict[str, Any]) -> Key:
    return record["row"], record["column"], record["seed"]


def read_folder(place: Path) -> Records:
    """Returns the records of the cells in a folder."""
    paths = [*place.glob("*/scores.json"), *place.glob("*/seed-*.json")]
    records = [json.loads(path.read_text(encoding="utf8")) for path in sorted(paths)]
    return {key_of(record): record for record in records}


def read_sets(file: str | Path) -> dict[str, Records]:
    """Returns the records of a file by set; raises ``InputError`` if it was not written by ``write_sets``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sets: dict[str, Records] = {}
    try:
        for row in pq.read_table(file).to_pylist():
            record = json.loads(row["record"]) | {"draws": dict(row["draws"])}
            sets.setdefault(row["set"], {})[key_of(record)] = record
    except (OSError, pa.ArrowException, KeyError, ValueError):
        raise InputError(f"--stored {file}: not a file of stored runs; see docs/reproduce.md") from None
    return sets


def write_sets(file: Path, sets: dict[str, Records]) -> None:
    """Writes a file of stored runs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "set": name,
            "record": dumps({key: value for key, value in record.items() if key != "draws"}),
            "draws": list(record.get("draws", {}).items()),
        }
        for name, records in sets.items()
        for record in records.values()
    ]
    kinds = [("set", pa.string()), ("record", pa.string()), ("draws", pa.map_(pa.string(), pa.list_(pa.int16())))]
    table = pa.Table.from_pylist(rows, pa.schema(kinds))
    write_atomically(file, lambda part: pq.write_table(table, part, compression="zstd", compression_level=19))


def main(arguments: Iterable[str]) -> None:
    """Adds the cells of a folder to a set of a file."""
    file, name, folder = arguments
    sets = read_sets(file) if Path(file).exists() else {}
    sets.setdefault(name, {}).update(read_folder(Path(folder)))
    write_sets(Path(file), sets)


if __name__ == "__main__":
    main(sys.argv[1:])

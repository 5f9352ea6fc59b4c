"""Stored scores: the file of a cell, and Parquet files of many runs.

A cell is stored with its identity, what determines its scores, and read only if that has not changed. A Parquet file
has a row for each record of a cell, in named sets.

python -m cse_papers.reproduce.stored FILE.parquet SET FOLDER     adds the cells in FOLDER to a set of the file
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cse.errors import InputError
from cse.io import dumps, write_atomically, write_text

from .cells import FROM_SYNONYMS, Cell, config_of, index_of, settings_of, source_of
from .inputs import SYNONYMS, Inputs, is_made
from .masked import weights_key
from .scores import Key, Records, Scorer, hash_file


def key_of(record: dict[str, Any]) -> Key:
    return record["row"], record["column"], record["seed"]


def identity(cell: Cell, inputs: Inputs, scorer: Scorer) -> dict[str, Any]:
    """Returns what determines the scores of a cell: recipe, step limit, precision, model, and hashes of files."""
    from cse.encoder.device import device_name, pick_device, pick_precision

    recipe, device = cell.recipe, pick_device(inputs.device)
    source = {} if recipe.encoder is not None else source_of(cell, inputs)
    dev = [] if recipe.preset is None else settings_of(cell, inputs)["dev"]
    index = None if recipe.encoder is not None else index_of(config_of(cell, inputs, Path()))
    counted = index[1][1:] if index else []
    values: dict[str, Any] = {
        "preset": recipe.preset,
        "encoder": recipe.encoder,
        "pooler": recipe.pooler,
        **recipe.settings,
        **({} if inputs.batch_size is None else {"batch_size": inputs.batch_size}),
        "max_steps": recipe.settings.get("max_steps") if inputs.max_steps is None else inputs.max_steps,
        "model": cell.row.model if inputs.model is None else weights_key(inputs.model),
        "corpus": None,
        **{name: hash_file(path) for name, path in source.items()},
        **({"index": ["corpus", *map(hash_file, counted)]} if counted else {}),
        "dev": [hash_file(path) for path in dev],
        "precision": None if recipe.encoder else pick_precision(device, inputs.precision)[0],
        "evaluation data": scorer.hash(cell.column),
        **{
            f"file {name}": hash_file(str(inputs.files[name]))
            for name in recipe.needs()
            if name in inputs.files and not is_made(name)
        },
        **(
            {"file synonyms": hash_file(inputs.files[SYNONYMS])}
            if SYNONYMS in inputs.files and recipe.settings.get("positive") in FROM_SYNONYMS
            else {}
        ),
    }
    if cell.table.suite == "effects":  # whose runs are compared pair by pair; the dropout masks depend on the device
        values["device"] = device_name(device)
    if "imports" in recipe.settings:
        values["imports"] = [hash_code(path) for path in recipe.settings["imports"]]
    normal: dict[str, Any] = json.loads(dumps(values))
    return normal


def hash_code(path: str) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of the syntax tree of a Python file, so that a changed
    comment does not discard runs."""
    tree = ast.dump(ast.parse(Path(path).read_bytes(), path))
    return hashlib.sha256(tree.encode()).hexdigest()[:16]


def read_cell(cell: Cell, inputs: Inputs, scorer: Scorer, place: Path) -> dict[str, Any] | None:
    """Returns the record of a cell, or that of an equal stored run (``Inputs.stored``); None if there is none."""
    now = identity(cell, inputs, scorer)
    found = _read(cell.path(place), now)
    equal = (records.get((cell.row.name, cell.column, cell.seed)) for records in inputs.stored.values())
    return found or next((record for record in equal if record and record["identity"] == now), None)


def _read(path: Path, now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the record in a file, or None without a file; raises ``InputError`` if its identity is not ``now``."""
    if not path.exists():
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
        before = dict(stored["identity"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: was not written by cse reproduce; remove it, or choose another -o") from None
    if before != now:
        name = next(key for key in sorted({*before, *now}) if before.get(key, "") != now.get(key, ""))
        raise InputError(
            f"{path}: was made with {name} {before.get(name)}, not {now.get(name)}; choose another folder with -o, "
            "or remove the cell"
        )
    return stored


def write_cell(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Writes the file of a cell; returns the record as it is read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dumps(record) + "\n")
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    return stored


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

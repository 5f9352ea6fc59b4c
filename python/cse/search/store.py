"""The files of an index folder.

===================  =================================================================================================
file                 content
===================  =================================================================================================
``manifest.json``    format, model, settings, and the names, hashes and sizes of the files of rows; replaced atomically
``HASH.arrow``       the rows, an Arrow IPC file whose name is its XXH3-128 hash; never changed. If few rows were added
                     since it was written, a second such file holds them, until it is folded into a new first one
``encoded/``         rows that an interrupted build or update has encoded, as Arrow IPC files named by their hashes
``bm25-STATE-*/``    BM25 index of the rows with this hash (``Store.generation``), with the terms ``*`` (``terms.py``)
``tokens-STATE/``    number of rows that contain each token (``tokens.py``); if needed
``smooth-STATE-*/``  neighbours of the rows (``hybrid.py``), found with these terms; if needed
``basis-MODEL-D/``   projection of the token vectors; if token vectors are stored
===================  =================================================================================================

A row has the columns ``id`` (if the index has ids), ``text``, ``hash``, ``tokens`` (if their vectors are stored) and
``passages``. The passages of a row are the ranges of characters of its text that were encoded, each with its vector:
float32, or int8 with a ``scale``. The tokens of a row have their numbers and their vectors, int8 with a scale.

An update writes a new file of rows, replaces the manifest, and then removes the file that is no longer used. A process
that opened the index before has mapped the file into memory and continues to read it. Version 2 had any number of files
of rows, and is read as well.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core, io
from ..errors import InputError
from ..io import dumps, fresh_folder, holds_files, naming, remove_leftovers, write_text
from ..sharding.parts import read_manifest
from .vectors import Array, Joined, TokenVectors, Vectors

VERSION = 3
MANIFEST, ENCODED, WRITTEN, HASHES = "manifest.json", "encoded", ".rows.tmp", "hashes.json"
UNCHECKED = 32 * "0"
# Data that follows from the rows with a hash.
DERIVED = re.compile(r"(?:bm25|smooth|tokens)(?:-([0-9a-f]{32})(?:-[a-z]+){0,3})?")
# Files that an interrupted or earlier write left: rows, temporary files, and the files of versions 1 and 2.
OLD = re.compile(
    r"[0-9a-f]{32}\.arrow|encoded|basis-[0-9a-f]{16}-\d+|\.(rows|segment)\.tmp|\.cse-core-.*\.tmp|\.lock"
    r"|pending\.json|vectors\.npy|scales\.f32|places\.bin|hashes\.u64|(texts|ids)\.(txt|u64)"
)

Numbers = npt.NDArray[np.int64]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks an index folder for writing, and creates the folder if it does not exist.

    Raises ``InputError`` if another process is writing to the folder, or if the folder contains other files.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the index")
    if read_manifest(folder) is not None:  # --rebuild would remove the manifest of the parts
        raise InputError(f"{folder}: holds parts; search in them without CORPUS, or name another folder for the index")
    marks = (MANIFEST, ENCODED, ".lock")
    if holds_files(folder) and not any((folder / name).exists() for name in marks):
        raise InputError(f"{folder}: holds files that are not part of an index; name a new folder")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with io.locked(folder, f"{folder}: another process is writing to this index; wait for it"):
        if not (folder / MANIFEST).exists():
            with naming(folder):
                (folder / ENCODED).mkdir(exist_ok=True)  # marks the folder as one of an index
        try:
            yield
        finally:
            with suppress(OSError):  # what an interrupted build has encoded is kept
                (folder / ENCODED).rmdir()


def schema(settings: Mapping[str, Any]) -> Any:
    """Returns the Arrow schema of the rows of an index with these settings."""
    import pyarrow as pa

    vector = pa.list_(pa.int8() if settings["int8"] else pa.float32(), settings["width"])
    scale = [("scale", pa.float32())] if settings["int8"] else []
    passage = [("start", pa.uint32()), ("end", pa.uint32()), *scale, ("vector", vector)]
    columns = [("id", pa.large_string())] if settings["ids"] else []
    columns += [("text", pa.large_string()), ("hash", pa.uint64())]
    if settings.get("tokens"):
        token = [("id", pa.int32()), ("scale", pa.float32()), ("vector", pa.list_(pa.int8(), settings["tokens"]))]
        columns.append(("tokens", pa.list_(pa.struct(token))))
    return pa.schema([*columns, ("passages", pa.list_(pa.struct(passage)))])


def write_rows(path: Path, columns: Any, batches: Iterable[Any]) -> dict[str, Any]:
    """Writes record batches to an Arrow IPC file, which is then renamed to its hash in the folder of ``path``.

    Vectors begin at multiples of 64 bytes: products of vectors that are not aligned take up to 9 % more time. They are
    the last buffer of a batch, so metadata of a suitable length aligns them.

    Returns:
        The hash, the numbers of rows and vectors, and an upper bound on the norms of the vectors.
    """
    import pyarrow as pa

    rows, count, longest = 0, 0, 0.0
    try:
        with naming(path), open(path, "wb") as file:
            with pa.ipc.new_file(file, columns) as writer:
                for batch in batches:
                    vectors = _vectors(batch)
                    before = file.tell() or 8 + columns.serialize().size  # the schema is written with the first batch
                    for length in range(0, 128, 4):
                        padding = {"padding": length * " "}
                        sink = pa.MockOutputStream()
                        with pa.ipc.new_stream(sink, columns) as measured:
                            measured.write_batch(batch, custom_metadata=padding)
                            end = before + sink.tell() - columns.serialize().size
                        if (end - -(-vectors.values.nbytes // 8) * 8) % 64 == 0:
                            break
                    writer.write_batch(batch, custom_metadata=padding)
                    rows, count, longest = rows + len(batch), count + len(vectors), max(longest, vectors.longest)
            file.flush()
            os.fsync(file.fileno())
        name = _core.hash_file(path)
        with naming(path):
            os.replace(path, path.with_name(f"{name}.arrow"))
    finally:
        path.unlink(missing_ok=True)
    return {"xxh3": name, "rows": rows, "vectors": count, "longest": longest}


def _vectors(batch: Any, longest: float | None = None) -> Array:
    passages = batch.column("passages").flatten()
    vectors = passages.field("vector")
    values = vectors.flatten().to_numpy().reshape(len(passages), vectors.type.list_size)
    return Array(values, passages.field("scale").to_numpy() if values.dtype == np.int8 else None, longest)


def read_rows(path: Path, columns: Any = None, verify: bool = True) -> list[Any]:
    """Returns the record batches of a file that ``write_rows`` wrote, mapped into memory.

    Raises ``InputError`` if it is damaged or has other columns, and ``FileNotFoundError`` if it is missing.
    """
    import pyarrow as pa

    try:
        if verify and _core.hash_file(path) != path.stem:
            raise _damaged(path)
        with open(path, "rb") as file:  # pa.memory_map refuses names that are not UTF-8
            reader = pa.ipc.open_file(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # an offset out of range would read memory outside the file
        if columns is not None and not all(batch.schema.equals(columns) for batch in batches):
            raise _damaged(path)
        return batches
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise error if isinstance(error, InputError) else _damaged(path) from None


def write_manifest(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Writes a manifest, atomically, and returns its content, with ``version`` and ``check``."""
    manifest = {"version": VERSION, "check": UNCHECKED, **content}
    text = dumps(manifest, indent=2) + "\n"
    check = _check(text.encode())
    write_text(path, text.replace(UNCHECKED, check, 1))
    return manifest | {"check": check}


def _check(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def read_checked(folder: Path) -> dict[str, Any] | None:
    """Returns the manifest of an index, or None if the folder has none.

    Raises ``InputError`` if it is damaged or of another version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        manifest = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not JSON; build the index again with --rebuild") from None
    if not isinstance(manifest, dict) or manifest.get("version") not in (2, VERSION):
        raise InputError(f"{folder}: was built by another version of cse; build the index again with --rebuild")
    check = str(manifest.get("check"))
    if check != _check(text.replace(check.encode(), UNCHECKED.encode(), 1)):
        raise _damaged(path)
    if manifest["version"] == 2:
        manifest["files"] = manifest.pop("segments")
    return manifest


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: is damaged; build the index again with --rebuild")


class Store:
    """One state of an index: its rows, mapped into memory.

    Args:
        folder: The folder.
        manifest: The content of the manifest.
        files: The record batches of each file of rows, by the hash of the file.
        verify: Whether files that are read later are compared with their hashes.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], files: dict[str, list[Any]], verify: bool) -> None:
        self.folder, self.manifest, self.files, self.verify = folder, manifest, files, verify
        self.batches, parts = [], []
        for record in manifest["files"]:
            self.batches += files[record["xxh3"]]
            parts += [_vectors(batch, float(record["longest"])) for batch in files[record["xxh3"]]]
        self.starts = [0, *accumulate(batch.num_rows for batch in self.batches)]
        """Number of the first row of each batch, followed by the total number of rows."""
        self.rows = self.starts[-1]
        self.vectors: Vectors = parts[0] if len(parts) == 1 else Joined(parts)
        """The vectors of the rows that are not blank, or of their passages."""
        counts = [np.diff(batch.column("passages").offsets.to_numpy()) for batch in self.batches]
        self.row_of: Numbers = np.repeat(np.arange(self.rows), np.concatenate(counts))
        """Row of each vector, ``(vectors,)`` int64, ascending."""
        passages = [batch.column("passages").flatten() for batch in self.batches]
        limits = [[part.field(name).to_numpy() for name in ("start", "end")] for part in passages]
        self.spans: npt.NDArray[np.uint32] | None = np.hstack([np.stack(pair) for pair in limits]).T
        """Range of characters of each vector, ``(vectors, 2)``; None: each vector is of the whole text."""

    @classmethod
    def open(cls, folder: Path, verify: bool = True, opened: Mapping[str, list[Any]] | None = None) -> Store:
        """Opens an index, and maps its rows into memory.

        Args:
            folder: The folder.
            verify: Compare each file with its hash.
            opened: Files that are already open, and used if the index has them.

        Raises:
            InputError: If the folder holds no index, an incomplete one, or a damaged one.
        """
        missing = ""
        for _ in range(3):  # if another process replaces the manifest, the file of the former one disappears
            if (manifest := read_checked(folder)) is None:
                break
            files = dict(opened or {})
            try:
                columns = schema(manifest)
                for record in manifest["files"]:
                    name = record["xxh3"]
                    path = folder / f"{name}.arrow"
                    files[name] = files.get(name) or read_rows(path, columns, verify)
                    vectors = sum(len(batch.column("passages").flatten()) for batch in files[name])
                    if (sum(map(len, files[name])), vectors) != (record["rows"], record["vectors"]) or not files[name]:
                        raise _damaged(path)
                return cls(folder, manifest, {file["xxh3"]: files[file["xxh3"]] for file in manifest["files"]}, verify)
            except FileNotFoundError:
                missing = f"{path}: is missing; build the index again with --rebuild"
            except (KeyError, TypeError, AttributeError, OverflowError):
                raise _damaged(folder / MANIFEST) from None
        if missing:
            raise InputError(missing)
        interrupted = read_encoded(folder)
        if interrupted:
            of = interrupted[0][1]["wanted"]
            raise InputError(
                f"{folder}: its build was interrupted after {sum(len(batch) for batch, _ in interrupted):,} of {of:,} "
                "rows; run the same command again to complete it"
            )
        raise InputError(f"{folder}: no index there; make one with 'cse search MODEL CORPUS -o {folder}'")

    @property
    def generation(self) -> str:
        """A hash of the rows, in which each change of the index changes something."""
        names = [record["xxh3"] for record in self.manifest["files"]]
        return str(names[0]) if len(names) == 1 else hashlib.sha256("".join(names).encode()).hexdigest()[:32]

    def is_current(self) -> bool:
        """Returns whether the folder still holds this state."""
        manifest = read_checked(self.folder)
        return manifest is not None and manifest["files"] == self.manifest["files"]

    def column(self, name: str) -> Any:
        """Returns a column of all rows."""
        import pyarrow as pa

        return pa.chunked_array([batch.column(name) for batch in self.batches])

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Returns the hash of the text of each row, ``(rows,)`` uint64."""
        return np.concatenate([batch.column("hash").to_numpy() for batch in self.batches])

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Returns the texts of some rows."""
        return [text.as_py() for text in self._items("text", rows)]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Returns the ids of some rows, or the row numbers as text if the index has no ids."""
        return (
            [name.as_py() for name in self._items("id", rows)] if self.manifest["ids"] else [str(row) for row in rows]
        )

    def tokens(self, rows: Sequence[int]) -> list[TokenVectors]:
        """Returns the stored vectors of the tokens of some rows."""
        result = []
        for item in self._items("tokens", rows):
            vectors = item.values.field("vector").flatten().to_numpy().reshape(len(item.values), -1)
            scales = item.values.field("scale").to_numpy()[:, None]
            result.append(TokenVectors(item.values.field("id").to_numpy().astype(np.int64), vectors * scales))
        return result

    def _items(self, name: str, rows: Sequence[int]) -> Iterator[Any]:
        columns = [batch.column(name) for batch in self.batches]
        for row in rows:
            if not 0 <= row < self.rows:
                raise InputError(f"row: {row} is out of range; there are {self.rows:,} rows in {self.folder}")
            number = bisect_right(self.starts, row) - 1
            yield columns[number][row - self.starts[number]]

    def remove_unused(self) -> None:
        """Removes the files that belong to former states of the index; call it within ``locked``."""
        with suppress(OSError):  # on Windows, a file that is mapped into memory cannot be removed
            remove_leftovers(self.folder)
        for path in self.folder.iterdir():
            derived = DERIVED.fullmatch(path.name)
            unused = derived[1] != self.generation if derived else path.stem not in self.files
            unused &= path.name != self.manifest.get("basis")
            if (derived or OLD.fullmatch(path.name)) and unused:
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_encoded(folder: Path) -> list[tuple[Any, dict[str, Any]]]:
    """Returns the rows that an interrupted build or update has encoded: record batches, and what they were made for."""
    encoded = []
    for path in sorted((folder / ENCODED).glob("*.arrow")):
        with suppress(InputError, FileNotFoundError, KeyError, TypeError):  # incomplete files are not used
            (batch,) = read_rows(path)
            encoded.append((batch, json.loads(batch.schema.metadata[b"cse"])))
    return encoded


@contextmanager
def hashed_folder(folder: Path) -> Iterator[Path]:
    """Context manager that makes a new folder, which replaces ``folder`` at the end, with the hashes of its files."""
    with fresh_folder(folder) as fresh:
        yield fresh
        (fresh / HASHES).write_text(dumps(_hashes(fresh)), encoding="utf8")


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: _core.hash_file(path) for path in sorted(folder.iterdir()) if path.name != HASHES}


def open_hashed(folder: Path, verify: bool, read: Any) -> Any:
    """Returns what ``read`` reads from a folder that ``hashed_folder`` wrote.

    Raises ``InputError`` if it cannot be read or, with ``verify``, if a file differs from its stored hash.
    """
    try:
        if verify and json.loads((folder / HASHES).read_bytes()) != _hashes(folder):
            raise ValueError("a file is damaged")
        return read(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{folder}: cannot be read ({error}); remove the folder to build it again") from None


def save_arrays(folder: Path, **arrays: npt.NDArray[Any]) -> None:
    """Writes arrays, and their hashes, to a folder, atomically."""
    with hashed_folder(folder) as fresh:
        for name, values in arrays.items():
            np.save(fresh / f"{name}.npy", values)


def open_arrays(folder: Path, *names: str, verify: bool = True) -> list[npt.NDArray[Any]]:
    """Opens arrays that ``save_arrays`` wrote, mapped into memory; raises ``InputError`` like ``open_hashed``."""
    arrays: list[npt.NDArray[Any]] = open_hashed(
        folder, verify, lambda path: [np.load(path / f"{name}.npy", mmap_mode="r") for name in names]
    )
    return arrays


def is_read_only(error: OSError) -> bool:
    """Returns whether a file could not be written because its folder cannot be changed."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)

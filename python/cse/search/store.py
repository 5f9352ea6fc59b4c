"""The files of an index folder.

===================  =================================================================================================
file                 content
===================  =================================================================================================
``manifest.json``    format, model, settings, and the segments in the order of their rows; replaced atomically
``HASH.arrow``       a segment: consecutive rows as one record batch of an Arrow IPC file; never changed
``pending.json``     as the manifest, for an unfinished build or update: segments of rows that are already encoded
``bm25-CHECK-LIST/`` BM25 index without the stop words of LIST, for the manifest with this ``check``; if needed.
                     With the pieces of the model as terms: ``bm25-CHECK-LIST-wordpieces/``
``tokens-CHECK/``    number of rows that contain each token (``tokens.py``), for this ``check``; if needed
``basis-HASH/``      projection of the token vectors; if token vectors are stored
``smooth-CHECK/``    neighbours of the rows (``hybrid.py``), for the manifest with this ``check``; if needed
===================  =================================================================================================

A segment has the columns ``id`` (if the index has ids), ``text``, ``hash``, ``tokens`` (if their vectors are stored)
and ``passages``. The passages of a row are the ranges of characters of its text that were encoded, each with its
vector: float32, or int8 with a ``scale``. The tokens of a row have their numbers and their vectors, int8 with a scale.

The name of a segment is its XXH3-128 hash; the ``check`` of a manifest is a hash of its other content. An update writes
new segments, replaces the manifest, and then removes the segments that are no longer used. A process that opened the
index before has mapped all segments into memory and continues to read them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import InputError
from ..io import dumps, fresh_folder, lock, naming, remove_leftovers, write_text
from ..sharding.parts import read_manifest
from .vectors import Float32, Int8, Joined, TokenVectors, Vectors

VERSION = 2
MANIFEST = "manifest.json"
PENDING = "pending.json"
LOCK = ".lock"
WRITTEN = ".segment.tmp"
# The first bytes of an Arrow IPC file, padded to 8.
MAGIC = b"ARROW1\0\0"
HASHES = "hashes.json"
UNCHECKED = 32 * "0"
PLACE = np.dtype([("row", "<i8"), ("start", "<u4"), ("end", "<u4")])
# Files that an interrupted or earlier write left: segments, temporary files, and the files of version 1.
OLD = re.compile(
    r"[0-9a-f]{32}\.arrow|\.segment\.tmp|\.cse-core-.*\.tmp|vectors\.npy|scales\.f32|places\.bin|hashes\.u64"
    r"|(texts|ids)\.(txt|u64)"
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks an index folder for writing, and creates the folder if it does not exist.

    Raises ``InputError`` if another process is writing to the folder, or if the folder contains other files.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the index")
    if read_manifest(folder) is not None:  # --rebuild would remove the manifest of the parts
        raise InputError(f"{folder}: holds parts; search in them without CORPUS, or name another folder for the index")
    if folder.is_dir() and not (folder / LOCK).exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: holds files that are not part of an index; name a new folder")
    path = folder / LOCK
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with naming(path), open(path, "a") as file:
        try:
            lock(file.fileno())
        except BlockingIOError:
            raise InputError(f"{folder}: another process is writing to this index; wait for it") from None
        yield


def schema(settings: Mapping[str, Any]) -> Any:
    """Returns the Arrow schema of the segments of an index with these settings."""
    import pyarrow as pa

    vector = pa.list_(pa.int8() if settings["int8"] else pa.float32(), settings["width"])
    passage = [("start", pa.uint32()), ("end", pa.uint32()), ("scale", pa.float32()), ("vector", vector)]
    if not settings["int8"]:
        del passage[2]
    columns = [("text", pa.large_string()), ("hash", pa.uint64()), ("passages", pa.list_(pa.struct(passage)))]
    if settings.get("tokens"):
        token = [("id", pa.int32()), ("scale", pa.float32()), ("vector", pa.list_(pa.int8(), settings["tokens"]))]
        columns.insert(2, ("tokens", pa.list_(pa.struct(token))))
    return pa.schema([("id", pa.large_string()), *columns] if settings["ids"] else columns)


def _aligned(batch: Any) -> Any:
    """Returns a batch with metadata of such a length that the vectors begin at a multiple of 64 bytes in the file.

    Products of vectors that are not aligned take up to 9 % more time. The vectors are the last buffer of the batch.
    """
    import pyarrow as pa

    vectors = batch.column("passages").flatten().field("vector").flatten()
    before = len(MAGIC) + pa.ipc.get_record_batch_size(batch) - -(-len(vectors) * vectors.type.bit_width // 64) * 8
    padded = (batch.replace_schema_metadata({"padding": length * " "}) for length in range(0, 128, 4))
    return next(each for each in padded if (before + each.schema.serialize().size) % 64 == 0)


def write_manifest(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Writes a manifest, atomically, and returns its content, with ``version`` and ``check``."""
    manifest = {"version": VERSION, "check": UNCHECKED, **content}
    text = dumps(manifest, indent=2) + "\n"
    check = _check(text.encode())
    write_text(path, text.replace(UNCHECKED, check, 1))
    return manifest | {"check": check}


def _check(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def read_checked(path: Path) -> dict[str, Any]:
    """Returns the content of a manifest; raises ``InputError`` if it is damaged or of another version."""
    text = path.read_bytes()
    try:
        manifest = json.loads(text)
    except ValueError:
        raise InputError(f"{path}: is not JSON; build the index again with --rebuild") from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise InputError(f"{path.parent}: was built by another version of cse; build the index again with --rebuild")
    check = str(manifest.get("check"))
    if check != _check(text.replace(check.encode(), UNCHECKED.encode(), 1)):
        raise _damaged(path)
    return manifest


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: is damaged; build the index again with --rebuild")


class Segment:
    """Consecutive rows of an index, mapped into memory.

    Args:
        path: The file.
        columns: The schema of the index.
        record: The record of the segment in the manifest: ``xxh3``, ``rows``, ``vectors`` and ``longest``, the upper
            bound on the norms of the vectors. None: the file was just written, and the record is made.
        verify: Compare the file with its hash.

    Raises:
        InputError: If the file is damaged.
        FileNotFoundError: If it is missing.
    """

    def __init__(self, path: Path, columns: Any, record: dict[str, Any] | None, verify: bool) -> None:
        import pyarrow as pa

        try:
            if record is not None and verify and _core.hash_file(path) != record["xxh3"]:
                raise _damaged(path)
            with pa.memory_map(str(path)) as file:  # the mapping outlives the file, so few files are open at a time
                batch = pa.ipc.open_file(file).get_batch(0)
            batch.validate(full=True)  # an offset out of range would read memory outside the file
            if not batch.schema.equals(columns):
                raise _damaged(path)
            passages = batch.column("passages").flatten()
            fields = {each.name: passages.field(each.name) for each in passages.type}
            vectors = fields.pop("vector")
            values = vectors.flatten().to_numpy().reshape(len(passages), vectors.type.list_size)
            numbers = {name: field.to_numpy() for name, field in fields.items()}
            ends = batch.column("passages").offsets.to_numpy()
            longest = None if record is None else float(record["longest"])
            self.vectors: Vectors = (
                Int8(values, numbers["scale"], longest) if "scale" in numbers else Float32(values, longest)
            )
            self.hashes: npt.NDArray[np.uint64] = batch.column("hash").to_numpy()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            raise error if isinstance(error, InputError) else _damaged(path) from None
        self.batch = batch
        self.rows: int = batch.num_rows
        self.places = np.empty(len(passages), dtype=PLACE)
        """Row in the segment, start and end of each vector."""
        self.places["row"] = np.repeat(np.arange(self.rows), np.diff(ends))
        self.places["start"], self.places["end"] = numbers["start"], numbers["end"]
        self.record = record or {
            "xxh3": _core.hash_file(path),
            "rows": self.rows,
            "vectors": len(passages),
            "longest": self.vectors.longest,
        }
        if (self.rows, len(passages)) != (self.record["rows"], self.record["vectors"]) or self.rows == 0:
            raise _damaged(path)

    @classmethod
    def write(cls, folder: Path, batch: Any) -> Segment:
        """Writes a record batch as a segment, atomically; call it within ``locked``."""
        import pyarrow as pa

        path, batch = folder / WRITTEN, _aligned(batch)
        with naming(path), open(path, "wb") as file:
            with pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        segment = cls(path, batch.schema, None, False)
        with naming(path):
            os.replace(path, folder / f"{segment.record['xxh3']}.arrow")
        return segment


class Store:
    """Rows of an index folder, as the concatenation of segments; the docstring of this module describes the files.

    Args:
        folder: The folder.
        manifest: The content of the manifest, or only the settings in it.
        segments: The segments.
        verify: Whether files that are read later are compared with their hashes.
    """

    def __init__(
        self, folder: Path, manifest: dict[str, Any], segments: Sequence[Segment], verify: bool = True
    ) -> None:
        self.folder, self.manifest, self.segments, self.verify = folder, manifest, segments, verify
        self.starts = [0, *accumulate(segment.rows for segment in segments)]
        """Number of the first row of each segment, followed by the total number of rows."""
        self.rows = self.starts[-1]

    @classmethod
    def open(cls, folder: Path, verify: bool = True, *, name: str = MANIFEST, opened: Sequence[Segment] = ()) -> Store:
        """Opens an index, and maps its segments into memory.

        Args:
            folder: The folder.
            verify: Compare each file with its hash.
            name: Name of the manifest.
            opened: Segments that are already open, and used if the index has them.

        Raises:
            InputError: If the folder holds no index, an incomplete one, or a damaged one.
        """
        missing = None
        for _ in range(3):  # if another process replaces the manifest, segments of the former one disappear
            try:
                manifest = read_checked(folder / name)
            except (FileNotFoundError, NotADirectoryError):
                break
            segments = {segment.record["xxh3"]: segment for segment in opened}
            columns = schema(manifest)
            try:
                for record in manifest["segments"]:
                    path = folder / f"{record['xxh3']}.arrow"
                    segments[record["xxh3"]] = segments.get(record["xxh3"]) or Segment(path, columns, record, verify)
                return cls(folder, manifest, [segments[record["xxh3"]] for record in manifest["segments"]], verify)
            except FileNotFoundError:
                missing = path
        if missing is not None:
            raise InputError(f"{missing}: is missing; build the index again with --rebuild")
        with suppress(FileNotFoundError, NotADirectoryError):
            pending = read_checked(folder / PENDING)
            raise InputError(
                f"{folder}: its build was interrupted after {pending['rows']:,} of {pending['wanted']:,} rows; run "
                "the same command again to complete it"
            )
        raise InputError(f"{folder}: no index there; make one with 'cse search MODEL CORPUS -o {folder}'")

    @property
    def generation(self) -> str:
        """A hash that is different after each change of the index."""
        return str(self.manifest["check"])

    def vectors(self) -> Vectors:
        """Returns the vectors, mapped into memory."""
        return Joined([segment.vectors for segment in self.segments])

    def places(self) -> npt.NDArray[Any]:
        """Returns the row and range of characters of each vector, ``(vectors,)`` of ``PLACE``."""
        places = np.concatenate([segment.places for segment in self.segments])
        places["row"] += np.repeat(self.starts[:-1], [len(segment.places) for segment in self.segments])
        return places

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Returns the hash of the text of each row, ``(rows,)`` uint64."""
        empty = np.empty(0, dtype=np.uint64)
        return np.concatenate([empty, *(segment.hashes for segment in self.segments)])

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Returns the texts of some rows."""
        return self._column("text", rows)

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Returns the ids of some rows, or the row numbers as text if the index has no ids."""
        return self._column("id", rows) if self.manifest["ids"] else [str(row) for row in rows]

    def tokens(self, rows: Sequence[int]) -> list[TokenVectors]:
        """Returns the stored vectors of the tokens of some rows."""
        found = []
        for row in rows:
            number = bisect_right(self.starts, row) - 1
            items = self.segments[number].batch.column("tokens")[row - self.starts[number]].values
            vectors = items.field("vector").flatten().to_numpy().reshape(len(items), -1)
            scales = items.field("scale").to_numpy()[:, None]
            found.append(TokenVectors(items.field("id").to_numpy().astype(np.int64), vectors * scales))
        return found

    def _column(self, name: str, rows: Sequence[int]) -> list[str]:
        columns = [segment.batch.column(name) for segment in self.segments]
        found = []
        for row in rows:
            if not 0 <= row < self.rows:
                raise InputError(f"row: {row} is out of range; there are {self.rows:,} rows in {self.folder}")
            number = bisect_right(self.starts, row) - 1
            found.append(columns[number][row - self.starts[number]].as_py())
        return found

    def remove_old_files(self) -> None:
        """Removes the files that belong to former states of the index; call it within ``locked``."""
        used = {f"{segment.record['xxh3']}.arrow" for segment in self.segments}
        for path in self.folder.iterdir():
            if path.name == PENDING or (OLD.fullmatch(path.name) and path.name not in used):
                with suppress(OSError):  # on Windows, a file that is mapped into memory cannot be removed
                    path.unlink()
        remove_derived(self.folder, self.generation)
        remove_leftovers(self.folder)


def save_arrays(folder: Path, **arrays: npt.NDArray[Any]) -> None:
    """Writes arrays, and their hashes, to a folder, atomically."""
    with fresh_folder(folder) as fresh:
        for name, values in arrays.items():
            np.save(fresh / f"{name}.npy", values)
        hashes = {name: _core.hash_file(fresh / f"{name}.npy") for name in arrays}
        (fresh / HASHES).write_text(json.dumps(hashes), encoding="utf8")


def open_arrays(folder: Path, *names: str, verify: bool = True) -> list[npt.NDArray[Any]]:
    """Opens arrays that ``save_arrays`` wrote, mapped into memory.

    Raises ``InputError`` if they cannot be read or, with ``verify``, if a file differs from its stored hash.
    """
    try:
        hashes = json.loads((folder / HASHES).read_bytes())
        if verify and any(hashes[name] != _core.hash_file(folder / f"{name}.npy") for name in names):
            raise ValueError("a file is damaged")
        return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: cannot be read ({error}); remove the folder to build it again") from None


def remove_derived(folder: Path, generation: str) -> None:
    """Removes the BM25 indexes and the neighbours of other states of an index."""
    for path in folder.iterdir():
        of = re.fullmatch(r"(?:bm25|smooth|tokens)(?:-([0-9a-f]{32})(?:-[a-z]+){0,2})?", path.name)
        if of and of[1] != generation:
            shutil.rmtree(path, ignore_errors=True)

"""The files of a search index, and the settings that they hold.

``rows.arrow`` is an Arrow IPC file with the columns ``id`` (if the index has ids), ``text``, ``hash`` and ``passages``:
the ranges of characters of the text that were encoded, each with its float32 vector. The metadata of its schema hold
the settings of the index and a checksum of the file. A build writes the whole file and then replaces it.
``encoded-*.arrow`` hold the hashes and passages of the rows that an interrupted build has encoded, and ``bm25-HASH-*``
is the BM25 index of the texts with this hash, with the terms ``*`` (``bm25.py``).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import cse._core as _core

from .. import io
from ..data.corpus import Corpus
from ..encoder.base import compared_by
from ..errors import InputError, check_integer

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Progress = Callable[[int], None]

AGAIN = "build the index again with --rebuild"
VERSION, ROWS, ENCODED = 6, "rows.arrow", "encoded-*.arrow"
# What precedes the checksum in the metadata, what stands in its place while it is computed, and bytes of a file that
# are hashed together.
CHECK, NO_CHECK, CHECKED = b'"checksum": "', "0" * 32, 1 << 20
# About the number of vectors of a record batch.
BATCH = 1 << 16


class Settings(TypedDict):
    """The settings of an index, in the metadata of its file; see ``settings_of``."""

    version: int
    checksum: str
    model: str
    pooler: str | None
    prompt: str | None
    dims: int | None
    digest: str
    precision: str
    width: int
    similarity: str
    passages: int | None


class Rows:
    """The content of a file, mapped into memory; ``check`` reads it once and compares its checksum.

    The checksum detects damage and has no key, so that anybody can write a file with a right one. What PyArrow and the
    search rely on is checked too: the settings, the columns, the offsets in them, and that vectors are finite.
    """

    def __init__(self, path: Path, check: bool = True) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:  # pa.memory_map refuses names that are not UTF-8
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            reader = pa.ipc.open_file(pa.py_buffer(data))
            settings: dict[str, Any] = json.loads(reader.schema.metadata[b"cse"])
            if settings.pop("version") != VERSION:
                raise InputError(f"{path.parent}: was built by another version of cse; {AGAIN}")
            at, value = checksum(data) if check else (0, b"")
            if data[at : at + len(value)] != value:
                raise ValueError
            io.checked({**settings, "version": VERSION}, Settings, path, f"; {AGAIN}")
            del settings["checksum"]
            self.settings, self.table = settings, reader.read_all()
            # Offsets and UTF-8, which takes 8 ms for a million rows; a file that this process wrote is not checked.
            self.table.validate(full=check)
            if settings["width"] < 1 or not has_shape(self.table, settings["width"], path.name == ROWS):
                raise ValueError
            lists = self.table.column("passages").chunks
            items = [chunk.flatten() for chunk in lists]
            self.vectors = [each.field("vector").flatten().to_numpy().reshape(len(each), -1) for each in items]
            if check and not all(np.isfinite(array.sum()) for array in self.vectors):
                raise ValueError
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as why:
            if isinstance(why, InputError) or getattr(why, "errno", None) is not None:  # it cannot be read
                raise
            raise InputError(f"{path}: is damaged; {AGAIN}") from None
        self.spans = np.hstack([[each.field(name).to_numpy() for name in ("start", "end")] for each in items]).T
        """Range of characters of each vector, ``(vectors, 2)`` uint32."""
        self.counts = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in lists])
        """Number of vectors of each row."""
        self.hashes: Hashes = self.table.column("hash").to_numpy()
        self.has_ids = "id" in self.table.column_names

    @cached_property
    def generation(self) -> str:
        return hashlib.sha256(self.hashes.tobytes()).hexdigest()[:32]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``cse.Encoder`` with which the index was built; ``InputError`` if the encoder was one of
        modules, or changed since it was opened."""
        if not self.settings["model"]:
            raise InputError(
                f"{self.path.parent}: was built with an encoder that was not in files; save it and {AGAIN}, or give "
                "SearchIndex.open that encoder"
            )
        return {name: self.settings[name] for name in ("model", "pooler", "prompt", "dims")}

    def ids(self) -> list[str] | None:
        return self.table.column("id").to_pylist() if self.has_ids else None

    def values(self, name: str, rows: Iterable[int]) -> list[str]:
        """Returns the values of some rows in a column, without ``take``, which copies the whole column."""
        column = self.table.column(name)
        return [column[int(row)].as_py() for row in rows]


def has_shape(table: pa.Table, width: int, whole: bool) -> bool:
    """Returns whether a table has rows without nulls in the columns of an index (``whole``) or of a part of one, with
    vectors of this width."""
    item = pa.struct([("start", pa.uint32()), ("end", pa.uint32()), ("vector", pa.list_(pa.float32(), width))])
    columns = [("text", pa.large_string())] if whole else []
    columns += [("hash", pa.uint64()), ("passages", pa.list_(item))]
    own = [(field.name, field.type) for field in table.schema]
    if own not in (columns, [("id", pa.large_string()), *columns]) or not table.num_rows:
        return False
    items = [chunk.flatten() for chunk in table.column("passages").chunks]
    vectors = [each.field("vector") for each in items]
    places = [each.field(name) for each in items for name in ("start", "end")]
    arrays = [*table.columns, *items, *vectors, *places, *(each.flatten() for each in vectors)]
    return not sum(array.null_count for array in arrays)


def checksum(data: mmap.mmap, release: bool = False) -> tuple[int, bytes]:
    """Returns where the checksum of a file is stored, and the checksum of all other bytes.

    With ``release``, pages that were read are unmapped, so that memory does not grow by the size of the file.
    """
    at, sums = data.rfind(CHECK) + len(CHECK), []
    for start in range(0, at, CHECKED):
        sums.append(_core.hash_bytes(data[start : min(start + CHECKED, at)]))
        if release:
            data.madvise(mmap.MADV_DONTNEED, start, CHECKED)
    return at, _core.hash_bytes("".join(sums).encode() + data[at + len(NO_CHECK) :]).encode()


def write(path: Path, settings: dict[str, Any], batches: Iterator[pa.RecordBatch], sync: bool = True) -> None:
    """Writes record batches to a file, atomically; ``sync`` waits until the disk has it."""
    first = next(batches)
    about = {"cse": io.dumps({**settings, "version": VERSION, "checksum": NO_CHECK})}

    def save(file: Any) -> None:
        with pa.ipc.new_file(file, first.schema.with_metadata(about)) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch)
        file.flush()
        at, value = checksum(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), release=True)
        file.seek(at)
        file.write(value)
        file.flush()
        if sync:
            os.fsync(file.fileno())

    io.write_atomically(path, save)


def batch_of(
    columns: dict[str, Any], counts: Numbers, spans: npt.NDArray[np.uint32], vectors: Floats
) -> pa.RecordBatch:
    """Returns a record batch of rows; ``counts`` is the number of vectors of each row."""
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    items = pa.StructArray.from_arrays([*map(pa.array, spans.T), values], names=["start", "end", "vector"])
    passages = pa.ListArray.from_arrays(pa.array(edges(counts), pa.int32()), items)
    return pa.record_batch({**columns, "passages": passages})


def positions(known: Sequence[Rows], hashes: Hashes) -> Numbers:
    """Returns the first position of each hash in the rows of files, one after the other; -1 if there is none."""
    chunks = [chunk for rows in known for chunk in rows.table.column("hash").chunks]
    found = pc.index_in(pa.array(hashes), pa.chunked_array(chunks, pa.uint64()))
    return found.fill_null(-1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def gathered(known: Sequence[Rows], corpus: Corpus, ids: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yields record batches of the rows of a corpus, with the vectors that files have for the same texts."""
    hashes = corpus.hashes()
    at = positions(known, hashes)
    counts, spans = (np.concatenate([getattr(rows, name) for rows in known]) for name in ("counts", "spans"))
    firsts, arrays = np.cumsum(counts) - counts, [array for rows in known for array in rows.vectors]
    step = max(1, BATCH * len(at) // int(counts[at].sum()))
    for start in range(0, len(at), step):
        part, own = slice(start, start + step), at[start : start + step]
        columns = {} if ids is None else {"id": pa.array(ids[part], pa.large_string())}
        texts = corpus.take(range(*part.indices(len(at))))
        columns |= {"text": pa.array(texts, pa.large_string()), "hash": pa.array(hashes[part])}
        places = ranges(firsts[own], counts[own])
        yield batch_of(columns, counts[own], spans[places], taken(arrays, places))


def edges(counts: Numbers) -> Numbers:
    """Returns where each of several parts with these lengths begins, and where the last one ends."""
    return np.append(0, np.cumsum(counts))


def ranges(firsts: Numbers, counts: Numbers) -> Numbers:
    """Returns the numbers of several ranges, one after the other, given the first and the count of each."""
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def taken(arrays: Sequence[Floats], places: Numbers) -> Floats:
    """Returns the vectors at some places in arrays that follow one another, ``(len(places), D)``."""
    starts = edges(np.array([*map(len, arrays)]))
    vectors = np.empty((len(places), arrays[0].shape[1]), dtype=np.float32)
    numbers = np.searchsorted(starts, places, side="right") - 1
    for number in np.unique(numbers).tolist():
        at = numbers == number
        vectors[at] = arrays[number][places[at] - starts[number]]
    return vectors


def scaled(vectors: npt.NDArray[np.floating], settings: dict[str, Any]) -> Floats:
    """Returns vectors in float32, of unit length (or zero) unless the similarity is the dot product."""
    if settings["similarity"] == "dot":
        return np.asarray(vectors, dtype=np.float32)
    wide = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(norms > 0, norms, 1)).astype(np.float32)


def settings_of(encoder: Encoder, passages: int | str | None = None) -> dict[str, Any]:
    """Returns the settings to be stored in a new index."""
    from ..encoder.resolve import model_digest

    digest = model_digest(encoder)  # refuses what is not an encoder of this package
    if passages is not None:
        from ..encoder.passages import Cutter

        passages = Cutter(encoder, None if passages == "max" else check_integer(passages, "--passages")).tokens
    name, pooler = encoder.given
    if encoder.changed:
        name = ""
    kind, colon, what = name.partition(":")
    if name and Path(name).is_dir():
        name = str(Path(name).resolve())
    elif colon and Path(what).is_file():  # so that the index can be used from another folder
        name = f"{kind}:{Path(what).resolve()}"
    return {
        "model": name,
        "pooler": pooler,
        "prompt": getattr(encoder, "given_prompt", None),
        "dims": getattr(encoder, "dims", None),
        "digest": digest,
        "precision": encoder.precision,
        "width": encoder.embedding_dim,
        "similarity": compared_by(encoder)[0],
        "passages": passages,
    }


def check_settings(folder: Path, known: dict[str, Any], encoder: Encoder, passages: int | str | None = None) -> None:
    """Raises ``InputError`` if an index was built with another model, prompt, dimensions or, if given, passages."""
    settings = settings_of(encoder, passages)
    for name in ("prompt", "dims", *(["passages"] if passages is not None else [])):
        if (value := known[name]) != settings[name]:
            raise built_otherwise(folder, f"with --{name} {value!r}" if value else f"without --{name}")
    if known["digest"] != settings["digest"] or known["similarity"] != settings["similarity"]:
        former = "a former version of " if known["model"] == settings["model"] else ""
        model = f"{former}{known['model']}" if known["model"] else "another encoder in memory"
        raise InputError(f"folder {folder} holds vectors of {model}; -o names another, or {AGAIN}")


def built_otherwise(folder: Path, how: str) -> InputError:
    return InputError(f"{folder}: was built {how}; use the same option, {AGAIN}, or name another folder (-o)")


def opened(folder: Path, check: bool = True) -> Rows:
    """Returns the rows of an index; raises ``InputError`` if the folder has no complete one."""
    if (folder / ROWS).exists():
        return Rows(folder / ROWS, check)
    if any(folder.glob(ENCODED)):
        raise InputError(f"{folder}: its build was interrupted; run the same command again to complete it")
    raise InputError(f"{folder}: no index there; make one with 'cse search MODEL CORPUS -o {folder}'")

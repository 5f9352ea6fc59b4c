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
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .. import io
from ..data.corpus import Corpus
from ..encoder.base import compared_by, naming_rows
from ..errors import InputError, check_ids, check_integer, shortened

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Progress = Callable[[int], None]

AGAIN = "build the index again with --rebuild"
VERSION, ROWS, ENCODED = 5, "rows.arrow", "encoded-*.arrow"
# What precedes the checksum in the metadata, and what stands in its place while it is computed.
CHECK, NO_CHECK = b'"crc32": "', "00000000"
# Texts that are encoded, and then stored, together; about the number of vectors of a record batch; and bytes of a file
# that are checked together.
BLOCK, BATCH, CHECKED = 4096, 1 << 16, 1 << 26


@dataclass(frozen=True)
class Changes:
    """Numbers of rows whose text was already encoded, with a new text, and that are no longer in an index."""

    kept: int
    encoded: int
    dropped: int


class Rows:
    """The content of a file, mapped into memory; ``check`` reads it once and compares its checksum."""

    def __init__(self, path: Path, check: bool = True) -> None:
        try:
            with open(path, "rb") as file:  # pa.memory_map refuses names that are not UTF-8
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            reader = pa.ipc.open_file(pa.py_buffer(data))
            self.settings: dict[str, Any] = json.loads(reader.schema.metadata[b"cse"])
            if self.settings.pop("version") != VERSION:
                raise InputError(f"{path.parent}: was built by another version of cse; {AGAIN}")
            del self.settings["crc32"]
            at, value = checksum(data) if check else (0, b"")
            if data[at : at + len(value)] != value:
                raise ValueError
            self.table = reader.read_all()
            self.table.validate()  # so that a file that is not checked can be opened
        except (FileNotFoundError, InputError):
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{path}: is damaged; {AGAIN}") from None
        lists = self.table.column("passages").chunks
        items, width = [chunk.flatten() for chunk in lists], self.settings["width"]
        self.vectors = [each.field("vector").flatten().to_numpy().reshape(len(each), width) for each in items]
        self.spans = np.hstack([[each.field(name).to_numpy() for name in ("start", "end")] for each in items]).T
        """Range of characters of each vector, ``(vectors, 2)`` uint32."""
        self.counts = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in lists])
        """Number of vectors of each row."""
        self.hashes: Hashes = self.table.column("hash").to_numpy()
        self.generation = hashlib.sha256(self.hashes.tobytes()).hexdigest()[:32]
        self.has_ids = "id" in self.table.column_names

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``cse.Encoder`` with which the index was built."""
        return {name: self.settings[name] for name in ("model", "pooler", "prompt", "dims")}

    def ids(self) -> list[str] | None:
        return self.table.column("id").to_pylist() if self.has_ids else None

    def values(self, name: str, rows: Iterable[int]) -> list[str]:
        """Returns the values of some rows in a column, without ``take``, which copies the whole column."""
        column = self.table.column(name)
        return [column[int(row)].as_py() for row in rows]


def checksum(data: mmap.mmap) -> tuple[int, bytes]:
    """Returns where the checksum of a file is stored, in eight digits, and what it must be: the checksum of all other bytes."""
    at, view = data.rfind(CHECK) + len(CHECK), memoryview(data)
    parts = [view[start : min(start + CHECKED, at)] for start in range(0, at, CHECKED)]
    with ThreadPoolExecutor(2) as threads:
        sums = [*threads.map(zlib.crc32, [*parts, view[at + len(NO_CHECK) :]])]
    return at, f"{zlib.crc32(repr(sums).encode()):08x}".encode()


def write(path: Path, settings: dict[str, Any], batches: Iterator[pa.RecordBatch]) -> None:
    """Writes record batches to a file, atomically."""
    first = next(batches)
    about = {"cse": io.dumps({**settings, "version": VERSION, "crc32": NO_CHECK})}

    def save(file: Any) -> None:
        with pa.ipc.new_file(file, first.schema.with_metadata(about)) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch)
        file.flush()
        at, value = checksum(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        file.seek(at)
        file.write(value)
        file.flush()
        os.fsync(file.fileno())

    io.write_atomically(path, save)


def batch_of(
    columns: dict[str, Any], counts: Numbers, spans: npt.NDArray[np.uint32], vectors: Floats
) -> pa.RecordBatch:
    """Returns a record batch of rows; ``counts`` is the number of vectors of each row."""
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    items = pa.StructArray.from_arrays([*map(pa.array, spans.T), values], names=["start", "end", "vector"])
    passages = pa.ListArray.from_arrays(pa.array(np.cumsum([0, *counts]), pa.int32()), items)
    return pa.record_batch({**columns, "passages": passages})


def updated(
    path: Path,
    encoder: Encoder,
    corpus: Corpus,
    ids: list[str] | None,
    passages: int | str | None,
    rebuild: bool,
    batch_size: int,
    progress: Progress,
) -> tuple[Rows, Changes | None]:
    """Makes the index in a folder one of a corpus; returns its rows, and what changed if there was one."""
    hashes = corpus.hashes()
    before = Rows(path / ROWS) if not rebuild and (path / ROWS).exists() else None
    known = [] if before is None else [before]
    for part in [] if rebuild else sorted(path.glob(ENCODED)):
        with suppress(InputError):  # damaged: encoded again
            known.append(Rows(part))
    settings = known[0].settings if known else settings_of(encoder, passages)
    if known:
        check_settings(path, settings, encoder, passages)
        known = [rows for rows in known if rows.settings == settings]
    at = positions(known, hashes)
    new, dropped = np.flatnonzero(at < 0), 0
    if before is not None:
        if before.has_ids != (ids is not None):
            has, give = ("ids", "give ids") if before.has_ids else ("no ids", "omit ids")
            raise InputError(f"{path}: the rows of this index have {has}; {give}, or {AGAIN}")
        if not ((at >= 0) & (at < len(before.hashes)))[corpus.filled()].any():
            raise InputError(
                f"{path}: contains other texts, and none of this corpus; {AGAIN}, or name another folder (-o)"
            )
        dropped = (Counter(before.hashes.tolist()) - Counter(hashes.tolist())).total()
    changes = Changes(len(hashes) - len(new), len(new), dropped) if known else None
    unseen = new[np.sort(np.unique(hashes[new], return_index=True)[1])]
    if len(unseen) and settings["precision"] != encoder.precision:
        raise built_otherwise(path, f"with --precision {settings['precision']}")
    progress(len(hashes) - len(unseen))
    if (rows := before) is None or not np.array_equal(rows.hashes, hashes) or rows.ids() != ids:
        for start in range(0, len(unseen), BLOCK):
            some = unseen[start : start + BLOCK]
            part = path / ENCODED.replace("*", f"{hashes[some[0]]:016x}")
            made = encoded(encoder, settings, some, corpus.take(some), hashes[some], batch_size, progress)
            write(part, settings, iter([made]))
            known.append(Rows(part, check=False))
        write(path / ROWS, settings, gathered(known, corpus, ids))
        rows = Rows(path / ROWS, check=False)
    for left in [*path.glob(ENCODED), *path.glob("bm25-*")]:
        if rows.generation not in left.name:
            with suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return rows, changes


def encoded(
    encoder: Encoder,
    settings: dict[str, Any],
    rows: Numbers,
    texts: list[str],
    hashes: Hashes,
    batch_size: int,
    progress: Progress,
) -> pa.RecordBatch:
    """Encodes texts, whole or in passages; ``rows`` are their numbers, for errors. Returns hashes and passages."""
    cut = [[(0, len(text))] if text.strip() else [] for text in texts]
    if settings["passages"] is not None:
        from ..encoder.passages import Cutter

        cut = Cutter(encoder, settings["passages"])(texts)
    passages = [text[start:end] for text, spans in zip(texts, cut, strict=True) for start, end in spans]
    counts, by_row = np.array([*map(len, cut)]), len(passages) == len(texts)
    with naming_rows(np.repeat(rows, counts)):
        vectors = encoder.encode_document(passages, batch_size=batch_size, progress=progress if by_row else None)
    if not by_row:
        progress(len(texts))
    spans = np.array([span for spans in cut for span in spans], dtype=np.uint32).reshape(-1, 2)
    return batch_of({"hash": pa.array(hashes)}, counts, spans, scaled(vectors, settings))


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


def ranges(firsts: Numbers, counts: Numbers) -> Numbers:
    """Returns the numbers of several ranges, one after the other, given the first and the count of each."""
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def taken(arrays: Sequence[Floats], places: Numbers) -> Floats:
    """Returns the vectors at some places in arrays that follow one another, ``(len(places), D)``."""
    starts = np.cumsum([0, *map(len, arrays)])
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
        raise InputError(f"folder {folder} holds vectors of {former}{known['model']}; -o names another, or {AGAIN}")


def built_otherwise(folder: Path, how: str) -> InputError:
    return InputError(f"{folder}: was built {how}; use the same option, {AGAIN}, or name another folder (-o)")


def opened(folder: Path, check: bool = True) -> Rows:
    """Returns the rows of an index; raises ``InputError`` if the folder has no complete one."""
    if (folder / ROWS).exists():
        return Rows(folder / ROWS, check)
    if any(folder.glob(ENCODED)):
        raise InputError(f"{folder}: its build was interrupted; run the same command again to complete it")
    raise InputError(f"{folder}: no index there; make one with 'cse search MODEL CORPUS -o {folder}'")


def checked_ids(ids: Iterable[str], rows: int) -> list[str]:
    """Returns ids, in which line breaks become spaces; raises ``InputError`` unless each row has another one."""
    listed = [name.replace("\n", " ").encode("utf8", "replace").decode() for name in check_ids(ids)]
    if len(listed) != rows:
        raise InputError(f"ids: {len(listed):,} were given for {rows:,} rows; each row needs one")
    if blank := next((number for number, name in enumerate(listed, 1) if not name.strip()), 0):
        raise InputError(f"ids: row {blank:,} has no id; each row needs one")
    ((name, times),) = Counter(listed).most_common(1)
    if times > 1:
        raise InputError(f"ids: {shortened(repr(name))} is the id of several rows; make the ids unique")
    return listed

"""The rows of a search index: one Arrow IPC file, ``rows.arrow``, which is replaced as a whole.

The metadata of its schema hold the settings of the index. A row has the columns ``id`` (if the index has ids),
``text``, ``hash`` and ``passages``: the ranges of characters of its text that were encoded, each with its float32
vector. Each record batch is stored with the CRC-32 of its buffers. The folder ``encoded`` has files of the same form
with the rows that an interrupted build or update has encoded, and ``bm25-HASH-*`` is the BM25 index of the texts with
this hash (``Rows.generation``), with the terms ``*`` (``bm25.py``).
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import io
from ..data.corpus import Corpus
from ..encoder.base import compared_by, naming_rows
from ..errors import InputError, check_integer
from .vectors import Floats, Numbers, Vectors, unit

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

AGAIN = "build the index again with --rebuild"
VERSION = 4
ROWS, ENCODED = "rows.arrow", "encoded"
SPAN = ("start", "end")

# Number of texts that are encoded, and then stored, together.
BLOCK = 4096
# Approximate size of the vectors of a record batch; each batch adds a constant time to a search.
BATCH_BYTES = 256 << 20

Hashes = npt.NDArray[np.uint64]
Progress = Callable[[int], None]
Wanted = tuple[Corpus, list[str] | None]
"""The texts and, if they have any, the ids that an index shall contain."""


class Rows:
    """The rows of a file, mapped into memory; ``verify`` reads it and compares the rows with their checksums."""

    def __init__(self, path: Path, verify: bool = True) -> None:
        import pyarrow as pa

        try:
            with open(path, "rb") as opened:  # pa.memory_map refuses names that are not UTF-8
                mapped = pa.py_buffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            reader = pa.ipc.open_file(mapped)
            self.settings: dict[str, Any] = json.loads(reader.schema.metadata[b"cse"])
            version, check = (self.settings.pop(name) for name in ("version", "check"))
            if version != VERSION:
                raise InputError(f"{path.parent}: was built by another version of cse; {AGAIN}")
            if check != _check(self.settings) or not reader.schema.equals(schema(self.settings)):
                raise ValueError
            read = [reader.get_batch_with_custom_metadata(number) for number in range(reader.num_record_batches)]
            batches, stored = [batch for batch, _ in read], [int(metadata[b"crc32"]) for _, metadata in read]
            self.path, self.table = path, pa.Table.from_batches(batches)
            self.table.validate(full=True)  # an offset out of range would read memory outside the file
            with ThreadPoolExecutor(2) as threads:
                if verify and [*threads.map(_checksum, batches)] != stored:
                    raise ValueError
        except (FileNotFoundError, InputError):
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{path}: is damaged; {AGAIN}") from None
        lists = self.table.column("passages").chunks
        passages, width = [chunk.flatten() for chunk in lists], self.settings["width"]
        arrays = [each.field("vector").flatten().to_numpy().reshape(len(each), width) for each in passages]
        self.vectors = Vectors(arrays, 1.0001 if self.settings["similarity"] == "cosine" else None)
        self.spans = np.hstack([np.stack([each.field(name).to_numpy() for name in SPAN]) for each in passages]).T
        """Range of characters of each vector, ``(vectors, 2)`` uint32."""
        self.counts = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in lists])
        self.hashes: Hashes = self.table.column("hash").to_numpy()
        self.row_of: Numbers = np.repeat(np.arange(len(self)), self.counts)
        """Row of each vector, ``(vectors,)`` int64, ascending."""
        self.generation = hashlib.sha256(self.hashes.tobytes()).hexdigest()[:32]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``cse.Encoder`` with which the index was built."""
        return {name: self.settings[name] for name in ("model", "pooler", "prompt", "dims")}

    def texts(self, rows: Iterable[int] | None = None) -> list[str]:
        """Returns the texts of some rows; None: of all."""
        return self._values("text", rows)

    def ids(self, rows: Iterable[int] | None = None) -> list[str]:
        """Returns the ids of some rows, or their row numbers as text if the index has no ids; None: of all."""
        if self.settings["ids"]:
            return self._values("id", rows)
        return [str(row) for row in (range(len(self)) if rows is None else rows)]

    def _values(self, name: str, rows: Iterable[int] | None) -> list[str]:
        column = self.table.column(name)
        taken = column if rows is None else column.take(np.array([*rows], dtype=np.int64))
        return taken.to_pylist()  # type: ignore[no-any-return]


def schema(settings: dict[str, Any]) -> Any:
    """Returns the Arrow schema of rows with these settings, which are in its metadata."""
    import pyarrow as pa

    passage = [(name, pa.uint32()) for name in SPAN] + [("vector", pa.list_(pa.float32(), settings["width"]))]
    columns = [("id", pa.large_string())] if settings["ids"] else []
    columns += [("text", pa.large_string()), ("hash", pa.uint64()), ("passages", pa.list_(pa.struct(passage)))]
    return pa.schema(columns, {"cse": io.dumps({**settings, "version": VERSION, "check": _check(settings)})})


def batch_of(
    settings: dict[str, Any],
    ids: Sequence[str] | None,
    texts: Sequence[str],
    hashes: Hashes,
    counts: Numbers,
    spans: npt.NDArray[np.uint32],
    vectors: Floats,
) -> Any:
    """Returns a record batch of rows; ``counts`` is the number of vectors of each row."""
    import pyarrow as pa

    columns = schema(settings)
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), settings["width"])
    kind = columns.field("passages").type
    items = pa.StructArray.from_arrays([*map(pa.array, spans.T), values], fields=[*kind.value_type])
    passages = pa.ListArray.from_arrays(pa.array(np.cumsum([0, *counts]), pa.int32()), items, type=kind)
    named = [] if ids is None else [pa.array(ids, pa.large_string())]
    return pa.record_batch([*named, pa.array(texts, pa.large_string()), pa.array(hashes), passages], schema=columns)


def write_rows(path: Path, settings: dict[str, Any], batches: Iterable[Any]) -> None:
    """Writes record batches to a file, atomically."""
    import pyarrow as pa

    def write(file: Any) -> None:
        with pa.ipc.new_file(file, schema(settings)) as writer:
            for batch in batches:
                writer.write_batch(batch, custom_metadata={"crc32": str(_checksum(batch))})
        file.flush()
        os.fsync(file.fileno())

    io.write_atomically(path, write)


def _checksum(batch: Any) -> int:
    """Returns the CRC-32 of the buffers of a record batch, each of which begins at its first row."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers())
    return reduce(lambda value, buffer: zlib.crc32(buffer or b"", value), buffers, 0)


def _check(settings: dict[str, Any]) -> str:
    return hashlib.sha256(io.dumps(settings).encode()).hexdigest()[:32]


def read_index(folder: Path, verify: bool = True) -> Rows | None:
    """Returns the rows of an index folder; None if it has none."""
    path = folder / ROWS
    return Rows(path, verify) if path.exists() else None


def read_encoded(folder: Path) -> list[Rows]:
    """Returns the rows that an interrupted build or update has encoded; files that are damaged are left out."""
    encoded = []
    for path in sorted((folder / ENCODED).glob("*.arrow")):
        with suppress(InputError, FileNotFoundError):
            encoded.append(Rows(path))
    return encoded


def opened(folder: Path, verify: bool = True) -> Rows:
    """Returns the rows of an index; raises ``InputError`` if the folder has none."""
    if (rows := read_index(folder, verify)) is not None:
        return rows
    if encoded := sum(map(len, read_encoded(folder))):
        raise InputError(
            f"{folder}: its build was interrupted after {encoded:,} rows; run the same command again to complete it"
        )
    raise InputError(f"{folder}: no index there; make one with 'cse search MODEL CORPUS -o {folder}'")


def built_with(folder: Path) -> dict[str, Any] | None:
    """Returns the arguments of the encoder of an index, complete or interrupted; None for other folders."""
    known = read_index(folder, False) or next(iter(read_encoded(folder)), None)
    return None if known is None else known.arguments


def settings_of(encoder: Encoder, passages: int | str | None = None) -> dict[str, Any]:
    """Returns the settings to be stored in a new index without ids."""
    from ..encoder.resolve import model_digest

    if passages is not None:
        from ..encoder.passages import Cutter

        passages = Cutter(encoder, None if passages == "max" else check_integer(passages, "--passages")).tokens
    digest = model_digest(encoder)  # refuses what is not an encoder of this package
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
        "ids": False,
        "passages": passages,
    }


def check_settings(folder: Path, known: dict[str, Any], encoder: Encoder, passages: int | str | None = None) -> None:
    """Raises ``InputError`` if an index was built with another model, prompt, dimensions or, if given, passages."""
    settings = settings_of(encoder, passages)
    for name in ("prompt", "dims", *(["passages"] if passages is not None else [])):
        if (value := known[name]) != settings[name]:
            raise built_otherwise(folder, f"with --{name} {value!r}" if value else f"without --{name}")
    if known["digest"] != settings["digest"] or known["similarity"] != settings["similarity"]:
        raise built_otherwise(folder, f"with another model ({known['model']})", "use that model")


def built_otherwise(folder: Path, how: str, remedy: str = "use the same option") -> InputError:
    """Returns the error for an index that was built ``how``."""
    return InputError(
        f"{folder}: was built {how}; {remedy}, build the index again with --rebuild, or name another folder"
    )


@dataclass(frozen=True)
class Changes:
    """Numbers of rows whose text was already encoded, with a new text, and that are no longer in an index."""

    kept: int
    encoded: int
    dropped: int


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks an index folder for writing, and creates the folder if it does not exist."""
    if io.holds_files(folder) and not any((folder / name).exists() for name in (ROWS, ENCODED)):
        raise InputError(f"{folder}: holds files that are not part of an index; name a new folder")
    with io.naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with io.locked(folder, f"{folder}: another process is writing to this index; wait for it"):
        try:
            yield
        finally:
            with suppress(OSError):  # what an interrupted build has encoded is kept
                (folder / ENCODED).rmdir()


def write_index(
    folder: Path,
    encoder: Encoder,
    wanted: Callable[[Rows | None], Wanted],
    *,
    passages: int | str | None = None,
    rebuild: bool = False,
    verify: bool = True,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> tuple[Rows, Changes | None]:
    """Makes an index contain what ``wanted`` returns for its current rows; call it within ``locked``.

    Returns the rows, and what changed if there was an index, perhaps an incomplete one.
    """
    more = progress or (lambda rows: None)
    before = None if rebuild else read_index(folder, verify)
    encoded = [] if rebuild else read_encoded(folder)
    if (known := before or next(iter(encoded), None)) is None:
        made = settings_of(encoder, passages)
    else:
        check_settings(folder, known.settings, encoder, passages)
        made = {**known.settings, "ids": False}  # what is in ``encoded`` has no ids
    corpus, ids = wanted(before)
    hashes, settings = corpus.hashes(), {**made, "ids": ids is not None}
    if before is not None:
        if before.settings["ids"] != settings["ids"]:
            has, give = ("ids", "give ids") if before.settings["ids"] else ("no ids", "omit ids")
            raise InputError(f"{folder}: the rows of this index have {has}; {give}, or {AGAIN}")
        if np.array_equal(before.hashes, hashes) and (ids is None or before.ids() == ids):
            more(len(hashes))
            _tidy(folder, before)
            return before, Changes(len(hashes), 0, 0)
    sources = [*([] if before is None else [before]), *(rows for rows in encoded if rows.settings == made)]
    new = np.flatnonzero(_positions(sources, hashes) < 0)
    unseen = new[np.sort(np.unique(hashes[new], return_index=True)[1])]
    if len(unseen) and made["precision"] != encoder.precision:
        raise built_otherwise(folder, f"with --precision {made['precision']}")
    if len(unseen) < len(hashes):
        more(len(hashes) - len(unseen))
    for start in range(0, len(unseen), BLOCK):
        rows = unseen[start : start + BLOCK]
        path = folder / ENCODED / f"{hashes[rows[0]]:016x}.arrow"
        path.parent.mkdir(exist_ok=True)
        write_rows(path, made, [_encoded(made, encoder, batch_size, rows, corpus.take(rows), hashes[rows], more)])
        sources.append(Rows(path, verify=False))  # mapped, to save memory
    write_rows(folder / ROWS, settings, _gathered(settings, sources, corpus, ids))
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / ENCODED)
    written = Rows(folder / ROWS, verify=False)
    _tidy(folder, written)
    dropped = Counter([] if before is None else before.hashes.tolist()) - Counter(hashes.tolist())
    return written, Changes(len(hashes) - len(new), len(new), dropped.total()) if known else None


def _tidy(folder: Path, rows: Rows) -> None:
    """Removes what was derived from former rows."""
    for path in folder.glob("bm25-*"):
        if path.name.split("-")[1] != rows.generation:
            shutil.rmtree(path, ignore_errors=True)


def _positions(sources: Sequence[Rows], hashes: Hashes) -> Numbers:
    """Returns the first position of each hash in the rows of the sources, one after the other; -1 if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.chunked_array([source.table.column("hash").combine_chunks() for source in sources], pa.uint64())
    return pc.index_in(pa.array(hashes), known).fill_null(-1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _gathered(
    settings: dict[str, Any], sources: Sequence[Rows], corpus: Corpus, ids: list[str] | None
) -> Iterator[Any]:
    """Yields record batches of the rows of a corpus, with the vectors that the sources have for the same texts."""
    hashes = corpus.hashes()
    at = _positions(sources, hashes)
    counts, spans = (np.concatenate([getattr(source, name) for source in sources]) for name in ("counts", "spans"))
    firsts = np.cumsum(counts) - counts
    vectors = Vectors([array for source in sources for array in source.vectors.arrays], 0)
    per_row = max(1, 4 * settings["width"] * len(vectors) // max(len(counts), 1))
    step = max(BLOCK, BATCH_BYTES // per_row)
    for start in range(0, len(hashes), step):
        part = slice(start, start + step)
        number = counts[at[part]]
        places = np.repeat(firsts[at[part]] - (np.cumsum(number) - number), number) + np.arange(number.sum())
        texts, named = corpus.take(range(*part.indices(len(hashes)))), None if ids is None else ids[part]
        yield batch_of(settings, named, texts, hashes[part], number, spans[places], vectors.rows(places))


def _encoded(
    settings: dict[str, Any],
    encoder: Encoder,
    batch_size: int,
    rows: Numbers,
    texts: list[str],
    hashes: Hashes,
    more: Progress,
) -> Any:
    """Encodes texts, whole or in passages; ``rows`` are their numbers, for errors. Returns a record batch."""
    cut = [[(0, len(text))] if text.strip() else [] for text in texts]
    if settings["passages"] is not None:
        from ..encoder.passages import Cutter

        cut = Cutter(encoder, settings["passages"])(texts)
    passages = [text[start:end] for text, spans in zip(texts, cut, strict=True) for start, end in spans]
    counts = np.array([*map(len, cut)])
    by_row = len(passages) == len(texts)
    with naming_rows(np.repeat(rows, counts)):
        vectors = encoder.encode_document(passages, batch_size=batch_size, progress=more if by_row else None)
    vectors = unit(vectors) if settings["similarity"] == "cosine" else np.asarray(vectors, dtype=np.float32)
    if not by_row:
        more(len(texts))
    places = np.array([span for spans in cut for span in spans], dtype=np.uint32).reshape(-1, 2)
    return batch_of(settings, None, texts, hashes, counts, places, vectors)

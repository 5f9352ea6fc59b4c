"""Writes the folder of a search index: encodes new texts, keeps known vectors, and replaces the file of rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import io
from ..encoder.base import naming_rows
from ..errors import InputError
from .rows import ENCODED, ROWS, Hashes, Numbers, Rows, batch_of, opened, write_rows
from .vectors import Vectors, unit

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

# Number of texts that are encoded, and then stored, together.
BLOCK = 4096


# Approximate size of the vectors of a record batch. Each batch adds a constant time to a search.
BATCH_BYTES = 256 << 20


Progress = Callable[[int], None]


Take = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class Changes:
    """What a call changed in an index."""

    kept: int
    """Number of rows whose text was already encoded."""
    encoded: int
    """Number of rows with a new text. Each new text is encoded once."""
    dropped: int
    """Number of rows that are no longer in the index."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks an index folder for writing, and creates the folder if it does not exist.

    Raises ``InputError`` if another process is writing to the folder, or if the folder contains other files.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the index")
    if io.holds_files(folder) and not _is_index(folder):
        raise InputError(f"{folder}: holds files that are not part of an index; name a new folder")
    with io.naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with io.locked(folder, f"{folder}: another process is writing to this index; wait for it"):
        try:
            yield
        finally:
            with suppress(OSError):  # what an interrupted build has encoded is kept
                (folder / ENCODED).rmdir()


def _is_index(folder: Path) -> bool:
    """Returns whether a folder that holds files is one of an index."""
    return any((folder / name).exists() for name in (ROWS, ENCODED))


def write_index(
    folder: Path,
    settings: dict[str, Any],
    encoder: Encoder,
    hashes: Hashes,
    take: Take,
    ids: list[str] | None,
    before: Rows | None,
    encoded: list[Rows],
    batch_size: int,
    progress: Progress | None,
) -> tuple[Rows, Changes]:
    """Makes an index contain rows with these hashes, whose texts ``take`` returns; call it within ``locked``.

    Rows are known by the hashes of their texts. A row whose text is in ``before``, or was encoded by an interrupted
    call, keeps its vectors. Other texts are encoded in blocks, which are stored in the folder ``encoded``. Then the
    file of rows is written anew. Returns the rows, and what changed.
    """
    was = np.empty(0, np.uint64) if before is None else before.hashes
    same = np.array_equal(was, hashes) and (ids is None or (before is not None and before.ids() == ids))
    if before is not None and same:
        if progress:
            progress(len(hashes))
        _tidy(folder, before)
        return before, Changes(len(hashes), 0, 0)
    made = {**settings, "ids": False}
    sources = [*([] if before is None else [before]), *(part for part in encoded if part.settings == made)]
    new = np.flatnonzero(_positions(sources, hashes) < 0)
    unseen = new[np.sort(np.unique(hashes[new], return_index=True)[1])]
    if len(unseen) and settings["precision"] != encoder.precision:
        raise InputError(
            f"{folder}: was built with --precision {settings['precision']}; use the same option, build the index again "
            "with --rebuild, or name another folder"
        )
    if progress and len(unseen) < len(hashes):
        progress(len(hashes) - len(unseen))
    if len(unseen):
        with io.naming(folder):
            (folder / ENCODED).mkdir(exist_ok=True)
    for start in range(0, len(unseen), BLOCK):
        rows = unseen[start : start + BLOCK]
        batch = _encoded(folder, made, encoder, batch_size, rows, take(rows.tolist()), hashes[rows], progress)
        path = folder / ENCODED / f"{hashes[rows[0]]:016x}.arrow"
        write_rows(path, made, [batch])
        sources.append(Rows(path, verify=False))  # mapped, to save memory
    write_rows(folder / ROWS, settings, _gathered(settings, sources, hashes, take, ids))
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / ENCODED)
    written = opened(folder, False)
    _tidy(folder, written)
    (old, had), (left, has) = (np.unique(each, return_counts=True) for each in (was, hashes))
    _, at, to = np.intersect1d(old, left, assume_unique=True, return_indices=True)
    changes = Changes(len(hashes) - len(new), len(new), len(was) - int(np.minimum(had[at], has[to]).sum()))
    return written, changes


def _tidy(folder: Path, rows: Rows) -> None:
    """Removes what was derived from former rows."""
    unused = [path for path in folder.glob("bm25-*") if path.name.split("-")[1] != rows.generation]
    for path in unused:
        with suppress(OSError):
            shutil.rmtree(path)


def _positions(sources: Sequence[Rows], hashes: Hashes) -> Numbers:
    """Returns the first position of each hash in the rows of the sources, one after the other; -1 if there is none."""
    known = np.concatenate([np.empty(0, np.uint64), *(source.hashes for source in sources)])
    if not len(known):
        return np.full(len(hashes), -1)
    order = np.argsort(known, kind="stable")
    at = order[np.minimum(np.searchsorted(known[order], hashes), len(known) - 1)]
    return np.where(known[at] == hashes, at, -1)


def _gathered(
    settings: dict[str, Any], sources: Sequence[Rows], hashes: Hashes, take: Take, ids: list[str] | None
) -> Iterator[Any]:
    """Yields record batches of rows, with the vectors of the rows of the sources that have the same hashes."""
    at = _positions(sources, hashes)
    counts, spans = (np.concatenate([getattr(source, name) for source in sources]) for name in ("counts", "spans"))
    firsts = np.cumsum(counts) - counts
    vectors = Vectors([part for source in sources for part in source.vectors.parts], 0)
    per_row = max(1, 4 * settings["width"] * len(vectors) // max(len(counts), 1))
    step = max(BLOCK, BATCH_BYTES // per_row)
    for start in range(0, len(hashes), step):
        part = slice(start, start + step)
        number = counts[at[part]]
        places = np.repeat(firsts[at[part]] - (np.cumsum(number) - number), number) + np.arange(number.sum())
        texts = take(range(*part.indices(len(hashes))))
        named = None if ids is None else ids[part]
        yield batch_of(settings, named, texts, hashes[part], number, spans[places], vectors.rows(places))


def _encoded(
    folder: Path,
    settings: dict[str, Any],
    encoder: Encoder,
    batch_size: int,
    rows: Numbers,
    texts: list[str],
    hashes: Hashes,
    progress: Progress | None = None,
) -> Any:
    """Encodes texts, whole or in passages; ``rows`` are their numbers, for errors. Returns a record batch."""
    cut = [[(0, len(text))] if text.strip() else [] for text in texts]
    if settings["passages"] is not None:
        from ..encoder.passages import Cutter

        cut = Cutter(encoder, settings["passages"])(texts)
    passages = [text[start:end] for text, spans in zip(texts, cut, strict=True) for start, end in spans]
    by_row = progress if len(passages) == len(texts) else None
    with naming_rows(np.repeat(rows, [*map(len, cut)])):
        vectors = encoder.encode_document(passages, batch_size=batch_size, progress=by_row)
    if vectors.shape[1:] != (settings["width"],):
        raise InputError(
            f"{folder}: holds vectors of {settings['width']} dimensions, but the model's have "
            f"{vectors.shape[1]}; open the index with the model that built it"
        )
    vectors = unit(vectors) if settings["similarity"] == "cosine" else np.asarray(vectors, dtype=np.float32)
    if progress and by_row is None:
        progress(len(texts))
    places = np.array([span for spans in cut for span in spans], dtype=np.uint32).reshape(-1, 2)
    return batch_of(settings, None, texts, hashes, np.array([*map(len, cut)]), places, vectors)

"""Writes the folder of a search index: encodes new texts, keeps known vectors, and replaces the file of rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import io
from ..data.corpus import Corpus
from ..encoder.base import naming_rows
from ..errors import InputError
from .rows import ENCODED, ROWS, Hashes, Rows, batch_of, opened, write_rows
from .vectors import Numbers, Vectors, unit

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

# Number of texts that are encoded, and then stored, together.
BLOCK = 4096
# Approximate size of the vectors of a record batch; each batch adds a constant time to a search.
BATCH_BYTES = 256 << 20

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Changes:
    """Numbers of rows whose text was already encoded, with a new text, and that are no longer in an index."""

    kept: int
    encoded: int
    dropped: int


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks an index folder for writing, and creates the folder if it does not exist."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the index")
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
    settings: dict[str, Any],
    encoder: Encoder,
    corpus: Corpus,
    ids: list[str] | None,
    before: Rows | None,
    encoded: list[Rows],
    batch_size: int,
    progress: Progress | None,
) -> tuple[Rows, Changes]:
    """Makes an index contain the rows of a corpus; call it within ``locked``. Returns the rows, and what changed."""
    hashes = corpus.hashes()
    was = np.empty(0, np.uint64) if before is None else before.hashes
    more = progress or (lambda rows: None)
    if before is not None and np.array_equal(was, hashes) and (ids is None or before.ids() == ids):
        more(len(hashes))
        return before, Changes(len(hashes), 0, 0)
    made = {**settings, "ids": False}
    sources = [*([] if before is None else [before]), *(rows for rows in encoded if rows.settings == made)]
    new = np.flatnonzero(_positions(sources, hashes) < 0)
    unseen = new[np.sort(np.unique(hashes[new], return_index=True)[1])]
    if len(unseen) and settings["precision"] != encoder.precision:
        raise built_otherwise(folder, f"with --precision {settings['precision']}")
    if len(unseen) < len(hashes):
        more(len(hashes) - len(unseen))
    if len(unseen):
        with io.naming(folder):
            (folder / ENCODED).mkdir(exist_ok=True)
    for start in range(0, len(unseen), BLOCK):
        rows = unseen[start : start + BLOCK]
        path = folder / ENCODED / f"{hashes[rows[0]]:016x}.arrow"
        write_rows(path, made, [_encoded(made, encoder, batch_size, rows, corpus.take(rows), hashes[rows], more)])
        sources.append(Rows(path, verify=False))  # mapped, to save memory
    write_rows(folder / ROWS, settings, _gathered(settings, sources, corpus, ids))
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / ENCODED)
    written = opened(folder, False)
    for path in folder.glob("bm25-*"):  # of former rows
        if path.name.split("-")[1] != written.generation:
            shutil.rmtree(path, ignore_errors=True)
    dropped = Counter(was.tolist()) - Counter(hashes.tolist())
    return written, Changes(len(hashes) - len(new), len(new), dropped.total())


def built_otherwise(folder: Path, how: str, remedy: str = "use the same option") -> InputError:
    """Returns the error for an index that was built ``how``."""
    return InputError(
        f"{folder}: was built {how}; {remedy}, build the index again with --rebuild, or name another folder"
    )


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

"""Vectors of rows that an encoder computes once: they are stored in the cache, in blocks, and used by later runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import hash_bytes
from ..data.corpus import Corpus
from ..data.entries import open_entry
from .encoder import Encoder
from .vector_files import made_by

BLOCK = 1024  # rows; an interrupted run loses at most one block


def stored_vectors(
    encoder: Encoder,
    corpus: Corpus,
    rows: npt.NDArray[np.int64],
    cache: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> npt.NDArray[np.float32]:
    """Returns the vectors of some rows, as documents, ``(n, D)``; ``progress`` is called with the number of rows that
    are done. The encoder must be as it was opened: the key holds its files, prompt and options, not changes in memory.
    """
    vectors = np.empty((len(rows), encoder.embedding_dim), dtype=np.float32)
    made, hashes = made_by(encoder), corpus.hashes()
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]

        def write(folder: Path, start: int = start, block: npt.NDArray[np.int64] = block) -> dict[str, Any]:
            counts = [start]

            def count(more: int) -> None:
                counts.append(more)
                progress(sum(counts))

            np.save(folder / "vectors.npy", encoder.encode_document(corpus.take(block), progress=count))
            return {}

        key = {"version": 2, **made, "texts": hash_bytes(hashes[block].tobytes())}
        vectors[start : start + len(block)] = np.load(open_entry(cache, "vectors", key, write).folder / "vectors.npy")
        progress(start + len(block))
    return vectors

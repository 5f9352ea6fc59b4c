"""Encodes a corpus into an index folder, block by block, so that an interrupted build can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.corpus import Corpus
from ..errors import InputError
from ..models.running.inference import Encoder
from ..models.running.passages import Cutter
from .store import PLACE, Store
from .vectors import unit

__all__ = ["check_rows", "documents", "extend", "queries_of"]

# Number of rows between two commits. Blocks end at multiples of this number, even after an interruption, so that a
# resumed build computes the same vectors.
BLOCK = 4096

Floats = npt.NDArray[np.float32]


def documents(encoder: Encoder, texts: Sequence[str], **arguments: Any) -> Floats:
    """Encodes documents, with the model's document prompt if it has one."""
    encode = getattr(encoder, "encode_document", encoder.encode)
    found: Floats = encode(texts, **arguments)
    return found


def queries_of(encoder: Encoder, texts: Sequence[str], **arguments: Any) -> Floats:
    """Encodes queries, with the model's query prompt if it has one."""
    encode = getattr(encoder, "encode_query", encoder.encode)
    found: Floats = encode(texts, **arguments)
    return found


def check_rows(store: Store, corpus: Corpus, ids: Sequence[str] | None) -> None:
    """Raises ``InputError`` unless a corpus begins with the rows of an index and has the same ids, if any."""
    done = store.rows
    remedy = "build it again with --rebuild, or name another folder"
    if len(corpus) < done:
        raise InputError(f"{store.folder}: holds {done:,} rows, but the corpus has {len(corpus):,}; {remedy}")
    changed = np.flatnonzero(store.hashes() != corpus.hashes()[:done])
    if len(changed):
        raise InputError(f"{store.folder}: row {changed[0]:,} of the corpus differs from the index; {remedy}")
    if bool(store.manifest["ids"]) != (ids is not None):
        have = "ids" if store.manifest["ids"] else "no ids"
        raise InputError(f"{store.folder}: the index has {have}; {remedy}")
    for start in range(0, done if ids is not None else 0, BLOCK):
        rows = range(start, min(start + BLOCK, done))
        for row, stored in zip(rows, store.ids(rows), strict=True):
            if ids is not None and ids[row] != stored:
                raise InputError(f"{store.folder}: the id of row {row:,} is {ids[row]!r} but was {stored!r}; {remedy}")


def extend(
    store: Store,
    encoder: Encoder,
    corpus: Corpus,
    ids: Sequence[str] | None,
    skip: int,
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
    commit: bool = True,
) -> None:
    """Appends the rows of a corpus to an index, except the first ``skip`` rows; call it within ``locked``.

    Args:
        store: The index.
        encoder: The encoder of the index.
        corpus: The corpus.
        ids: Ids of all rows of the corpus, if the index has ids.
        skip: Number of rows at the beginning of the corpus to leave out, because the index already contains them.
        batch_size: Texts per forward pass.
        progress: Called with the number of rows done since its last call.
        commit: True: commit every ``BLOCK`` rows. False: commit only once, at the end, so that an interrupted call
            changes nothing.
    """
    before = store.rows - skip  # number of rows in the index that are not from this corpus
    wanted = before + len(corpus)
    if store.rows == wanted:
        store.commit(wanted=wanted)
        return
    cut = None if store.manifest["passages"] is None else Cutter(encoder, store.manifest["passages"])
    hashes = corpus.hashes()
    store.cut()
    while store.rows < wanted:
        first = store.rows
        last = min(wanted, (first // BLOCK + 1) * BLOCK)
        rows = np.arange(first - before, last - before)
        texts = corpus.take(rows)
        spans = cut(texts) if cut else [[(0, len(text))] if text.strip() else [] for text in texts]
        places = np.array(
            [(first + number, *span) for number, parts in enumerate(spans) for span in parts], dtype=PLACE
        )
        passages = [text[start:end] for text, parts in zip(texts, spans, strict=True) for start, end in parts]
        by_row = progress if len(passages) == len(texts) else None
        vectors = documents(encoder, passages, batch_size=batch_size, progress=by_row)
        if vectors.shape[1:] != (store.manifest["width"],):
            raise InputError(
                f"{store.folder}: holds vectors of {store.manifest['width']} dimensions, but the model's have "
                f"{vectors.shape[1]}; open the index with the model that built it"
            )
        if not np.isfinite(vectors).all():
            raise InputError(
                f"rows {first:,} to {last - 1:,}: the model's vectors contain NaN or infinity; check the model"
            )
        if store.manifest["similarity"] == "cosine":
            vectors = unit(vectors)
        elif len(vectors):
            norm = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
            store.manifest["longest"] = max(store.manifest["longest"], norm * 1.01)
        own = None if ids is None else ids[first - before : last - before]
        store.append(texts, np.asarray(hashes[rows]), own, vectors, places)
        if commit or store.rows == wanted:
            store.commit(wanted=wanted)
        if progress and by_row is None:
            progress(len(texts))

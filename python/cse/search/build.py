"""Writes the rows of a corpus into an index folder, and checks the settings of an index.

Rows are known by the hash of their text. A row whose text is already in the index keeps its vectors, at any position in
the new corpus. Only other texts are encoded. They are encoded and written in blocks, so that an interrupted build or
update can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..models.running.inference import Encoder
from ..models.running.passages import Cutter
from ..models.saving.folder import model_digest
from .store import MANIFEST, PENDING, Segment, Store, open_arrays, save_arrays, schema, write_manifest
from .tokens import encode_tokens, principal_axes
from .vectors import quantize, unit

# Number of texts that are encoded between two commits.
BLOCK = 4096
# Approximate maximum size of the vectors of a segment. Each segment adds a constant time to a search.
SEGMENT_BYTES = 256 << 20
# A segment is merged with the next one if it has at most this number of times as many rows. The number of segments that
# are added one after the other is thus logarithmic in the number of their rows, and so is the number of times that a
# row is written.
RATIO = 4

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
# A range of rows, first and last + 1, and the segment that contains them, or None.
Piece = tuple[int, int, Segment | None]


@dataclass(frozen=True)
class Changes:
    """What a call changed in an index."""

    kept: int
    """Number of rows whose text was already encoded."""
    encoded: int
    """Number of rows with a new text. Each new text is encoded once."""
    dropped: int
    """Number of rows that are no longer in the index."""


@dataclass(frozen=True)
class Rows:
    """The rows that an index is to contain.

    Attributes:
        hashes: The hash of the text of each row, ``(n,)`` uint64.
        texts: Returns the texts of some rows, given in ascending order.
        ids: The id of each row; None if the index has no ids.
    """

    hashes: Hashes
    texts: Callable[[list[int]], list[str]]
    ids: list[str] | None


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


def model_settings(encoder: Encoder) -> dict[str, Any]:
    """Returns the arguments of an encoder, and the hash of its files."""
    name, pooler = encoder.given
    return {
        "model": str(Path(name).resolve()) if Path(name).is_dir() else name,
        "pooler": pooler,
        "prompt": getattr(encoder, "given_prompt", None),
        "dims": getattr(encoder, "dims", None),
        "digest": model_digest(encoder),
    }


def new_settings(
    encoder: Encoder, int8: bool, has_ids: bool, passages: int | str | None, tokens: int | None = None
) -> dict[str, Any]:
    """Returns the settings to be stored in the manifest of a new index."""
    if tokens and passages is not None:
        raise InputError("--tokens: stores the tokens of whole rows; leave it out, or leave out --passages")
    return {
        **model_settings(encoder),
        "precision": encoder.precision,
        "width": encoder.embedding_dim,
        "similarity": _similarity(encoder),
        "int8": int8,
        "ids": has_ids,
        "passages": None if passages is None else _tokens(encoder, passages),
        "tokens": tokens or None,
    }


def save_basis(folder: Path, encoder: Encoder, settings: dict[str, Any]) -> dict[str, Any]:
    """Stores the projection of token vectors, and returns the settings with its name; call it within ``locked``."""
    name = f"basis-{settings['digest'][:16]}-{settings['tokens']}"
    if not (folder / name).exists():
        save_arrays(folder / name, axes=principal_axes(encoder, settings["tokens"]))
    return {**settings, "basis": name}


def _similarity(encoder: Encoder) -> str:
    return "dot" if getattr(encoder, "similarity_name", None) == "dot" else "cosine"


def _tokens(encoder: Encoder, passages: int | str) -> int:
    if passages != "max" and (isinstance(passages, bool) or not isinstance(passages, Integral) or passages < 1):
        raise InputError(f"--passages: must be a number of tokens, or max, got {passages!r}")
    return Cutter(encoder, None if passages == "max" else int(passages)).tokens


def _check(folder: Path, known: dict[str, Any], **given: object) -> None:
    for name, value in given.items():
        if known[name] != value:
            built = f"without --{name}"
            if known[name]:
                built = f"with --{name}" if known[name] is True else f"with --{name} {known[name]!r}"
            raise InputError(
                f"{folder}: was built {built}; use the same option, build the index again with --rebuild, or "
                "name another folder"
            )


def check_settings(
    store: Store,
    encoder: Encoder,
    int8: bool | None,
    passages: int | str | None,
    ids: bool,
    tokens: int | None = None,
) -> None:
    """Raises ``InputError`` if an index was built with other settings, or with another model."""
    check_model(store, encoder)
    if int8 is not None:
        _check(store.folder, store.manifest, int8=int8)
    if passages is not None:
        _check(store.folder, store.manifest, passages=_tokens(encoder, passages))
    if tokens is not None:
        _check(store.folder, {"tokens": None, **store.manifest}, tokens=tokens or None)
    if store.manifest["ids"] != ids:
        have = "ids" if store.manifest["ids"] else "no ids"
        raise InputError(f"{store.folder}: the index has {have}; build it again with --rebuild, or name another folder")


def check_model(store: Store, encoder: Encoder) -> None:
    """Raises ``InputError`` if an index was built with another model, prompt or number of dimensions."""
    known = store.manifest
    prompt, dims = (getattr(encoder, name, None) for name in ("given_prompt", "dims"))
    _check(store.folder, known, prompt=prompt, dims=dims)
    if known["digest"] != model_digest(encoder) or known["similarity"] != _similarity(encoder):
        raise InputError(
            f"{store.folder}: was built with another model ({known['model']}); use that model, build the index again "
            "with --rebuild, or name another folder"
        )


def write(
    folder: Path,
    settings: dict[str, Any],
    encoder: Encoder,
    wanted: Rows,
    sources: Sequence[Store] = (),
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
    verify: bool = True,
) -> tuple[Store, Changes]:
    """Makes an index contain the wanted rows; call it within ``locked``.

    If the call is interrupted, the former index remains, and ``PENDING`` lists the texts encoded so far.

    Args:
        folder: The folder.
        settings: The settings of the index.
        encoder: The encoder of the index.
        wanted: The rows.
        sources: The index and its unfinished update, if any. The vectors of rows that they contain are kept.
        batch_size: Texts per forward pass.
        progress: Called with the number of rows done since its last call; the first call counts the rows that are kept.
        verify: See ``Store``.

    Returns:
        The new state of the index, and what was changed.
    """
    before = next((store for store in sources if store.manifest.get("wanted") is None), None)
    pending = [each for store in sources if store is not before for each in store.segments]
    segments = {each.record["xxh3"]: each for store in sources for each in store.segments}
    known = Store(folder, settings, [*segments.values()])
    total = len(wanted.hashes)
    rest = _outside(_kept(wanted, known), total)
    new = rest[_positions(known.hashes(), wanted.hashes[rest]) < 0]
    first = new[np.sort(np.unique(wanted.hashes[new], return_index=True)[1])]
    if len(first):
        _check(folder, settings, precision=encoder.precision)
    if progress and len(first) < total:
        progress(total - len(first))
    encode = _Encoding(folder, settings, encoder, wanted, batch_size)
    for start in range(0, len(first), BLOCK):
        segment = Segment.write(folder, encode(first[start : start + BLOCK], progress))
        segments[segment.record["xxh3"]] = segment
        pending.append(segment)
        content = {"rebuilt": before is None, "wanted": total}
        write_manifest(folder / PENDING, _content(settings, pending, **content))

    known = Store(folder, settings, [*segments.values()])
    pieces = _layout(wanted, known)
    missing = _outside(pieces, total)
    sources_of = np.full(total, -1)
    sources_of[missing] = _positions(known.hashes(), wanted.hashes[missing])
    final = [
        segment or Segment.write(folder, encode.gathered(known, np.arange(start, stop), sources_of[start:stop]))
        for start, stop, segment in pieces
    ]
    dropped = 0
    if before is not None:
        gone = [each.hashes for each in before.segments if each not in final]
        rest = _outside([piece for piece in pieces if piece[2] in before.segments], total)
        dropped = _surplus(np.concatenate([np.empty(0, np.uint64), *gone]), wanted.hashes[rest])
    changes = Changes(total - len(new), len(new), dropped)
    same = before is not None and before.manifest.get("smooth") == settings.get("smooth")
    if before is None or not same or [each.record for each in final] != before.manifest["segments"]:
        store = Store(folder, write_manifest(folder / MANIFEST, _content(settings, final)), final, verify)
    else:
        store = before
    store.remove_old_files()
    return store, changes


def _content(settings: dict[str, Any], segments: Sequence[Segment], **further: Any) -> dict[str, Any]:
    records = [each.record for each in segments]
    counts = {name: sum(record[name] for record in records) for name in ("rows", "vectors")}
    written = ("version", "check", "rebuilt", "wanted", "rows", "vectors", "segments")
    known = {name: value for name, value in settings.items() if name not in written}
    return {**known, **further, **counts, "segments": records}


def _surplus(before: Hashes, after: Hashes) -> int:
    """Returns how many of the hashes before are not in the hashes after; equal hashes count separately."""
    (old, had), (new, has) = (np.unique(each, return_counts=True) for each in (before, after))
    _, left, right = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return len(before) - int(np.minimum(had[left], has[right]).sum())


def _positions(known: Hashes, hashes: Hashes) -> Numbers:
    """Returns the first position of each hash in ``known``; -1 if there is none."""
    found = np.flatnonzero(np.isin(known, hashes))
    if not len(found):
        return np.full(len(hashes), -1)
    found = found[np.argsort(known[found], kind="stable")]
    at = found[np.minimum(np.searchsorted(known[found], hashes), len(found) - 1)]
    return np.where(known[at] == hashes, at, -1)


def _outside(pieces: Sequence[Piece], total: int) -> Numbers:
    """Returns the rows that are in no segment."""
    rows = np.ones(total, dtype=bool)
    for start, stop, segment in pieces:
        rows[start:stop] = segment is None
    return np.flatnonzero(rows)


def _kept(wanted: Rows, known: Store) -> list[Piece]:
    """Returns the segments whose rows follow each other in the new corpus."""
    total = len(wanted.hashes)
    by_first: dict[int, list[Segment]] = {}
    for segment in sorted(known.segments, key=lambda each: -each.rows):
        by_first.setdefault(int(segment.hashes[0]), []).append(segment)
    kept: list[Piece] = []
    begins = np.flatnonzero(np.isin(wanted.hashes, np.array([*by_first], dtype=np.uint64)))
    for start in begins.tolist():
        if kept and start < kept[-1][1]:
            continue
        for segment in by_first[int(wanted.hashes[start])]:
            stop = start + segment.rows
            rows = slice(start, stop)
            same = stop <= total and np.array_equal(segment.hashes, wanted.hashes[rows])
            if same and (wanted.ids is None or wanted.ids[rows] == segment.batch.column("id").to_pylist()):
                kept.append((start, stop, segment))
                break
    return kept


def _layout(wanted: Rows, known: Store) -> list[Piece]:
    """Returns the segments of the new index: ranges of rows, each with a segment that is kept or None."""
    vectors = sum(len(each.vectors) for each in known.segments)
    size = known.manifest["width"] * (1 if known.manifest["int8"] else 4) * max(vectors / known.rows, 1)
    if known.manifest.get("tokens"):
        tokens = sum(len(each.batch.column("tokens").flatten()) for each in known.segments)
        size += (known.manifest["tokens"] + 8) * tokens / known.rows
    most = max(BLOCK, int(SEGMENT_BYTES / size))
    pieces: list[Piece] = []
    end = 0
    total = len(wanted.hashes)
    for start, stop, segment in [*_kept(wanted, known), (total, total, None)]:
        count = -(-(start - end) // most)
        cuts = np.linspace(end, start, count + 1).astype(int).tolist() if count else []
        pieces += [(*cut, None) for cut in pairwise(cuts)]
        if segment is not None:
            pieces.append((start, stop, segment))
        end = stop
    merged: list[Piece] = []
    for piece in pieces:
        merged.append(piece)
        while len(merged) > 1:
            (start, middle, _), (_, stop, _) = merged[-2:]
            if stop - start > most or middle - start > RATIO * (stop - middle):
                break
            merged[-2:] = [(start, stop, None)]
    return merged


class _Encoding:
    """Makes the record batches of segments, from new texts or from rows of other segments."""

    def __init__(self, folder: Path, settings: dict[str, Any], encoder: Encoder, wanted: Rows, batch_size: int) -> None:
        self.folder, self.settings, self.encoder, self.wanted = folder, settings, encoder, wanted
        self.batch_size, self.schema = batch_size, schema(settings)
        self.cut = None if settings["passages"] is None else Cutter(encoder, settings["passages"])
        self.basis = open_arrays(folder / settings["basis"], "axes")[0] if settings.get("tokens") else None

    def __call__(self, rows: Numbers, progress: Callable[[int], None] | None = None) -> Any:
        """Encodes some rows."""
        import pyarrow as pa

        settings, texts = self.settings, self.wanted.texts(rows.tolist())
        spans = self.cut(texts) if self.cut else [[(0, len(text))] if text.strip() else [] for text in texts]
        passages = [text[start:end] for text, parts in zip(texts, spans, strict=True) for start, end in parts]
        by_row = progress if len(passages) == len(texts) else None
        vectors = documents(self.encoder, passages, batch_size=self.batch_size, progress=by_row)
        if vectors.shape[1:] != (settings["width"],):
            raise InputError(
                f"{self.folder}: holds vectors of {settings['width']} dimensions, but the model's have "
                f"{vectors.shape[1]}; open the index with the model that built it"
            )
        if not np.isfinite(vectors).all():
            raise InputError(f"rows {rows[0]:,} to {rows[-1]:,}: the model's vectors contain NaN or infinity; check it")
        if settings["similarity"] == "cosine":
            vectors = unit(vectors)
        if progress and by_row is None:
            progress(len(texts))
        places = np.array([span for parts in spans for span in parts], dtype=np.uint32).reshape(-1, 2)
        values, scales = quantize(vectors) if settings["int8"] else (np.asarray(vectors, dtype=np.float32), None)
        columns = [pa.array(each) for each in (places[:, 0], places[:, 1])]
        if scales is not None:
            columns.append(pa.array(scales))
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), settings["width"]))
        kind = self.schema.field("passages").type
        items = pa.StructArray.from_arrays(columns, fields=[*kind.value_type])
        listed = pa.ListArray.from_arrays(pa.array(np.cumsum([0, *map(len, spans)]), pa.int32()), items, type=kind)
        found = [pa.array(texts, pa.large_string()), pa.array(self.wanted.hashes[rows]), listed]
        if self.basis is not None:
            found.insert(2, self._token_column(texts))
        return pa.record_batch(found if self.wanted.ids is None else [self._ids(rows), *found], schema=self.schema)

    def _token_column(self, texts: list[str]) -> Any:
        import pyarrow as pa

        prompt = self.encoder.document_prompt
        found = encode_tokens(self.encoder, texts, self.basis, prompt=prompt, batch_size=self.batch_size)
        values, scales = quantize(np.concatenate([each.vectors for each in found]))
        ids = np.concatenate([each.ids for each in found]).astype(np.int32)
        kind = self.schema.field("tokens").type
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), self.settings["tokens"])
        items = pa.StructArray.from_arrays([pa.array(ids), pa.array(scales), vectors], fields=[*kind.value_type])
        ends = np.cumsum([0, *(len(each.ids) for each in found)])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=kind)

    def _ids(self, rows: Numbers) -> Any:
        import pyarrow as pa

        return pa.array([(self.wanted.ids or [])[row] for row in rows.tolist()], pa.large_string())

    def gathered(self, known: Store, rows: Numbers, sources: Numbers) -> Any:
        """Returns rows, with the vectors of the known rows ``sources`` that have the same hashes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = np.searchsorted(known.starts, sources, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        batches = []
        for number in np.unique(numbers).tolist():
            inside = sources[order[numbers[order] == number]] - known.starts[number]
            batch, first = known.segments[number].batch, int(inside[0])
            whole = np.array_equal(inside, np.arange(first, first + len(inside)))
            batches.append(batch.slice(first, len(inside)) if whole else batch.take(pa.array(inside)))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        texts = pa.chunked_array([pa.array(self.wanted.texts(rows.tolist()), pa.large_string())])
        table = pa.Table.from_batches(batches)
        same = pc.equal(table.column("text").take(pa.array(place)), texts).to_numpy()
        if not same.all():  # texts with equal hashes
            batches.append(self(rows[~same]))
            place[~same] = len(rows) + np.arange((~same).sum())
            table = pa.Table.from_batches(batches)
        if not np.array_equal(place, np.arange(len(table))):
            table = table.take(pa.array(place))
        if self.wanted.ids is not None:
            table = table.set_column(0, self.schema.field("id"), self._ids(rows))
        (batch,) = table.combine_chunks().to_batches()
        return batch

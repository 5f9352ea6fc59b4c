"""Writes the rows of a corpus into an index folder, and checks the settings of an index.

Rows are known by the hash of their text. A row whose text is already in the index keeps its vectors, at any position in
the new corpus. Only other texts are encoded, in blocks that are stored in the folder ``encoded``, so that an
interrupted build or update can be resumed. Then the file of rows is written anew, and replaces the former one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, check_integer
from ..io import dumps, naming
from ..models.base import naming_rows
from .store import (
    ENCODED,
    MANIFEST,
    WRITTEN,
    Store,
    open_arrays,
    read_encoded,
    read_rows,
    save_arrays,
    schema,
    write_manifest,
    write_rows,
)
from .tokens import encode_tokens, principal_axes
from .vectors import quantize, unit

if TYPE_CHECKING:
    from ..models.running.inference import Encoder

# Number of texts that are encoded, and then stored, together.
BLOCK = 4096
# Approximate size of a record batch. Each batch adds a constant time to a search.
BATCH_BYTES = 256 << 20
# Rows at the end are written to a second file if they are at most 1 / FOLD of the rows of the first file, which stays.
FOLD = 16

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Progress = Callable[[int], None]


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
        ids: The id of each row, a chunked Arrow array; None if the index has no ids.
    """

    hashes: Hashes
    texts: Callable[[list[int]], list[str]]
    ids: Any


def model_settings(encoder: Encoder) -> dict[str, Any]:
    """Returns the arguments of an encoder, and the hash of its files."""
    from ..models.digest import model_digest

    digest = model_digest(encoder)
    name, pooler = encoder.given
    return {
        "model": str(Path(name).resolve()) if name and Path(name).is_dir() else name,
        "pooler": pooler,
        "prompt": getattr(encoder, "given_prompt", None),
        "dims": getattr(encoder, "dims", None),
        "digest": digest,
    }


def new_settings(
    encoder: Encoder,
    int8: bool | None = None,
    has_ids: bool = False,
    passages: int | str | None = None,
    tokens: int | None = None,
) -> dict[str, Any]:
    """Returns the settings to be stored in the manifest of a new index; raises ``InputError`` for invalid ones."""
    if tokens is not None:
        tokens = check_integer(tokens, "--tokens", 0)
    if tokens and passages is not None:
        raise InputError("--tokens stores the tokens of whole rows; leave it out, or leave out --passages")
    if passages is not None:
        from ..models.running.passages import Cutter

        passages = Cutter(encoder, None if passages == "max" else check_integer(passages, "--passages")).tokens
    model = model_settings(encoder)
    return {
        **model,
        "precision": encoder.precision,
        "width": encoder.embedding_dim,
        "similarity": "dot" if getattr(encoder, "similarity_name", None) == "dot" else "cosine",
        "int8": bool(int8),
        "ids": has_ids,
        "passages": passages,
        "tokens": tokens or None,
        **({"basis": f"basis-{model['digest'][:16]}-{tokens}"} if tokens else {}),
    }


def check_settings(folder: Path, known: dict[str, Any], encoder: Encoder, **chosen: Any) -> None:
    """Raises ``InputError`` if an index was built with another model, or with other settings than those chosen.

    Args:
        folder: The folder of the index, for errors.
        known: Its settings.
        encoder: The encoder.
        **chosen: Arguments of ``new_settings``; one that is None or left out may have any value.
    """
    settings = new_settings(encoder, **chosen)
    if "has_ids" in chosen and known["ids"] != chosen["has_ids"]:
        have = "ids" if known["ids"] else "no ids"
        raise InputError(
            f"{folder}: the index in this folder has {have}; build it again with --rebuild, or name another folder (-o)"
        )
    _check(folder, known, settings, "prompt", "dims")
    if known["digest"] != settings["digest"] or known["similarity"] != settings["similarity"]:
        raise InputError(
            f"{folder}: was built with another model ({known['model']}); use that model, build the index again "
            "with --rebuild, or name another folder"
        )
    names = ("int8", "passages", "tokens")
    _check(folder, known, settings, *(name for name in names if chosen.get(name) is not None))


def _check(folder: Path, known: dict[str, Any], settings: dict[str, Any], *names: str) -> None:
    for name in names:
        value = known.get(name)
        if value != settings[name]:
            built = f"with --{name} {value!r}" if value else f"without --{name}"
            raise InputError(
                f"{folder}: was built {f'with --{name}' if value is True else built}; use the same option, build the "
                "index again with --rebuild, or name another folder"
            )


def write(
    folder: Path,
    settings: dict[str, Any],
    encoder: Encoder,
    wanted: Rows,
    before: Store | None = None,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
    verify: bool = True,
) -> tuple[Store, Changes]:
    """Makes an index contain the wanted rows; call it within ``locked``.

    If the call is interrupted, the former index remains, and the folder ``encoded`` holds the texts encoded so far.

    Args:
        folder: The folder.
        settings: The settings of the index.
        encoder: The encoder of the index.
        wanted: The rows.
        before: The index as it is; the vectors of its rows are kept.
        batch_size: Texts per forward pass.
        progress: Called with the number of rows done since its last call; the first call counts the rows that are kept.
        verify: See ``Store``.

    Returns:
        The new state of the index, and what was changed.
    """
    total, columns = len(wanted.hashes), schema(settings)
    settings = {
        name: settings[name] for name in settings if name not in ("version", "check", "rows", "vectors", "files")
    }
    files: dict[str, list[Any]] = {}
    records: list[dict[str, Any]] = []
    old_hashes = np.empty(0, dtype=np.uint64)
    first = 0  # rows of files that stay
    if before is not None:
        old_hashes, stay = before.hashes(), before.manifest["files"]
        if not _begins_with(wanted, before, old_hashes, before.rows) or total > before.rows:
            stay = stay[:1]
        rows = sum(record["rows"] for record in stay)
        if total - rows <= rows // FOLD and _begins_with(wanted, before, old_hashes, rows):
            first, records = rows, stay
            files = {record["xxh3"]: before.files[record["xxh3"]] for record in stay}

    without_ids = [name for name in columns.names if name != "id"]
    batches = [] if before is None else [batch.select(without_ids) for batch in before.batches]
    of_rows = {name: value for name, value in settings.items() if name != "smooth"}
    batches += [batch for batch, made in read_encoded(folder) if made["settings"] == of_rows]
    rest = np.arange(first, total)
    new = rest[_positions(batches, wanted.hashes[rest]) < 0]
    unseen = new[np.sort(np.unique(wanted.hashes[new], return_index=True)[1])]
    cut = _whole
    if settings["passages"] is not None:
        from ..models.running.passages import Cutter

        cut = Cutter(encoder, settings["passages"])
    encode = partial(_encoded, folder, settings, encoder, batch_size, cut)
    if len(unseen):
        _check(folder, settings, {"precision": encoder.precision}, "precision")
        with naming(folder):
            (folder / ENCODED).mkdir(exist_ok=True)
        if settings.get("tokens") and not (folder / settings["basis"]).exists():
            save_arrays(folder / settings["basis"], axes=principal_axes(encoder, settings["tokens"]))
    if progress and len(unseen) < total:
        progress(total - len(unseen))
    for start in range(0, len(unseen), BLOCK):
        rows = unseen[start : start + BLOCK]
        batch = encode(rows, wanted.texts(rows.tolist()), wanted.hashes[rows], progress)
        made = batch.schema.with_metadata({"cse": dumps({"settings": of_rows, "wanted": total})})
        record = write_rows(folder / ENCODED / WRITTEN, made, [batch])
        batches += read_rows(folder / ENCODED / f"{record['xxh3']}.arrow", verify=False)  # mapped, to save memory
    kept_to = before.manifest["files"][0]["rows"] if first and before is not None else 0
    changes = Changes(total - len(new), len(new), _surplus(old_hashes[kept_to:], wanted.hashes[kept_to:]))

    if len(rest):
        records = [*records, write_rows(folder / WRITTEN, columns, _gathered(batches, wanted, rest, encode))]
    content = {**settings, "rows": total, "vectors": sum(part["vectors"] for part in records), "files": records}
    if before is None or any(before.manifest.get(name) != value for name, value in content.items()):
        write_manifest(folder / MANIFEST, content)
        before = Store.open(folder, False, files)
        before.verify = verify
    before.remove_unused()
    return before, changes


def _begins_with(wanted: Rows, before: Store, hashes: Hashes, count: int) -> bool:
    """Returns whether the first rows of an index are also the first of the wanted rows, with the same ids."""
    if count > len(wanted.hashes) or not np.array_equal(hashes[:count], wanted.hashes[:count]):
        return False
    return wanted.ids is None or wanted.ids.slice(0, count).equals(before.column("id").slice(0, count))


def _surplus(before: Hashes, after: Hashes) -> int:
    """Returns how many of the hashes before are not in the hashes after; equal hashes count separately."""
    (old, had), (new, has) = (np.unique(hashes, return_counts=True) for hashes in (before, after))
    _, left, right = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return len(before) - int(np.minimum(had[left], has[right]).sum())


def _positions(batches: Sequence[Any], hashes: Hashes) -> Numbers:
    """Returns the first position of each hash in the rows of record batches; -1 if there is none."""
    known = np.concatenate([np.empty(0, np.uint64), *(batch.column("hash").to_numpy() for batch in batches)])
    places = np.flatnonzero(np.isin(known, hashes))
    if not len(places):
        return np.full(len(hashes), -1)
    places = places[np.argsort(known[places], kind="stable")]
    at = places[np.minimum(np.searchsorted(known[places], hashes), len(places) - 1)]
    return np.where(known[at] == hashes, at, -1)


def _gathered(batches: Sequence[Any], wanted: Rows, rows: Numbers, encode: Callable[..., Any]) -> Iterator[Any]:
    """Yields record batches of the wanted rows, with the vectors of the rows in ``batches`` with the same hashes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sources, starts = _positions(batches, wanted.hashes[rows]), np.cumsum([0, *map(len, batches)])
    most = max(BLOCK, int(BATCH_BYTES / max(sum(batch.nbytes for batch in batches) / starts[-1], 1)))
    for start in range(0, len(rows), most):
        part, places = rows[start : start + most], sources[start : start + most]
        numbers = np.searchsorted(starts, places, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        pieces = []
        for number in np.unique(numbers).tolist():
            inside = places[order[numbers[order] == number]] - starts[number]
            begin, batch = int(inside[0]), batches[number]
            in_order = np.array_equal(inside, np.arange(begin, begin + len(inside)))
            pieces.append(batch.slice(begin, len(inside)) if in_order else batch.take(pa.array(inside)))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        texts = wanted.texts(part.tolist())
        table = pa.Table.from_batches(pieces, pieces[0].schema.remove_metadata())
        same = pc.equal(table.column("text").take(pa.array(place)), pa.array(texts, pa.large_string())).to_numpy()
        if not same.all():  # other texts with the same hashes
            others = [text for text, equal in zip(texts, same, strict=True) if not equal]
            pieces.append(encode(part[~same], others, wanted.hashes[part[~same]]))
            place[~same] = len(part) + np.arange((~same).sum())
            table = pa.Table.from_batches(pieces, pieces[0].schema.remove_metadata())
        if not np.array_equal(place, np.arange(len(table))):
            table = table.take(pa.array(place))
        if wanted.ids is not None:
            ids = wanted.ids.slice(int(part[0]), len(part))
            table = table.add_column(0, pa.field("id", pa.large_string()), ids)
        yield from table.combine_chunks().to_batches()


def _whole(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    return [[(0, len(text))] if text.strip() else [] for text in texts]


def _encoded(
    folder: Path,
    settings: dict[str, Any],
    encoder: Encoder,
    batch_size: int,
    cut: Callable[[list[str]], list[list[tuple[int, int]]]],
    rows: Numbers,
    texts: list[str],
    hashes: Hashes,
    progress: Progress | None = None,
) -> Any:
    """Encodes texts in the parts that ``cut`` returns; ``rows`` are their numbers, for errors.

    Returns a record batch without ids.
    """
    import pyarrow as pa

    spans = cut(texts)
    passages = [text[start:end] for text, parts in zip(texts, spans, strict=True) for start, end in parts]
    by_row = progress if len(passages) == len(texts) else None
    with naming_rows(np.repeat(rows, [*map(len, spans)])):
        vectors = encoder.encode_document(passages, batch_size=batch_size, progress=by_row)
    if vectors.shape[1:] != (settings["width"],):
        raise InputError(
            f"{folder}: holds vectors of {settings['width']} dimensions, but the model's have "
            f"{vectors.shape[1]}; open the index with the model that built it"
        )
    if settings["similarity"] == "cosine":
        vectors = unit(vectors)
    if progress and by_row is None:
        progress(len(texts))
    places = np.array([span for parts in spans for span in parts], dtype=np.uint32).reshape(-1, 2)
    values, scales = quantize(vectors) if settings["int8"] else (np.asarray(vectors, dtype=np.float32), None)
    fields = [places[:, 0], places[:, 1], *([] if scales is None else [scales]), values]
    columns = schema({**settings, "ids": False})
    made = {"text": pa.array(texts, pa.large_string()), "hash": pa.array(hashes)}
    if settings.get("tokens"):
        (basis,) = open_arrays(folder / settings["basis"], "axes")
        prompt = encoder.document_prompt
        tokens = encode_tokens(encoder, texts, basis, prompt=prompt, batch_size=batch_size)
        small, factors = quantize(np.concatenate([item.vectors for item in tokens]))
        ids = np.concatenate([item.ids for item in tokens]).astype(np.int32)
        made["tokens"] = _listed(columns.field("tokens").type, [len(item.ids) for item in tokens], ids, factors, small)
    made["passages"] = _listed(columns.field("passages").type, [*map(len, spans)], *fields)
    return pa.record_batch(list(made.values()), schema=columns)


def _listed(kind: Any, counts: list[int], *fields: npt.NDArray[Any]) -> Any:
    """Returns a list of structs for each count, given the values of their fields, one after the other."""
    import pyarrow as pa

    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1]) if part.ndim == 2 else pa.array(part)
        for part in fields
    ]
    items = pa.StructArray.from_arrays(columns, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *counts]), pa.int32()), items, type=kind)

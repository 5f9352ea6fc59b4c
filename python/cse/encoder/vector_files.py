"""Writes embeddings of a corpus to a file (.npy, .safetensors, .parquet) in bounded memory.

Embeddings are written to ``OUTPUT.part``, an array file, in blocks of rows; ``OUTPUT.part.json`` (a ``cse.io.Journal``)
lists the hashes of the complete blocks, after which a later call goes on. Then ``OUTPUT.part`` becomes ``OUTPUT``.
"""

from __future__ import annotations

import errno
import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from .._core import hash_bytes
from ..data.corpus import Corpus
from ..errors import InputError
from ..io import Journal, copy_mode, dumps, naming, remove_leftovers, write_atomically
from .base import compared_by, naming_rows
from .device import pick_precision
from .encoder import Encoder
from .resolve import model_digest

BLOCK = 16384  # rows


@dataclass(frozen=True)
class EncodedFile:
    """The result of ``encode_to_file``: numbers of rows, of blank rows, and of rows that an earlier call completed."""

    rows: int
    blank: int
    resumed: int


def made_by(encoder: Encoder) -> dict[str, Any]:
    """Returns all that embeddings depend on but their texts: what files and blocks of embeddings were made from."""
    return {
        "digest": model_digest(encoder, prompt=""),
        "prompt": encoder.prompt,
        "precision": encoder.precision,
        "width": encoder.embedding_dim,
        "similarity": compared_by(encoder)[0],
    }


def resume_precision(encoder: Encoder, output: str | Path, key: dict[str, Any], wanted: str) -> None:
    """Sets the precision of an encoder to the one in which an interrupted call with the same key encoded its rows.

    The precision in the ``key`` is not compared, but set.
    """
    try:
        stored = Journal.key(journal_of(output))
        same = all(stored[name] == value for name, value in json.loads(dumps(key)).items() if name != "precision")
        begun = str(stored["precision"]) if same and Path(f"{output}.part").exists() else encoder.precision
    except (KeyError, TypeError):
        return
    if begun == encoder.precision:
        return
    if wanted != "auto":
        raise InputError(
            f"--precision {wanted}: the rows in {output}.part were encoded in {begun}; continue with "
            f"--precision {begun}, or remove that file"
        )
    encoder.precision, encoder.precision_reason = pick_precision(str(encoder.device), begun)
    key["precision"] = encoder.precision


class RowEncoder(Protocol):
    """What gives each text a row of numbers: an encoder or, to store less, what computes with its vectors."""

    @property
    def embedding_dim(self) -> int: ...

    def encode(
        self, texts: list[str], *, batch_size: int, progress: Callable[[int], None] | None
    ) -> npt.NDArray[np.float32]: ...


def encode_to_file(
    encoder: RowEncoder,
    corpus: Corpus,
    output: str | Path,
    key: dict[str, Any],
    *,
    batch_size: int = 64,
    first_row: int = 0,
    progress: Callable[[int], None] | None = None,
) -> EncodedFile:
    """Encodes all rows of a corpus, which are numbered from ``first_row``, into a file; blank rows get zeros.

    ``key`` identifies the corpus and what ``made_by`` returns: rows encoded with another key are encoded again.
    """
    output = Path(output)
    part = Path(f"{output}.part")
    with _journal(encoder, corpus, output, part, key) as journal:
        done = _encode(encoder, corpus, output, part, journal, batch_size, progress)
        if output.suffix == ".npy" and (output.is_file() or not output.exists()) and not output.is_symlink():
            with naming(output):
                os.replace(part, output)
        else:
            write_vectors(np.load(part, mmap_mode="r"), output, first_row)
        part.unlink(missing_ok=True)
        journal.remove()
    return EncodedFile(len(corpus), int(np.count_nonzero(corpus.word_counts() == 0)), done)


@contextmanager
def encoded_for(
    encoder: RowEncoder,
    corpus: Corpus,
    output: str | Path,
    key: dict[str, Any],
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
) -> Iterator[npt.NDArray[np.float32]]:
    """Context manager that encodes a corpus as ``encode_to_file`` does, for a file ``output`` of another kind that is
    written from the rows: they are in a file beside it, which stays if the call is interrupted or fails, so that a
    further one does not encode them again, unless it was refused (``InputError``)."""
    part = Path(f"{output}.part")
    with _journal(encoder, corpus, Path(output), part, key) as journal:
        _encode(encoder, corpus, Path(output), part, journal, batch_size, progress)
        try:
            yield np.load(part, mmap_mode="r")
        except InputError:
            part.unlink()
            journal.remove()
            raise
        part.unlink()
        journal.remove()


def journal_of(output: str | Path) -> Path:
    """Returns the path of the journal of a file of embeddings, which is there while the file is not complete."""
    return Path(f"{output}.part.json")


@contextmanager
def _journal(encoder: RowEncoder, corpus: Corpus, output: Path, part: Path, key: dict[str, Any]) -> Iterator[Journal]:
    key = {**key, "shape": (len(corpus), encoder.embedding_dim), "block": BLOCK}
    taken = f"-o {output}: another process is writing to this file; wait for it"
    with naming(part), closing(Journal(journal_of(output), key, taken)) as journal:
        yield journal


def _encode(
    encoder: RowEncoder,
    corpus: Corpus,
    output: Path,
    part: Path,
    journal: Journal,
    batch_size: int,
    progress: Callable[[int], None] | None,
) -> int:
    """Encodes the rows that are not yet in ``part``, an array of a .npy file; returns how many were."""
    shape = (len(corpus), encoder.embedding_dim)
    filled = corpus.word_counts() > 0
    remove_leftovers(output.parent)
    with open(part, "r+b" if part.exists() else "w+b") as file:
        copy_mode(output, part)
        done = _resume(file, journal, shape)
        if progress and done:
            progress(done)
        for start in range(done, len(corpus), BLOCK):
            stop = min(start + BLOCK, len(corpus))
            rows = start + np.flatnonzero(filled[start:stop])
            block = np.zeros((stop - start, shape[1]), dtype=np.float32)
            with naming_rows(rows):
                block[rows - start] = encoder.encode(corpus.take(rows), batch_size=batch_size, progress=progress)
            if progress:
                progress(stop - start - len(rows))
            data = block.tobytes()
            file.write(data)
            file.flush()
            journal.add(hash_bytes(data))
    return done


def _resume(file: BinaryIO, journal: Journal, shape: tuple[int, int]) -> int:
    """Returns the number of rows that an interrupted call encoded, and moves to the end of these rows in the file.

    The file gets its final size, so that a full disk is reported at the start.
    """
    header = _header(shape)
    done = 0
    if file.read(len(header)) == header:
        for hashed in journal.records:
            stop = min(done + BLOCK, shape[0])
            if hash_bytes(file.read((stop - done) * shape[1] * 4)) != hashed or stop == done:
                break
            done = stop
    journal.keep(1 + -(-done // BLOCK))
    size = len(header) + shape[0] * shape[1] * 4
    file.seek(0)
    file.truncate(size)
    try:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if not done:
                os.unlink(file.name)
                journal.remove()
            raise
    file.write(header)
    file.seek(done * shape[1] * 4, os.SEEK_CUR)
    return done


def write_vectors(array: npt.NDArray[np.float32], output: Path, first_row: int = 0) -> None:
    """Writes vectors ``(n, D)`` atomically, in the format given by the suffix of ``output``; see ``encode_to_file``."""
    if output.suffix == ".parquet":
        write_atomically(output, lambda file: _write_parquet(array, first_row, file))
        return
    header = _header(array.shape)
    if output.suffix == ".safetensors":  # that library serialises whole tensors in memory
        tensor = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [0, array.nbytes]}
        header = json.dumps({"embeddings": tensor}).encode()
        header += b" " * (-len(header) % 8)
        header = struct.pack("<Q", len(header)) + header

    def write(file: BinaryIO) -> None:
        file.write(header)
        for block in _blocks(array):
            file.write(block.tobytes())

    write_atomically(output, write)


def _header(shape: tuple[int, ...]) -> bytes:
    """Returns the header of a .npy file with a float32 array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def _blocks(array: npt.NDArray[np.float32]) -> Any:
    return (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))


def _write_parquet(array: npt.NDArray[np.float32], start: int, file: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.list_(pa.float32(), array.shape[1])
    schema = pa.schema([("row", pa.int64()), ("embedding", kind)])
    with pq.ParquetWriter(file, schema) as writer:
        for block in _blocks(array):
            flat = pa.array(np.ascontiguousarray(block).reshape(-1))
            rows = pa.array(np.arange(start, start + len(block)))
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=kind)
            writer.write_table(pa.table([rows, vectors], schema=schema))
            start += len(block)

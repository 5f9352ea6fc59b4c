"""Writes embeddings of a corpus to a file (.npy, .safetensors, .parquet) in bounded memory.

Embeddings are written to ``OUTPUT.part``, an array file that is mapped into memory, and ``OUTPUT.part.json`` records
how many rows are done. After an interruption, a call with the same corpus, model and precision encodes only the
remaining rows. When all rows are done, the array is renamed or converted to ``OUTPUT``.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...io import dumps, locked, naming, write_atomically, write_text
from ..device import pick_precision
from ..encoders import OtherEncoder
from ..reading.resolve import model_files
from .inference import Encoder

FORMATS = (".npy", ".safetensors", ".parquet")
# Number of rows between updates of OUTPUT.part.json, and in a Parquet row group.
BLOCK = 16384

Rows = npt.NDArray[np.int64]


class Texts(Protocol):
    """Protocol of a corpus; see ``cse.data.corpus.Corpus``."""

    def __len__(self) -> int: ...

    def take(self, rows: npt.NDArray[np.integer]) -> list[str]:
        """Returns the texts of the given rows."""
        ...

    def word_counts(self) -> npt.NDArray[np.uint32]:
        """Returns the number of words of each row."""
        ...


@dataclass(frozen=True)
class EncodedFile:
    """The result of ``encode_to_file``: numbers of rows, of blank rows, and of rows that an earlier call completed."""

    rows: int
    blank: int
    resumed: int


def check_format(output: str) -> None:
    """Raises ``InputError`` if the suffix is not one of ``FORMATS``."""
    if Path(output).suffix not in FORMATS:
        raise InputError(f"-o {output}: the name must end in one of {', '.join(FORMATS)}")


def model_stamp(encoder: Encoder) -> dict[str, Any]:
    """Returns values that change if the embeddings of a model may have changed.

    They include the model's path and pooling; the name, size and modification time of each file that the embeddings
    depend on; the prompt; and the number of dimensions.
    """
    used = {
        **({"prompt": encoder.prompt} if encoder.prompt else {}),
        **({"dims": encoder.dims} if encoder.dims else {}),
    }
    if isinstance(encoder.model, OtherEncoder):
        return {**encoder.model.stamp(), **used}
    source = encoder.model.source
    status = [(name, path.stat()) for name, path in model_files(source)]
    return {
        "path": str(Path(source.path).resolve()),
        "pooling": encoder.pooling,
        "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in status],
        **used,
    }


def resume_precision(encoder: Encoder, output: str | Path, key: dict[str, Any], wanted: str) -> None:
    """Sets the precision of an encoder to the one in which an interrupted call with the same key encoded its rows.

    Args:
        encoder: The encoder; unchanged if there was no such call.
        output: The output of the interrupted call of ``encode_to_file``.
        key: The key that is passed to ``encode_to_file``, without ``precision``.
        wanted: The value of ``--precision``.

    Raises:
        InputError: If ``wanted`` is neither this precision nor ``auto``.
    """
    try:
        stored = json.loads(Path(f"{output}.part.json").read_text(encoding="utf8"))["key"]
        same = all(stored[name] == value for name, value in json.loads(dumps(key)).items())
        begun = str(stored["precision"]) if same and Path(f"{output}.part").exists() else encoder.precision
    except (OSError, ValueError, KeyError, TypeError):
        return
    if begun == encoder.precision:
        return
    if wanted != "auto":
        raise InputError(
            f"--precision {wanted}: the rows in {output}.part were encoded in {begun}; continue with "
            f"--precision {begun}, or remove that file"
        )
    encoder.precision, encoder.precision_reason = pick_precision(encoder.device, begun)


def encode_to_file(
    encoder: Encoder,
    corpus: Texts,
    output: str | Path,
    key: dict[str, Any],
    *,
    batch_size: int = 64,
    first_row: int = 0,
    progress: Callable[[int], None] | None = None,
) -> EncodedFile:
    """Encodes all rows of a corpus into a file; blank rows have zero embeddings.

    Args:
        encoder: The encoder.
        corpus: The corpus.
        output: ``.npy``: a float32 array ``(rows, D)``. ``.safetensors``: this array as the tensor ``embeddings``.
            ``.parquet``: the columns ``row`` and ``embedding``.
        key: Values that identify the corpus, the model and the precision, serialisable to JSON. Rows that an earlier
            call encoded with a different key are encoded again.
        batch_size: Texts per forward pass.
        first_row: The first value of the column ``row`` in a Parquet file.
        progress: Called with the number of rows done since its last call, including rows that an earlier call encoded.

    Raises:
        InputError: If another process writes to the same output.
        OSError: If a file cannot be written.
    """
    output = Path(output)
    part, state = Path(f"{output}.part"), Path(f"{output}.part.json")
    shape = (len(corpus), encoder.embedding_dim)
    # Rows are encoded in blocks, and a later call resumes at the start of a block. The embeddings therefore do not
    # depend on where a call was interrupted.
    key = json.loads(dumps({**key, "shape": shape, "block": BLOCK}))
    filled = corpus.word_counts() > 0
    with naming(part), ExitStack() as stack:
        part.touch()
        taken = f"-o {output}: another process is writing to this file; wait for it"
        stack.enter_context(locked(part, taken))
        done = _rows_done(part, state, key, shape)
        array = np.lib.format.open_memmap(part, mode="r+" if done else "w+", dtype=np.float32, shape=shape)
        if not done:
            _allocate(part)
        if progress and done:
            progress(done)
        for start in range(done, len(corpus), BLOCK):
            stop = min(start + BLOCK, len(corpus))
            rows = start + np.flatnonzero(filled[start:stop])
            block = np.zeros((stop - start, shape[1]), dtype=np.float32)
            block[rows - start] = encoder.encode(corpus.take(rows), batch_size=batch_size, progress=progress)
            if progress:
                progress(stop - start - len(rows))
            array[start:stop] = block
            array.flush()
            write_text(state, dumps({"key": key, "done": stop}) + "\n")
        del array  # Windows cannot rename or remove a file that is mapped into memory
        _finish(part, output, first_row)
        state.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    return EncodedFile(len(corpus), int(len(corpus) - np.count_nonzero(filled)), done)


def _allocate(part: Path) -> None:
    """Reserves disk space for the whole file, since writing to mapped memory kills the process if the disk is full.

    Does nothing if the operating system or the file system cannot reserve space.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    try:
        with naming(part), open(part, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            part.unlink()
            raise


def _rows_done(part: Path, state: Path, key: dict[str, Any], shape: tuple[int, int]) -> int:
    """Returns the number of rows that an interrupted call with the same key has encoded."""
    try:
        record = json.loads(state.read_text(encoding="utf8"))
        if record["key"] != key or np.load(part, mmap_mode="r").shape != shape:
            return 0
        return int(record["done"])
    except (OSError, EOFError, ValueError, KeyError):
        return 0


def _finish(part: Path, output: Path, first_row: int) -> None:
    """Renames the complete array to ``output``, or converts it to the format of ``output``."""
    if output.suffix == ".npy" and (output.is_file() or not output.exists()) and not output.is_symlink():
        with naming(output):
            os.replace(part, output)
        return
    write_vectors(np.load(part, mmap_mode="r"), output, first_row)


def write_vectors(array: npt.NDArray[np.float32], output: Path, first_row: int = 0) -> None:
    """Writes vectors ``(n, D)`` atomically, in the format given by the suffix of ``output``; see ``encode_to_file``."""
    if output.suffix == ".parquet":
        write_atomically(output, lambda file: _write_parquet(array, first_row, file))
        return
    writers = {".npy": _write_npy, ".safetensors": _write_safetensors}
    write_atomically(output, lambda file: writers[output.suffix](array, file))


def _blocks(array: npt.NDArray[np.float32]) -> Any:
    return (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))


def _write_npy(array: npt.NDArray[np.float32], file: BinaryIO) -> None:
    # np.save would write to the file descriptor directly, and report a broken pipe as an incomplete write.
    header = {"descr": "<f4", "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for block in _blocks(array):
        file.write(block.tobytes())


def _write_safetensors(array: npt.NDArray[np.float32], file: BinaryIO) -> None:
    # The safetensors library serialises whole tensors in memory. A file consists of the length of the header, the
    # header (JSON) and the data.
    tensor = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [0, array.nbytes]}
    header = json.dumps({"embeddings": tensor}).encode()
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header)
    for block in _blocks(array):
        file.write(block.tobytes())


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

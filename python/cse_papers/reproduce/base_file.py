"""The base of stored runs as one file, so that new runs can begin with the same weights.

python -m cse_papers.reproduce.base_file MODEL FOLDER     writes FOLDER/base-HASH.zip, for --base

Rows of matrices are 8-bit integers times a float32 scale, a quarter of the size of float32. The rounded weights differ
a little from those of MODEL; they are the base, and HASH is theirs (``weights_key``).
"""

from __future__ import annotations

import hashlib
import lzma
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from cse.errors import InputError
from cse.io import fresh_folder, write_atomically

from .masked import weights_key

WEIGHTS, SCALE = "model.safetensors", ".scale"
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
LARGEST = {WEIGHTS: 1 << 30, **dict.fromkeys(FILES, 1 << 24)}
"""Bytes that a file in the archive may have; the base of the stored runs has 22 MB and less than 1 MB."""


REST = {"6e7f6b6bde8ec692": "e7094c7c3c224e47"}
"""By the hash of the weights of stored runs, the first 16 digits of the SHA-256 of ``FILES``, in this order."""


def pack(model: Path, folder: Path) -> Path:
    """Writes the file of a model to a folder; returns its path."""
    from safetensors.numpy import load_file, save

    tensors = {}
    for name, weights in load_file(model / WEIGHTS).items():
        tensors[name] = weights.astype(np.float32)
        if weights.ndim == 2:
            scale = np.maximum(np.abs(tensors[name]).max(1, keepdims=True), np.float32(1e-12)) / np.float32(127)
            tensors |= {name: np.rint(tensors[name] / scale).astype(np.int8), name + SCALE: scale}
    contents = {**{name: (model / name).read_bytes() for name in FILES}, WEIGHTS: save(tensors)}

    def write(part: BinaryIO) -> None:
        with zipfile.ZipFile(part, "w") as archive:
            for name, content in contents.items():
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)

    with TemporaryDirectory() as temporary:
        key = _save(tensors, Path(temporary))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"base-{key}.zip"
    write_atomically(file, write)
    return file


def unpack(file: Path, place: Path) -> Path:
    """Returns the folder of the model in a file, which is written to ``place`` unless it is there and has these
    weights. Raises ``InputError`` for another file, for weights that do not have the hash in its name, and for another
    configuration or tokenizer than that of stored runs with these weights. Of other weights, the hash does not cover
    configuration and tokenizer: use the file of somebody whom you trust."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = place / file.stem
    with suppress(OSError, ValueError, SafetensorError):
        if (folder / WEIGHTS).exists() and (known := weights_key(str(folder))) in file.stem:
            _check_rest(file, known, {name: (folder / name).read_bytes() for name in FILES})
            return folder
    try:
        with zipfile.ZipFile(file) as archive:
            if any(archive.getinfo(name).file_size > most for name, most in LARGEST.items()):
                raise zipfile.BadZipFile
            contents = {name: archive.read(name) for name in (*FILES, WEIGHTS)}
        tensors = load(contents.pop(WEIGHTS))
        if not tensors or not all(map(partial(_is_sound, tensors), tensors)):
            raise zipfile.BadZipFile
    # of zipfile: RuntimeError for an encrypted file, NotImplementedError for an unknown compression
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, KeyError, ValueError, EOFError, OSError, RuntimeError,
            SafetensorError) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"--base {file}: is not the file of a base, or is damaged; see docs/reproduce.md") from None
    with fresh_folder(folder) as part:
        for name, content in contents.items():
            (part / name).write_bytes(content)
        if (key := _save(tensors, part)) not in file.stem:
            raise InputError(f"--base {file}: the weights have the hash {key}, not the one in its name; copy it again")
        _check_rest(file, key, contents)
    return folder


def _check_rest(file: Path, key: str, contents: Mapping[str, bytes]) -> None:
    found = hashlib.sha256(b"".join(contents[name] for name in FILES)).hexdigest()[:16]
    if REST.get(key, found) != found:
        raise InputError(
            f"--base {file}: configuration or tokenizer differs from that of the stored runs with these weights; copy "
            "the file again"
        )


def _is_sound(tensors: Mapping[str, Any], name: str) -> bool:
    """Returns whether weights are finite, and integers have a scale for each of their rows."""
    own, scale = tensors[name], tensors.get(name + SCALE)
    if own.dtype.kind == "i":
        return own.ndim == 2 and scale is not None and scale.shape == (len(own), 1)
    return own.dtype.kind == "f" and bool(np.isfinite(own).all())


def _save(tensors: Mapping[str, Any], folder: Path) -> str:
    """Writes the weights of a file in float32 to a folder; returns their hash."""
    from safetensors.numpy import save_file

    weights = {name: each.astype(np.float32) for name, each in tensors.items() if not name.endswith(SCALE)}
    weights |= {name: each * tensors[name + SCALE] for name, each in weights.items() if name + SCALE in tensors}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return weights_key(str(folder))


def main(arguments: Sequence[str]) -> None:
    model, folder = map(Path, arguments)
    print(pack(model, folder))


if __name__ == "__main__":
    main(sys.argv[1:])

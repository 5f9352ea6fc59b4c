"""The base of stored runs as one file, so that new runs can begin with the same weights.

python -m cse_papers.reproduce.base_file MODEL FOLDER     writes FOLDER/base-HASH.zip, for --base

Rows of matrices are 8-bit integers times a float32 scale, a quarter of the size of float32. The rounded weights differ
a little from those of MODEL; they are the base, and HASH is theirs (``weights_key``).
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cse.errors import InputError
from cse.io import fresh_folder, write_atomically

from .masked import weights_key

WEIGHTS, SCALE = "model.safetensors", ".scale"
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


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
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in contents.items():
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "base.zip"
    write_atomically(file, write)
    key = weights_key(str(unpack(file, folder / "base")))
    return file.rename(folder / f"base-{key}.zip")


def unpack(file: Path, folder: Path) -> Path:
    """Writes the model in a file to a folder, unless it exists; returns the folder. Raises ``InputError`` for another
    file, and for weights that do not have the hash in its name."""
    from safetensors.numpy import load, save_file

    try:
        with zipfile.ZipFile(file) as archive:
            contents = {name: archive.read(name) for name in (*FILES, WEIGHTS)}
        tensors = load(contents.pop(WEIGHTS))
    except (zipfile.BadZipFile, KeyError, ValueError):
        raise InputError(f"--base {file}: is not the file of a base; see docs/reproduce.md") from None
    weights = {name: each for name, each in tensors.items() if not name.endswith(SCALE)}
    for name in weights:
        if name + SCALE in tensors:
            weights[name] = weights[name].astype(np.float32) * tensors[name + SCALE]
    if not folder.exists():
        with fresh_folder(folder) as part:
            for name, content in contents.items():
                (part / name).write_bytes(content)
            save_file(weights, part / WEIGHTS, {"format": "pt"})
    _, named, key = file.stem.rpartition("base-")
    if named and weights_key(str(folder)) != key:
        raise InputError(f"--base {file}: the weights do not have the hash in its name; copy the file again")
    return folder


def main(arguments: Sequence[str]) -> None:
    model, folder = map(Path, arguments)
    print(pack(model, folder))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The files of an index folder.

==================  ==================================================================================================
file                content
==================  ==================================================================================================
``manifest.json``   format, model, settings, and the numbers of rows and vectors that are complete; written last
``vectors.npy``     the vectors ``(vectors, D)``: float32, or int8 with a float32 scale per vector in ``scales.f32``
``places.bin``      row of each vector, and the range of characters in the row's text that was encoded (``PLACE``)
``texts.txt``       text of each row, then a line feed, in UTF-8; ``texts.u64``: byte offset of the end of each line
``ids.txt``         id of each row; ``ids.u64``: as for the texts; both are absent if the index has no ids
``hashes.u64``      hash of each row, to check whether a corpus begins with the rows of the index
``bm25/``           BM25 index; absent until a search needs it
==================  ==================================================================================================

Rows are only ever appended to files. If a process is killed while it writes, the files contain more data than the
manifest says; the next process that writes to the index removes the surplus. The manifest is replaced atomically.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..io import dumps, naming, write_text
from ..locks import lock
from ..sharding.parts import read_manifest
from .vectors import Float32, Int8, Vectors, quantize

__all__ = ["BM25", "PLACE", "Store", "locked"]

VERSION = 1
MANIFEST = "manifest.json"
LOCK = ".lock"
BM25 = "bm25"
LINES = ("texts.txt", "texts.u64", "ids.txt", "ids.u64")
FILES = (MANIFEST, "vectors.npy", "scales.f32", "places.bin", "hashes.u64", *LINES)
PLACE = np.dtype([("row", "<i8"), ("start", "<u4"), ("end", "<u4")])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks an index folder for writing, and creates the folder if it does not exist.

    Raises ``InputError`` if another process is writing to the folder, or if the folder contains other files.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the index")
    if read_manifest(folder) is not None:  # --rebuild would remove the manifest of the parts
        raise InputError(f"{folder}: holds parts; search in them without CORPUS, or name another folder for the index")
    if folder.is_dir() and not (folder / LOCK).exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: holds files that are not part of an index; name a new folder")
    path = folder / LOCK
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with naming(path), open(path, "a") as file:
        try:
            lock(file.fileno())
        except BlockingIOError:
            raise InputError(f"{folder}: another process is writing to this index; wait for it") from None
        yield


def npy_header(shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    """Returns the header of a .npy file; NumPy pads it so that its length is the same for any shape[0]."""
    file = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


class Store:
    """An index folder; the docstring of this module describes its files.

    Args:
        folder: The folder.
        manifest: The content of its manifest.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Opens a folder; raises ``InputError`` if it holds no index, or a damaged one."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"{folder}: no index there; make one with 'cse search MODEL CORPUS -o {folder}'") from None
        except ValueError:
            raise InputError(f"{folder / MANIFEST}: is not JSON; build the index again with --rebuild") from None
        if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
            raise InputError(f"{folder}: the index was built by another version of cse; build it again with --rebuild")
        store = cls(folder, manifest)
        for name, size in store._sizes().items():
            path = folder / name
            if not path.exists() or path.stat().st_size < size:
                raise InputError(f"{path}: is missing or shorter than it was; build the index again with --rebuild")
        return store

    @classmethod
    def create(cls, folder: Path, settings: dict[str, Any]) -> Store:
        """Returns an index without rows; removes any index in the folder. Call it within ``locked``.

        Args:
            folder: The folder.
            settings: The settings to store in the manifest: ``width``, ``int8``, ``ids``, and others.
        """
        # Files are removed, not truncated, so that processes that have mapped them into memory can still read them.
        with naming(folder):
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            if (folder / BM25).is_dir():
                shutil.rmtree(folder / BM25)
        manifest = {
            "version": VERSION,
            **settings,
            "wanted": 0,
            "rows": 0,
            "vectors": 0,
            "text_bytes": 0,
            "id_bytes": 0,
        }
        return cls(folder, manifest)

    @property
    def rows(self) -> int:
        """Number of complete rows."""
        return int(self.manifest["rows"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements of the vectors, float32 or int8."""
        return np.dtype(np.int8 if self.manifest["int8"] else "<f4")

    def _sizes(self) -> dict[str, int]:
        """Returns the expected sizes of the files in bytes, according to the manifest."""
        known = self.manifest
        header = len(npy_header((0, known["width"]), self.dtype))
        sizes = {
            "vectors.npy": header + known["vectors"] * known["width"] * self.dtype.itemsize,
            "places.bin": known["vectors"] * PLACE.itemsize,
            "texts.txt": known["text_bytes"],
            "texts.u64": 8 * known["rows"],
            "hashes.u64": 8 * known["rows"],
        }
        if known["int8"]:
            sizes["scales.f32"] = 4 * known["vectors"]
        if known["ids"]:
            sizes.update({"ids.txt": known["id_bytes"], "ids.u64": 8 * known["rows"]})
        return sizes

    def cut(self) -> None:
        """Truncates files to the sizes in the manifest, in case a process was killed; call it before ``append``."""
        for name, size in self._sizes().items():
            with naming(self.folder / name), open(self.folder / name, "ab") as file:
                file.truncate(size)
        self._write_header()

    def _write_header(self) -> None:
        path = self.folder / "vectors.npy"
        with naming(path), open(path, "r+b") as file:
            file.write(npy_header((self.manifest["vectors"], self.manifest["width"]), self.dtype))

    def append(
        self,
        texts: Sequence[str],
        hashes: npt.NDArray[np.uint64],
        ids: Sequence[str] | None,
        vectors: npt.NDArray[np.float32],
        places: npt.NDArray[Any],
    ) -> None:
        """Appends rows, which ``commit`` then makes part of the index. Call it within ``locked``.

        Args:
            texts: n texts without line feeds.
            hashes: The hash of each text, ``(n,)`` uint64.
            ids: The id of each text, if the index has ids.
            vectors: Vectors of the texts or of their passages, ``(m, D)``.
            places: Row and range of characters of each vector, ``(m,)`` of ``PLACE``.
        """
        known = self.manifest
        if known["int8"]:
            values, scales = quantize(vectors)
            self._append("scales.f32", scales.astype("<f4").tobytes())
            self._append("vectors.npy", values.tobytes())
        else:
            self._append("vectors.npy", vectors.astype("<f4").tobytes())
        self._append("places.bin", places.tobytes())
        self._append("hashes.u64", hashes.astype("<u8").tobytes())
        known["text_bytes"] = self._append_lines("texts", texts, known["text_bytes"])
        if known["ids"]:
            known["id_bytes"] = self._append_lines("ids", ids or [], known["id_bytes"])
        known["rows"] += len(texts)
        known["vectors"] += len(vectors)

    def _append(self, name: str, data: bytes) -> None:
        with naming(self.folder / name), open(self.folder / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _append_lines(self, name: str, lines: Sequence[str], before: int) -> int:
        encoded = [line.encode() + b"\n" for line in lines]
        ends = before + np.cumsum([len(line) for line in encoded], dtype=np.uint64)
        self._append(f"{name}.txt", b"".join(encoded))
        self._append(f"{name}.u64", ends.astype("<u8").tobytes())
        return int(ends[-1]) if len(ends) else before

    def commit(self, **changes: Any) -> None:
        """Writes the manifest, updated with ``changes``, so that appended rows become part of the index."""
        self.manifest.update(changes)
        self._write_header()
        write_text(self.folder / MANIFEST, dumps(self.manifest, indent=2) + "\n")

    def vectors(self) -> Vectors:
        """Returns the vectors, mapped into memory."""
        shape = (self.manifest["vectors"], self.manifest["width"])
        header = len(npy_header(shape, self.dtype))
        values = self._map("vectors.npy", self.dtype, shape[0] * shape[1], header).reshape(shape)
        longest = float(self.manifest["longest"])
        if not self.manifest["int8"]:
            return Float32(values, longest)
        return Int8(values, self._map("scales.f32", np.dtype("<f4"), shape[0]), longest)

    def places(self) -> npt.NDArray[Any]:
        """Returns the row and range of characters of each vector, ``(vectors,)`` of ``PLACE``, mapped into memory."""
        return self._map("places.bin", PLACE, self.manifest["vectors"])

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Returns the hash of each row, ``(rows,)`` uint64, mapped into memory."""
        return self._map("hashes.u64", np.dtype("<u8"), self.rows)

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Returns the texts of some rows."""
        return self._lines("texts", rows)

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Returns the ids of some rows, or the row numbers as text if the index has no ids."""
        return self._lines("ids", rows) if self.manifest["ids"] else [str(row) for row in rows]

    def _lines(self, name: str, rows: Sequence[int]) -> list[str]:
        ends = self._map(f"{name}.u64", np.dtype("<u8"), self.rows)
        path = self.folder / f"{name}.txt"
        found = []
        with naming(path), open(path, "rb") as file:
            for row in rows:
                if not 0 <= row < self.rows:
                    raise InputError(f"row: {row} is out of range; there are {self.rows:,} rows in {self.folder}")
                start = int(ends[row - 1]) if row else 0
                file.seek(start)
                found.append(file.read(int(ends[row]) - start - 1).decode("utf8", "replace"))
        return found

    def _map(self, name: str, dtype: np.dtype[Any], count: int, offset: int = 0) -> npt.NDArray[Any]:
        if not count:
            return np.empty(0, dtype=dtype)
        path = self.folder / name
        with naming(path):  # as a plain array, because slices of np.memmap are slow
            return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,)))

"""Opens a folder of parts written by ``cse encode --parts`` as one index over the vectors of all parts.

A part is a file with the vectors of one corpus file. Vectors of ``.npy`` parts are mapped into memory. The texts of the
rows that a search finds are read from the corpus files. A search finds the same rows, with the same scores, as a
search in an index of the whole corpus; see ``tests/test_sharding.py``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..data import readers
from ..data.corpus import Corpus
from ..errors import InputError
from ..io import dumps
from ..sharding.parts import read_manifest
from .vectors import Array, Floats, Joined, Rows, Some, Unit, Vectors

if TYPE_CHECKING:
    from ..models.running.inference import Encoder

# Number of vectors read at a time when a part is searched for zero vectors.
BLOCK = 1 << 16
# Maximum number of corpus files that are kept open.
OPEN_FILES = 64


class PartsStore:
    """A folder of parts with the interface of ``cse.search.store.Store``; it cannot be written to.

    Args:
        folder: The folder.
        manifest: Its manifest.
        verify: Whether the parts are compared with their hashes.

    Raises:
        InputError: If a part is missing or was changed.
    """

    spans = None

    def __init__(self, folder: Path, manifest: dict[str, Any], verify: bool = True) -> None:
        settings = manifest["settings"]
        self.verify = verify
        self.folder, self.parts = folder, [part for part in manifest["parts"] if part["rows"]]
        self.rows: int = manifest["rows"]
        self.reading = {name: settings[name] for name in ("encoding_errors", "max_line_bytes")}
        vectors = self.rows - sum(part["counted"]["blank"] for part in self.parts)
        kinds = {"int8": False, "ids": False, "passages": None, "parts": True}
        self.manifest: dict[str, Any] = {**settings, "rows": self.rows, "vectors": vectors, **kinds}
        self._open: dict[int, Corpus] = {}
        opened = [self._open_part(part) for part in self.parts]
        self.vectors: Vectors = Joined([vectors for vectors, _ in opened])
        self.row_of: Rows = np.concatenate([rows for _, rows in opened])

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> PartsStore | None:
        """Opens a folder; returns None if it contains no parts. Raises ``InputError`` like ``read_parts``."""
        manifest = read_parts(folder)
        return None if manifest is None else cls(folder, manifest, verify)

    def check_model(self, encoder: Encoder) -> None:
        """Raises ``InputError`` unless the parts were encoded with this model and its document prompt."""
        from ..models.digest import model_digest

        if self.manifest["digest"] != model_digest(encoder, prompt=""):
            raise InputError(f"{self.folder}: was encoded by another model ({self.manifest['model']}); use that model")
        prompt = encoder.document_prompt
        if self.manifest["prompt"] != prompt:
            raise InputError(
                f"{self.folder}: was encoded with the prompt {self.manifest['prompt']!r}, but this model's document "
                f"prompt is {prompt!r}; encode the files again with --prompt {prompt!r}"
            )

    def _open_part(self, part: dict[str, Any]) -> tuple[Vectors, Rows]:
        """Returns the vectors of a part's rows that are not blank, and the numbers of these rows in the corpus.

        For cosines, the vectors have unit length. Blank rows are stored as zeros. If other rows are also zeros, because
        all their words are unknown, the corpus file is read to find the blank rows.
        """
        path = self.folder / part["part"]
        whole = path.is_file() and path.stat().st_size == part["part_bytes"]
        if not whole or (self.verify and _core.hash_file(path) != part["part_xxh3"]):
            raise InputError(f"{path}: is missing or was changed; run the same cse encode command again")
        values = _values(path)
        rows = np.arange(len(values))
        if part["counted"]["blank"]:
            filled = [start + np.flatnonzero(values[start : start + BLOCK].any(1)) for start in rows[::BLOCK].tolist()]
            rows = np.concatenate(filled)
            if len(rows) != len(values) - part["counted"]["blank"]:
                rows = np.flatnonzero(self._open_corpus(part).word_counts() > 0)
        vectors: Vectors = Array(values)
        if self.manifest["similarity"] == "cosine":
            vectors = Unit(vectors)
        return (vectors if len(rows) == len(values) else Some(vectors, rows)), rows + part["first_row"]

    def _open_corpus(self, part: dict[str, Any]) -> Corpus:
        """Opens the file from which a part was encoded; raises ``InputError`` if it has changed since then."""
        corpus = Corpus.open(readers.resolve([part["path"]], part["column"]), **self.reading)
        if corpus.files[0].xxh3 != part["xxh3"]:
            raise InputError(f"{part['path']}: was changed after it was encoded; encode it again")
        return corpus

    @property
    def generation(self) -> str:
        """A hash that is different after each change of the texts."""
        texts = [[part["xxh3"], part["column"], part["rows"]] for part in self.parts]
        return hashlib.sha256(dumps([self.reading, texts]).encode()).hexdigest()[:32]

    def is_current(self) -> bool:
        """Returns True: parts are not updated."""
        return True

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Returns row numbers as text, since the rows of parts have no ids."""
        return [str(row) for row in rows]

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Returns the texts of some rows, from the files of the corpus.

        Raises ``InputError`` for a file that has changed since it was encoded.
        """
        starts = [part["first_row"] for part in self.parts]
        texts = []
        for row in rows:
            if not 0 <= row < self.rows:
                raise InputError(f"row: {row} is out of range; there are {self.rows:,} rows in {self.folder}")
            number = bisect_right(starts, row) - 1
            corpus = self._open.get(number)
            if corpus is None:
                corpus = self._open_corpus(self.parts[number])
                if len(self._open) >= OPEN_FILES:
                    self._open.pop(next(iter(self._open)), None)
                self._open[number] = corpus
            texts += corpus.take([row - starts[number]])
        return texts


def read_parts(folder: Path) -> dict[str, Any] | None:
    """Returns the manifest of a folder of parts; None if it contains no parts.

    Raises ``InputError`` if the parts were written by another command, are incomplete, or contain no rows.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    if manifest["kind"] != "encode":
        raise InputError(
            f"{folder}: holds parts written by cse {manifest['kind']}; make vectors with cse encode --parts"
        )
    if not manifest["complete"]:
        missing = sum("counted" not in part for part in manifest["parts"])
        raise InputError(
            f"{folder}: {missing:,} of {len(manifest['parts']):,} parts are missing; run the same cse encode "
            "command again"
        )
    if not manifest["rows"]:
        raise InputError(f"{folder}: contains no rows to search; encode files that contain sentences")
    return manifest


def _values(path: Path) -> Floats:
    """Returns the array of a part, mapped into memory if it is a .npy file, otherwise read into memory."""
    if path.suffix == ".npy":
        values = np.load(path, mmap_mode="r")
    elif path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="np") as file:
            values = file.get_tensor("embeddings")
    else:
        import pyarrow.parquet as pq

        column = pq.read_table(path, columns=["embedding"]).column("embedding").combine_chunks()
        values = column.flatten().to_numpy().reshape(len(column), column.type.list_size)
    return np.asarray(values)

"""The rows of a corpus, in memory or in memory-mapped files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np
import numpy.typing as npt

from .. import _core
from ..background import ProgressCallback
from ..errors import InputError, check_texts
from .mapped_rows import StoredRows, count_repeats, is_mapped
from .readers import Column, joined_lines
from .reading import ReadOptions, SourceFile, reading_options

__all__ = ["IN_MEMORY", "Corpus"]

# Stands in place of a file path for texts given to ``Corpus.from_texts``, including in the configuration of a run.
IN_MEMORY = "(texts in memory)"


Rows = npt.NDArray[np.int64]


class Corpus:
    """The rows of a corpus, with the same row numbers as in its TF-IDF index.

    ``Corpus.read`` keeps the rows in memory; ``Corpus.open`` memory-maps the rows of a large corpus.
    """

    def __init__(self, rows: _core.Rows | StoredRows, joined_lines: int) -> None:
        self._core = rows
        self.joined_lines = joined_lines
        """Number of table fields, or of texts in memory, in which a line break was replaced by a space."""
        self._in_memory = False

    @classmethod
    def open(
        cls,
        files: Sequence[str | Column],
        *,
        cache: str | None = None,
        progress: ProgressCallback | None = None,
        **reading: Unpack[ReadOptions],
    ) -> Corpus:
        """Opens files. A small corpus is read into memory, and a large one is memory-mapped; see ``is_mapped``.

        Args:
            files: The inputs that ``cse.data.readers.resolve`` returned.
            cache: The cache folder; see ``cse.data.cache.cache_folder``.
            progress: Called with the arguments of ``Callback.on_progress`` while rows are written to the cache.
            **reading: See ``ReadOptions``.

        Raises:
            InputError: For an invalid file or option.
            OSError: For a file that cannot be read or written.
        """
        if not is_mapped(files):
            return cls.read(files, **reading)
        stored = StoredRows.open(files, reading_options(**reading), cache, progress)
        return cls(stored, stored.joined_lines)

    @classmethod
    def read(cls, files: Sequence[str | Column], **reading: Unpack[ReadOptions]) -> Corpus:
        """Reads files of any size into memory.

        Args:
            files: The inputs that ``cse.data.readers.resolve`` returned.
            **reading: See ``ReadOptions``.

        Raises:
            InputError: For an invalid file or option.
            OSError: For a file that cannot be read.
        """
        core = _core.Rows.read(list(files), reading_options(**reading))
        return cls(core, joined_lines(files))

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Corpus:
        """Returns an in-memory corpus of texts of any length; line breaks in the texts are replaced by spaces.

        Raises:
            InputError: If ``texts`` is a single string, is empty, or has an element that is not a string.
        """
        lines = _Lines(check_texts(texts))
        if not lines.content:
            raise InputError("texts: must not be empty; at least one sentence is needed")
        # The core treats ``lines`` as a table column. It hashes the file, but reads the rows with ``lines.next_block``.
        with tempfile.NamedTemporaryFile(prefix="cse-texts-") as file:
            file.write(lines.content)
            file.flush()
            lines.path = file.name
            corpus = cls(_core.Rows.read([lines], reading_options(max_line_bytes=2**40)), lines.joined)
        corpus._in_memory = True
        return corpus

    def __len__(self) -> int:
        """Returns the number of rows, including blank ones."""
        return len(self._core)

    def take(self, rows: npt.NDArray[np.integer] | Sequence[int]) -> list[str]:
        """Returns the texts of the given rows, in the given order."""
        return self._core.take([int(row) for row in rows])

    @property
    def folder(self) -> str | None:
        """Folder of the memory-mapped files; None if the rows are in memory."""
        return self._core.folder if isinstance(self._core, StoredRows) else None

    @property
    def files(self) -> list[SourceFile]:
        """The files that were read, in order."""
        files = [SourceFile(*file) for file in self._core.files]
        return [replace(file, path=IN_MEMORY, column=None) for file in files] if self._in_memory else files

    @property
    def repaired(self) -> int:
        """Number of rows in which invalid UTF-8 was replaced by U+FFFD."""
        return self._core.repaired

    def word_counts(self) -> npt.NDArray[np.uint32]:
        """Returns the number of whitespace-separated words of each row, ``(n,)`` uint32; 0 for a blank row."""
        return np.frombuffer(self._core.word_counts(), dtype="<u4")

    def filled(self) -> Rows:
        """Returns the numbers of the rows that are not blank, ascending; raises ``InputError`` if there are none."""
        rows: Rows = np.flatnonzero(self.word_counts() > 0)
        if not len(rows):
            names = ", ".join(file.path for file in self.files)
            column = self.files[0].column if self.files else None
            blank = f"all {len(self)} lines are blank"
            if column is not None:
                blank = f"column {column} is empty or null in all {len(self)} rows"
            raise InputError(f"{names}: {blank}; at least one sentence is needed")
        return rows

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Returns a 64-bit hash of the text of each row, ``(n,)`` uint64."""
        return np.frombuffer(self._core.hashes(), dtype="<u8")

    def repeats(self) -> int:
        """Returns the number of non-blank rows that repeat the text of an earlier row."""
        if isinstance(self._core, StoredRows):
            return self._core.repeats
        return count_repeats(self.hashes(), self.word_counts())


class _Lines:
    """Texts in memory, with the interface of ``cse.data.readers.Column``."""

    column = "text"

    def __init__(self, texts: Sequence[str]) -> None:
        self.path = ""
        self.joined = sum("\n" in text or "\r" in text for text in texts)
        lines = (text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ") + "\n" for text in texts)
        # Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
        self.content = "".join(lines).encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        self._left = self.content

    def next_block(self) -> tuple[bytes, int] | None:
        """Returns all rows on the first call, then None."""
        block, self._left = self._left, b""
        return (block, len(block)) if block else None

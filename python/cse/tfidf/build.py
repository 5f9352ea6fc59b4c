"""Builds an index and writes it to a folder."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from .. import _core
from ..data import readers
from ..data.reading import ReadOptions, SourceFile, reading_options
from ..errors import InputError
from .options import WordOptions, word_options
from .results import IndexInfo

__all__ = ["build_index"]


def build_index(
    paths: readers.Paths,
    folder: str | PathLike[str],
    *,
    column: str | None = None,
    matrix: bool = True,
    engine: str = "local",
    words: WordOptions | None = None,
    reading: ReadOptions | None = None,
    progress: _core.Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[IndexInfo, list[SourceFile], int]:
    """Builds an index and writes it to a folder. Unlike ``TfidfIndex.build``, this function does not load the index.

    Args:
        paths: See ``TfidfIndex.build``.
        folder: Folder for ``index.safetensors`` and, with ``matrix``, for ``matrix.npz``. The latter holds the TF-IDF
            matrix, ``(rows, terms)`` in CSR, float64; row i of the matrix belongs to row i of the corpus.
        column: Column of the tables that contains the sentences.
        matrix: Whether to write the matrix, which must fit in memory; the engine ``ray`` never writes one.
        engine: ``local`` for this process, or ``ray`` for one task per file on a Ray cluster; the index is the same.
        words: Tokenization; see ``WordOptions``.
        reading: How files are read; see ``ReadOptions``.
        progress: With the engine ``local``, counts the bytes read; its ``cancel`` stops the build.
        say: With the engine ``ray``, called with each line of progress to print.

    Returns:
        Counts of the corpus, the files that were read, and the number of table fields in which a line break was
        replaced by a space.
    """
    words, reading = word_options(**(words or {})), reading_options(**(reading or {}))
    if engine == "ray":
        from .ray import count_on_cluster

        data, joined = count_on_cluster(paths, column=column, words=words, reading=reading, say=say)
        counts, read = _core.save(folder, data)
    elif engine == "local":
        files = readers.resolve(paths, column)
        counts, read = _core.build_to(files, folder, words, matrix, reading, progress)
        joined = readers.joined_lines(files)
    else:
        raise InputError(f"--engine: {engine!r} is unknown; choose local or ray")
    return IndexInfo(*counts), [SourceFile(*file) for file in read], joined

"""Finds the files of a corpus and their row counts, which are taken from an index or determined by counting."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..data import readers
from ..data.reading import SourceFile
from ..errors import InputError
from .parts import Source

__all__ = ["find_sources"]


def find_sources(
    files: Sequence[str],
    column: str | None,
    known: Sequence[SourceFile],
    index: str,
    count: Callable[[Sequence[tuple[str, str | None]]], list[Source]],
    *,
    elsewhere: bool,
) -> list[Source]:
    """Returns the files of a corpus with their row counts.

    Args:
        files: Paths and patterns.
        column: Column with the texts, for files that are tables.
        known: The files that the index lists.
        index: Folder of the index, for messages.
        count: Counts the rows of files, given as paths and columns; called at most once, with the files whose counts
            are not taken from the index.
        elsewhere: Whether the files are read on other machines; files in the index then need not exist here.

    Raises:
        InputError: If the size of a file differs from its size in the index, or if a file cannot be read.
    """
    found = readers.resolve(list(files), column)
    wanted = [(item, None) if isinstance(item, str) else (item.path, item.column) for item in found]
    by_path = {(each.path, each.column): each for each in known}
    listed: dict[tuple[str, str | None], Source] = {}
    for path, name in wanted:
        each = by_path.get((path, name))
        if each is None or not (elsewhere or os.path.isfile(path)):
            continue
        if os.path.isfile(path) and os.path.getsize(path) != each.bytes:
            raise InputError(
                f"{path}: has {os.path.getsize(path):,} bytes, but had {each.bytes:,} when the index {index} was "
                "built; build it again from these files"
            )
        listed[path, name] = Source(each.path, each.column, each.bytes, each.rows, each.xxh3)
    unknown = list(dict.fromkeys(each for each in wanted if each not in listed))
    if unknown:
        listed.update(zip(unknown, count(unknown), strict=True))
    return [listed[each] for each in wanted]

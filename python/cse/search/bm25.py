"""BM25 search with the library bm25s (extra ``cse[search]``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import InputError
from ..io import dumps, fresh_folder
from .terms import Terms
from .terms import library as library
from .vectors import Numbers, top

HASHES = "hashes.json"
PROGRESS_ROWS = 4096


class Bm25:
    """BM25 with Lucene's formula, k1 = 1.5 and b = 0.75."""

    def __init__(self, index: Any, terms: Terms) -> None:
        self._index, self._split = index, terms

    @classmethod
    def build(
        cls, texts: Iterable[str], progress: Callable[[int], None] | None = None, terms: Terms | None = None
    ) -> Bm25:
        """Builds an index of texts, split by ``terms``, by default into all words; at least one must have a term."""
        split = terms or Terms()
        index = cls(library().BM25(method="lucene", k1=1.5, b=0.75), split)
        vocabulary: dict[str, int] = {}
        rows: list[list[int]] = []
        source = iter(texts)
        while block := list(islice(source, PROGRESS_ROWS)):
            rows += [[vocabulary.setdefault(term, len(vocabulary)) for term in row] for row in split(block)]
            if progress:
                progress(len(block))
        if not vocabulary:
            raise InputError("BM25: no row of the corpus contains a word; leave out the option that uses BM25")
        index._index.index((rows, vocabulary), show_progress=False)
        return index

    @classmethod
    def open(cls, folder: Path, terms: Terms, verify: bool = True) -> Bm25:
        """Opens an index that ``save`` wrote, mapped into memory; ``terms`` as in ``build``."""
        load = library().BM25.load
        try:
            if verify and json.loads((folder / HASHES).read_bytes()) != _hashes(folder):
                raise ValueError("a file is damaged")
            return cls(load(folder, mmap=True, show_progress=False), terms)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{folder}: cannot be read ({error}); remove the folder to build it again") from None

    def save(self, folder: Path) -> None:
        """Writes the index to a folder, atomically."""
        with fresh_folder(folder) as fresh:
            self._index.save(fresh, show_progress=False)
            (fresh / HASHES).write_text(dumps(_hashes(fresh)), encoding="utf8")

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Returns the scores of all rows, ``(n,)`` float32; 0 for rows without any term of the query."""
        vocabulary = self._index.vocab_dict
        known = [vocabulary[term] for term in self._split([query])[0] if term in vocabulary]
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores

    def search(self, query: str, k: int) -> Numbers:
        """Returns up to k rows with the largest positive scores, best first; ties are in row order."""
        scores = self.scores(query)
        rows = top(scores, k)
        return rows[scores[rows] > 0]


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: _core.hash_file(path) for path in sorted(folder.iterdir()) if path.name != HASHES}

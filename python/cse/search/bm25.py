"""BM25 search with the library bm25s (extra ``cse[search]``). Terms come from the ``unicode`` tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import InputError
from ..io import fresh_folder
from ..tfidf.options import word_options

__all__ = ["Bm25", "fuse"]

Rows = npt.NDArray[np.int64]

# Number of texts read between two calls of ``progress``.
PROGRESS_ROWS = 4096
HASHES = "hashes.json"
# The constant of reciprocal rank fusion, as in the paper.
CONSTANT = 60


def library() -> Any:
    """Imports bm25s; raises ``InputError`` if it is not installed."""
    try:
        import bm25s
    except ImportError:
        raise InputError("BM25: needs bm25s, which is not installed; run pip install 'cse[search]'") from None
    return bm25s


def _hashes(folder: Path) -> dict[str, str]:
    """Returns the hash of each file of an index, by name."""
    return {path.name: _core.hash_file(path) for path in sorted(folder.iterdir()) if path.name != HASHES}


def terms(text: str) -> list[str]:
    """Returns the terms of a text, in lower case."""
    return [term for _, _, term in _core.tokenize(text, word_options())]


class Bm25:
    """BM25 with Lucene's formula, k1 = 1.5 and b = 0.75."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, texts: Iterable[str], progress: Callable[[int], None] | None = None) -> Bm25:
        """Builds an index of texts; the first text is row 0.

        Args:
            texts: The texts; at least one must contain a term.
            progress: Called with the number of texts read since its last call.

        Raises:
            InputError: If bm25s is not installed, or no text contains a term.
        """
        bm25s = library()
        vocabulary: dict[str, int] = {}
        rows = []
        source = iter(texts)
        while block := list(islice(source, PROGRESS_ROWS)):
            rows += [[vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)] for text in block]
            if progress:
                progress(len(block))
        if not vocabulary:
            raise InputError("BM25: no row of the corpus contains a word; leave out the option that uses BM25")
        index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        index.index((rows, vocabulary), show_progress=False)
        return cls(index)

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Bm25:
        """Opens an index that ``save`` wrote, mapped into memory.

        Raises ``InputError`` if it cannot be read or, with ``verify``, if a file differs from its stored hash.
        """
        try:
            if verify and json.loads((folder / HASHES).read_bytes()) != _hashes(folder):
                raise ValueError("a file is damaged")
            return cls(library().BM25.load(folder, mmap=True, show_progress=False))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder}: cannot be read ({error}); remove the folder to build it again") from None

    def save(self, folder: Path) -> None:
        """Writes the index to a folder, atomically."""
        with fresh_folder(folder) as fresh:
            self._index.save(fresh, show_progress=False)
            (fresh / HASHES).write_text(json.dumps(_hashes(fresh), separators=(",", ":")), encoding="utf8")

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Returns the scores of all rows, ``(n,)`` float32; 0 for rows without any term of the query."""
        vocabulary = self._index.vocab_dict
        known = [vocabulary[term] for term in terms(query) if term in vocabulary]
        found: npt.NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return found

    def search(self, query: str, k: int) -> Rows:
        """Returns up to k rows with the largest positive scores, best first; ties are in row order."""
        scores = self.scores(query)
        k = min(k, len(scores))
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        rows = np.flatnonzero((scores >= kth) & (scores > 0))
        return rows[np.argsort(-scores[rows], kind="stable")][:k]


def fuse(rankings: Sequence[Sequence[int]], k: int, constant: int = CONSTANT) -> list[tuple[int, float]]:
    """Combines rankings by reciprocal rank fusion (Cormack, Clarke and Buettcher 2009).

    The score of a row is the sum of 1 / (constant + rank) over the rankings that contain the row; ranks start at 1.

    Args:
        rankings: Rankings, each a sequence of row numbers, best first.
        k: Maximum number of rows to return.
        constant: The constant in the score; 60 in the paper.

    Returns:
        Rows and scores, best first; rows with equal scores are in row order.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]

"""BM25 search with the library bm25s (extra ``cse[search]``).

``terms.py`` says how texts are split into terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .store import hashed_folder, open_hashed
from .terms import Terms
from .terms import library as library
from .vectors import Rows, top

# Number of texts read between two calls of ``progress``.
PROGRESS_ROWS = 4096


class Bm25:
    """BM25 with Lucene's formula, k1 = 1.5 and b = 0.75."""

    def __init__(self, index: Any, terms: Terms) -> None:
        self._index, self._split = index, terms

    @classmethod
    def build(
        cls,
        texts: Iterable[str],
        progress: Callable[[int], None] | None = None,
        terms: Terms | None = None,
    ) -> Bm25:
        """Builds an index of texts; the first text is row 0.

        Args:
            texts: The texts; at least one must contain a term.
            progress: Called with the number of texts read since its last call.
            terms: How texts are split. Default: into all words.

        Raises:
            InputError: If bm25s, or PyStemmer for terms of a language, is not installed, or no text contains a term.
        """
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
        """Opens an index that ``save`` wrote, mapped into memory; ``terms`` as in ``build``.

        Raises ``InputError`` if it cannot be read or, with ``verify``, if a file differs from its stored hash.
        """
        load = library().BM25.load
        return cls(open_hashed(folder, verify, lambda path: load(path, mmap=True, show_progress=False)), terms)

    def save(self, folder: Path) -> None:
        """Writes the index to a folder, atomically."""
        with hashed_folder(folder) as fresh:
            self._index.save(fresh, show_progress=False)

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Returns the scores of all rows, ``(n,)`` float32; 0 for rows without any term of the query."""
        vocabulary = self._index.vocab_dict
        known = [vocabulary[term] for term in self._split([query])[0] if term in vocabulary]
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores

    @cached_property
    def weights(self) -> Any:
        """The scores of all rows by term, a sparse ``(terms, n)`` matrix in float64."""
        from scipy.sparse import csr_matrix

        names, rows = ("data", "indices", "indptr"), self._index.scores["num_docs"]
        data, indices, starts = (np.asarray(self._index.scores[name]) for name in names)
        return csr_matrix((data.astype(np.float64), indices, starts), shape=(len(starts) - 1, rows))

    @property
    def terms(self) -> list[str]:
        """The terms, in the order of the rows of ``weights``."""
        numbers = self._index.vocab_dict
        return sorted(numbers, key=numbers.__getitem__)[: self.weights.shape[0]]

    def all_scores(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns the scores of all rows for several queries, ``(len(texts), n)``; those of ``scores``, in float64."""
        from scipy.sparse import csr_matrix

        vocabulary, weights = self._index.vocab_dict, self.weights
        known = [[vocabulary[term] for term in split if term in vocabulary] for split in self._split(texts)]
        starts = np.cumsum([0, *map(len, known)])
        columns = [column for row in known for column in row]
        counts = csr_matrix((np.ones(len(columns)), columns, starts), shape=(len(texts), weights.shape[0]))
        scores: npt.NDArray[np.float64] = (counts @ weights).toarray()
        return scores

    def search(self, query: str, k: int) -> Rows:
        """Returns up to k rows with the largest positive scores, best first; ties are in row order."""
        scores = self.scores(query)
        rows = top(scores, k)
        return rows[scores[rows] > 0]

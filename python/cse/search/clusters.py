"""Groups rows with similar vectors, using scikit-learn (extra ``cse[search]``), and describes the groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError, check_integer, unknown
from ..tfidf.index import TfidfIndex
from .index import SearchIndex

METHODS = ("kmeans", "hdbscan")
# Number of rows whose TF-IDF vectors are in memory at a time.
BLOCK = 16384
# Limits of the default number of groups.
MIN_GROUPS, MAX_GROUPS = 2, 200

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cluster:
    """A group of rows."""

    rows: Rows
    """The numbers of the rows, in ascending order."""
    words: list[str]
    """The terms whose mean TF-IDF in this group most exceeds their mean TF-IDF in the rows of all groups."""
    examples: Rows
    """The rows nearest to the mean of the group, nearest first; all have different texts."""


def default_groups(rows: int) -> int:
    """Returns the default number of groups: sqrt(rows / 2), from MIN_GROUPS to MAX_GROUPS, but never above ``rows``."""
    return int(min(max(round((rows / 2) ** 0.5), MIN_GROUPS), MAX_GROUPS, max(rows, 1)))


def cluster(
    index: SearchIndex, method: str = "kmeans", *, groups: int | None = None, smallest: int = 10, seed: int = 0
) -> Rows:
    """Assigns a group to each vector of an index.

    Args:
        index: An index without passages, so that each row that is not blank has one vector.
        method: ``kmeans`` for scikit-learn's MiniBatchKMeans, whose time is linear in the number of rows, or
            ``hdbscan`` for scikit-learn's HDBSCAN, whose time is quadratic. HDBSCAN determines the number of groups,
            and may assign some rows to no group.
        groups: Number of groups for ``kmeans``; None: ``default_groups``.
        smallest: Minimum size of a group for ``hdbscan``.
        seed: Random seed for ``kmeans``.

    Returns:
        Group numbers from 0, ``(len(index.vectors),)`` int64; -1 for a row in no group.

    Raises:
        InputError: If ``method`` is unknown, ``groups`` is not from 1 to the number of vectors, or ``smallest`` is
            below 2 or exceeds that number.
    """
    from sklearn.cluster import HDBSCAN, MiniBatchKMeans

    if method not in METHODS:
        raise unknown("--method", str(method), METHODS)
    check_integer(smallest, "--min-size", 2)
    if groups is not None:
        check_integer(groups, "--groups")
    count = len(index.vectors)
    vectors = index.unit_vectors.block(0, count)
    if method == "hdbscan":
        if smallest > count:
            raise InputError(
                f"--min-size must be at most {count:,}, the number of rows that are not blank, got {smallest}"
            )
        return np.asarray(HDBSCAN(min_cluster_size=smallest, copy=True).fit_predict(vectors), dtype=np.int64)
    number = default_groups(count) if groups is None else groups
    if number > count:
        raise InputError(f"--groups must be at most {count:,}, the number of rows that are not blank, got {number}")
    seed %= 2**32  # scikit-learn takes no larger seed
    fitted = MiniBatchKMeans(n_clusters=number, random_state=seed, batch_size=4096, n_init=3).fit(vectors)
    return np.asarray(fitted.labels_, dtype=np.int64)


def describe(
    index: SearchIndex,
    labels: Rows,
    tfidf: TfidfIndex | None = None,
    *,
    words: int = 6,
    examples: int = 3,
    progress: Callable[[int], None] | None = None,
) -> list[Cluster]:
    """Returns the groups with their characteristic words and examples, largest group first.

    Args:
        index: An index without passages.
        labels: The group numbers that ``cluster`` returned.
        tfidf: A TF-IDF index; None: one is built from the texts.
        words: Number of words per group.
        examples: Number of examples per group.
        progress: Called with the number of rows read since its last call.
    """
    from scipy.sparse import csr_matrix

    if tfidf is None:
        tfidf = TfidfIndex.from_texts(index.texts(index.rows))
    names, numbers = np.unique(labels[labels >= 0], return_inverse=True)
    compact = np.full(len(labels), -1)
    compact[labels >= 0] = numbers
    sums = csr_matrix((len(names), len(tfidf)))  # of the TF-IDF vectors in each group
    for start in range(0, len(labels), BLOCK):
        part = np.arange(start, min(start + BLOCK, len(labels)))
        used = part[compact[part] >= 0]
        places = (compact[used], np.arange(len(used)))
        members = csr_matrix((np.ones(len(used)), places), shape=(len(names), len(used)))
        sums = sums + members @ tfidf.transform(index.texts(index.rows[used]))
        if progress:
            progress(len(part))
    sums, sizes = sums.tocsr(), np.bincount(numbers, minlength=len(names))
    overall = np.asarray(sums.sum(axis=0)).ravel() / max(len(numbers), 1)
    terms, groups = tfidf.terms, []
    for number in range(len(names)):
        inside, line = np.flatnonzero(compact == number), sums[[number]]
        above = line.data / sizes[number] - overall[line.indices]
        best = line.indices[np.lexsort((line.indices, -above))[:words]]
        vectors = index.unit_vectors.take(inside)
        order = inside[np.argsort(-(vectors @ vectors.mean(axis=0)), kind="stable")]
        nearest: dict[str, int] = {}
        for row in index.rows[order[: 20 * examples]].tolist():
            nearest.setdefault(index.texts([row])[0], row)
            if len(nearest) == examples:
                break
        shown = np.array(list(nearest.values()), dtype=np.int64)
        groups.append(Cluster(index.rows[inside], [terms[term] for term in best], shown))
    return sorted(groups, key=lambda group: (-len(group.rows), int(group.rows[0])))

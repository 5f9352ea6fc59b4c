"""Reference implementation of UNA in plain Python, against which the Rust core is tested.

It is written for readability, and is about 1000 times slower than the core. It implements only the tokenizer
``whitespace`` (``str.split``), a tokenizer of pieces that is given as a function, and the output form ``keep``, in
which the text between words is kept.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

Words = list[tuple[int, int, str]]


def tokenize(text: str) -> Words:
    """Returns the words of ``str.split``, lower-cased, as (start, end, term) with character offsets."""
    return [(match.start(), match.end(), match.group().lower()) for match in re.finditer(r"\S+", text)]


@dataclass
class ReferenceIndex:
    """The number of documents of a corpus, and the document frequency and maximum c/L of each term.

    c is the number of occurrences of the term in a document of L terms. Inverse document frequencies, maximum scores
    and ranks are derived from these values.
    """

    documents: int
    df: Counter[str]
    max_frequency: dict[str, float]
    split: Callable[[str], Words] = tokenize
    """Returns the terms of a text."""
    kind: Callable[[str], int] | None = None
    """Returns the class of a piece, from 0 to 2; None if the terms are words. A piece is replaced only by a piece of
    its class."""

    @classmethod
    def build(
        cls, rows: Iterable[str], split: Callable[[str], Words] = tokenize, kind: Callable[[str], int] | None = None
    ) -> ReferenceIndex:
        """Builds an index by counting the terms of each row; blank rows are not documents."""
        documents, df, max_frequency = 0, Counter[str](), dict[str, float]()
        for row in rows:
            if not row.strip():
                continue
            documents += 1
            terms = [term for _, _, term in split(row)]
            for term, count in Counter(terms).items():
                df[term] += 1
                max_frequency[term] = max(max_frequency.get(term, 0.0), count / len(terms))
        return cls(documents, df, max_frequency, split, kind)

    def __post_init__(self) -> None:
        self.terms = sorted(self.df, key=str.encode)
        self.idf = {term: math.log(self.documents / self.df[term]) for term in self.terms}
        self.max_score = {term: math.log1p(self.max_frequency[term]) * self.idf[term] for term in self.terms}
        self.by_rank: list[str] = sorted(
            self.terms, key=lambda term: (self.class_of(term), -self.max_score[term], term.encode())
        )
        self.rank = {term: rank for rank, term in enumerate(self.by_rank)}
        self.prefix = [0.0]
        for term in self.by_rank:
            self.prefix.append(self.prefix[-1] + self.max_score[term])

    def default_radius(self) -> int:
        """Returns min(4000, V/100), at least 1, where V is the number of terms."""
        return max(1, min(4000, len(self.terms) // 100))

    def class_of(self, term: str) -> int:
        """Returns the class of a term; all words have class 0."""
        return 0 if self.kind is None else self.kind(term)

    def ranks_of(self, kind: int) -> tuple[int, int]:
        """Returns the first rank of the terms of a class, and the rank after the last."""
        kinds = [self.class_of(term) for term in self.by_rank]
        return sum(each < kind for each in kinds), sum(each <= kind for each in kinds)

    def scores(self, terms: list[str]) -> list[float]:
        """Returns tf * idf of each term of a sentence; for a term that is not in the index, df is taken as 1."""
        counts, length = Counter(terms), len(terms)
        unseen = math.log(self.documents)
        return [math.log1p(counts[term] / length) * self.idf.get(term, unseen) for term in terms]

    def draw_anywhere(self, term: str, u: float) -> str | None:
        """Samples any other term with equal probability (``replace_with="random"``)."""
        others = [other for other in self.by_rank if other != term and self.class_of(other) == self.class_of(term)]
        return others[int(u * len(others))] if others else None

    def draw(self, term: str, score: float, radius: int, u: float) -> str | None:
        """Samples another term within ``radius`` ranks, with probability proportional to its maximum score."""
        seen = term in self.rank
        start, stop = self.ranks_of(self.class_of(term))
        rank = self.rank[term] if seen else start + sum(self.max_score[t] > score for t in self.by_rank[start:stop])
        low, after = max(start, rank - radius), rank + seen
        high = min(stop, after + radius)
        window: list[int] = [*range(low, rank), *range(after, high)]
        if not window:
            return None
        p = self.prefix
        left, right = p[rank] - p[low], p[high] - p[after]
        if left + right <= 0:
            return self.by_rank[window[int(u * len(window))]]
        at = u * (left + right)
        if (at < left or after >= high) and low < rank:
            first, last, target = low, rank, p[low] + at
        else:
            first, last, target = after, high, p[after] + max(at - left, 0.0)
        return self.by_rank[bisect_right(p, target, first + 1, last) - 1]

    def augment(
        self,
        text: str,
        *,
        seed: int,
        epoch: int,
        row: int,
        beta: float,
        radius: int,
        copy: int = 0,
        replace_which: str = "tfidf",
        replace_with: str = "radius",
        mode: str = "negative",
    ) -> str:
        """Returns a hard negative of a sentence or, with ``mode="positive"``, a positive (UDA)."""
        found = self.split(text)
        everything = self.scores([term for _, _, term in found])
        # A piece that shares a character with its neighbour is not replaced.
        free = [
            i
            for i, (start, end, _) in enumerate(found)
            if start < end and not any(other[0] < end and start < other[1] for other in found[:i] + found[i + 1 :])
        ]
        words, scores = [found[i] for i in free], [everything[i] for i in free]
        if not words:
            return text
        if replace_which == "random":
            p, force_one = [beta] * len(words), replace_with == "radius"
            if replace_with == "random" and len(found) < 3:
                return text
        else:
            p, force_one = probabilities(scores, beta, mode)
        draws = chacha8(seed, epoch, row, copy)
        forced = int(next(draws) * len(words)) if force_one else None
        out, copied = [], 0
        for i, (start, end, term) in enumerate(words):
            if next(draws) < p[i] or i == forced:
                u = next(draws)
                new = self.draw(term, scores[i], radius, u) if replace_with == "radius" else self.draw_anywhere(term, u)
                if new is not None:
                    written = in_case_of(text[start:end], new) if self.kind is None else new.removeprefix("##")
                    out += [text[copied:start], written]
                    copied = end
        return "".join([*out, text[copied:]])


def probabilities(scores: list[float], beta: float, mode: str = "negative") -> tuple[list[float], bool]:
    """Returns the replacement probability of each word, and whether one word, chosen at random, must be replaced.

    p_i = min(1, beta * L * w_i / sum_j w_j), where L is the number of words, s_i is the score of word i, and w_i is
    s_i - min s, or max s - s_i for positives (UDA). If no probability reaches 1, the largest is set to 1. If all scores
    are equal, all probabilities are beta, and the second value is True.
    """
    low, high = min(scores), max(scores)
    if low == high:
        return [beta] * len(scores), True
    weights = [s - low if mode == "negative" else high - s for s in scores]
    scale = beta * len(scores) / sum(weights)
    forced = scale * (high - low) < 1
    heaviest = high if mode == "negative" else low
    return [
        1.0 if forced and s == heaviest else min(1.0, scale * w) for s, w in zip(scores, weights, strict=True)
    ], False


def in_case_of(old: str, term: str) -> str:
    """Returns the term, capitalised or in upper case like the word ``old`` that it replaces.

    The term is returned unchanged if ``old`` is "I" (also as in "I'm") or in MixedCase, if the first alphanumeric
    character of the term is a digit ("8th"), or if it would become equal to ``old``.
    """
    cased = [c for c in old if c.isupper() or c.islower() or c.istitle()]
    if not cased or cased[0].islower() or old == "I" or old.startswith(("I'", "I\u2019")):
        return term
    first = next((i for i, c in enumerate(term) if c.isalnum()), None)
    if first is None or not term[first].isalpha():
        return term
    rest = cased[1:]
    if all(c.islower() for c in rest):
        new = term[:first] + term[first : first + 1].title() + term[first + 1 :]
    elif all(c.isupper() for c in rest):
        new = term.upper()
    else:
        return term
    return term if new == old else new


def chacha8(seed: int, epoch: int, row: int, copy: int) -> Iterator[float]:
    """Yields uniform random numbers in [0, 1) from ChaCha with 8 rounds and the key (seed, epoch, row, copy)."""
    for counter in itertools.count():
        block = chacha8_block(seed, epoch, row, copy, counter)
        for low, high in zip(block[0::2], block[1::2], strict=True):
            yield ((high << 32 | low) >> 11) * 2.0**-53


def chacha8_block(seed: int, epoch: int, row: int, copy: int, counter: int = 0) -> list[int]:
    """Returns the 16 words of a block of ChaCha with 8 rounds and the key (seed, epoch, row, copy)."""
    key = b"".join(part.to_bytes(8, "little") for part in (seed, epoch, row, copy))
    words = [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    constants = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    start = [*constants, *words, counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    state = list(start)
    for _ in range(4):
        for a, b, c, d in COLUMNS + DIAGONALS:
            quarter_round(state, a, b, c, d)
    return [(x + y) & 0xFFFFFFFF for x, y in zip(state, start, strict=True)]


COLUMNS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
DIAGONALS = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def quarter_round(x: list[int], a: int, b: int, c: int, d: int) -> None:
    """Applies the ChaCha quarter round in place."""
    for i, j, k, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[i] = (x[i] + x[j]) & 0xFFFFFFFF
        mixed = x[k] ^ x[i]
        x[k] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF

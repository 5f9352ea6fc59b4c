"""The speed of UNA in the core, in a plain Python loop and in nlpaug, in one process; used by ``cse bench augment``."""

from __future__ import annotations

import math
import os
import re
import statistics
import tempfile
import timeit
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

from .._core import is_blank
from ..data import readers
from ..data.corpus import Corpus
from .index import TfidfIndex

BETA = 0.5
PLAIN_ROWS, NLPAUG_ROWS, CHECKED_ROWS = 2_000, 200, 200


class PlainLoop:
    """UNA in plain Python, for rows of the corpus of an index of ``whitespace`` words, with other random numbers."""

    def __init__(self, index: TfidfIndex) -> None:
        self.by_rank: list[str] = [index.terms[term] for term in index.by_rank.tolist()]
        self.rank = {term: rank for rank, term in enumerate(self.by_rank)}
        self.idf = dict(zip(index.terms, index.idf.tolist(), strict=True))
        self.sums = [0.0, *accumulate(index.max_score[index.by_rank].tolist())]
        self.radius, self.random = index.default_radius, Random(0)

    def probabilities(self, terms: Sequence[str]) -> list[float]:
        counts = Counter(terms)
        scores = [math.log1p(counts[term] / len(terms)) * self.idf[term] for term in terms]
        low, high = min(scores), max(scores)
        if low == high:
            return [BETA] * len(terms)
        scale = BETA * len(terms) / sum(score - low for score in scores)
        sure = high if scale * (high - low) < 1 else math.inf  # at least one probability is 1
        return [1.0 if score == sure else min(1.0, scale * (score - low)) for score in scores]

    def draw(self, term: str) -> str:
        rank = self.rank[term]
        low, high = max(0, rank - self.radius), min(len(self.by_rank), rank + 1 + self.radius)
        own = self.sums[rank + 1] - self.sums[rank]
        total = self.sums[high] - self.sums[low] - own
        if total <= 0:
            return self.by_rank[self.random.choice([other for other in range(low, high) if other != rank] or [rank])]
        at = self.sums[low] + self.random.random() * total
        return self.by_rank[bisect_right(self.sums, at + own * (at >= self.sums[rank]), low + 1, high) - 1]

    def augment(self, text: str) -> str:
        chances = self.probabilities(text.lower().split()) if text.split() else []
        forced = self.random.randrange(len(chances)) if len(set(chances)) == 1 else -1
        places = iter(enumerate(chances))

        def replaced(word: re.Match[str]) -> str:
            place, chance = next(places)
            if place != forced and self.random.random() >= chance:
                return word[0]
            new = self.draw(word[0].lower())
            return new.capitalize() if word[0].istitle() else new

        return re.sub(r"\S+", replaced, text)


def check(index: TfidfIndex, loop: PlainLoop, rows: Sequence[str], samples: int = 10) -> None:
    """Asserts that the loop replaces words as the core does on these rows: probabilities are equal to 1e-9, and numbers
    and ranks of replacements differ by less than six standard errors.
    """
    signed, absolute = [0.0], [0.0]
    excess, variance = 0.0, 1.0
    for number, row in enumerate(rows):
        words = index.explain(row, samples=0, beta=BETA)
        chances = loop.probabilities([word.word.lower() for word in words])
        assert all(abs(word.p - chance) < 1e-9 for word, chance in zip(words, chances, strict=True)), row
        for copy in range(samples):
            for ours in index.replacements(row, row=number, copy=copy, beta=BETA)[1]:
                theirs = loop.rank[loop.draw(ours.old.lower())] + 1
                signed.append(ours.new_rank - theirs)
                absolute.append(abs(ours.new_rank - ours.rank) - abs(theirs - ours.rank))
        if min(chances) < max(chances):
            excess += sum(map(str.__ne__, row.split(), loop.augment(row).split())) - sum(chances)
            variance += sum(chance * (1 - chance) for chance in chances)
    assert excess**2 <= 36 * variance, f"the loop replaced {excess:.0f} words more than expected"
    for apart in (signed, absolute):
        error = statistics.pstdev(apart) / math.sqrt(len(apart))
        assert abs(statistics.fmean(apart)) <= 6 * error, "the replacements of the loop follow another law"


def nlpaug_augment(rows: Sequence[str], folder: str) -> Callable[[str], object] | None:
    try:
        import nlpaug.augmenter.word as naw
        from nlpaug.model.word_stats import TfIdf
    except ImportError:
        return None
    model = TfIdf()
    model.train([row.split() for row in rows])
    model.save(folder)
    augment: Callable[[str], object] = naw.TfIdfAug(model_path=folder, tokenizer=str.split).augment
    return augment


def per_minute(run: Callable[[], object], rows: int, repeat: int) -> dict[str, Any]:
    rates = [60 * rows / seconds for seconds in timeit.repeat(run, number=1, repeat=repeat)]
    return {"per_minute": statistics.median(rates), "lowest": min(rates), "highest": max(rates), "rows": rows}


def measure(corpus: readers.Paths, column: str | None, repeat: int, threads: int) -> dict[str, dict[str, Any]]:
    """Returns the rates of ``per_minute`` by program, after ``check``; the core writes the negatives to a file."""
    reading, files = readers.reading_options(threads=threads), readers.resolve(corpus, column)
    index = TfidfIndex.build(corpus, column=column, tokenizer="whitespace", threads=threads)
    first = range(min(index.info.rows, PLAIN_ROWS))
    rows = [row for row in Corpus.read(files, **reading).take(first) if not is_blank(row)]
    loop = PlainLoop(index)
    check(index, loop, rows[:CHECKED_ROWS])
    made = (1, False, index.draw_options(beta=BETA), index.reading(reading))
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "negatives.txt")
        rates = {
            "cse": per_minute(lambda: index._core.augment_files(files, output, *made), index.info.rows, repeat),
            "plain Python": per_minute(lambda: [*map(loop.augment, rows)], len(rows), repeat),
        }
        if augment := nlpaug_augment(rows, folder):
            few = rows[:NLPAUG_ROWS]
            rates["nlpaug"] = per_minute(lambda: [*map(augment, few)], len(few), 1)
    return {name: {**rate, "ratio": rates["cse"]["per_minute"] / rate["per_minute"]} for name, rate in rates.items()}

"""Plots of the terms with which UNA may replace a word: terms with a similar maximum TF-IDF score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..tfidf.index import TfidfIndex
from .runs import StoredRun
from .style import BLUE, INK, ORANGE, VERMILLION, Panel, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["rank_panels", "replaced_word"]

# Maximum number of points of a line.
POINTS = 800
# Maximum number of labelled terms in the window, not counting the word.
LABELS = 7
# Fraction of the height of the axes that is kept free for a label.
WORD = 0.48


def replaced_word(run: StoredRun) -> str | None:
    """Returns the first word that UNA replaced in the stored examples of a run; None if there is none."""
    for example in (run.texts or {}).get("examples", []):
        for start, end in example["spans"]:
            word: str = example["text"][start:end]
            return word
    return None


def rank_panels(index: TfidfIndex, word: str, radius: int | str | None = None) -> list[Panel]:
    """Returns two plots of maximum score against rank: one of all terms, one of the terms in the window of a word.

    Section 3.2 of the UNA paper explains the ranks.

    Args:
        index: The index.
        word: A word of the index.
        radius: Largest difference in rank between the word and a term in the window, as a number or as a percentage of
            all terms, like ``"1%"``. None: the default of the index.

    Raises:
        InputError: If the index does not have the word, or has fewer than two terms.
    """
    explained = index.explain(word, samples=0)
    if len(explained) != 1 or not explained[0].seen:
        raise InputError(f"--word {word!r}: not a word of the index; choose one that occurs in the corpus")
    if len(index) < 2:
        raise InputError(
            "--tfidf: the index has only one term, which no other term can replace; build it from more sentences"
        )
    reach, rank, terms = index.ranks(radius), explained[0].rank, len(index)
    shown_word = index.terms[index.by_rank[rank - 1]]
    scores = np.asarray(index.max_score)[index.by_rank]
    low, high = max(1, rank - reach), min(terms, rank + reach)

    def whole(axes: Axes) -> None:
        shown = np.unique(np.linspace(1, terms, min(terms, POINTS)).astype(np.int64))
        axes.plot(shown, scores[shown - 1], color=BLUE, label="all terms")
        axes.axvspan(low, high, color=ORANGE, alpha=0.35, lw=0, label=f"ranks {low:,} to {high:,}")
        axes.plot(rank, scores[rank - 1], "o", ms=7, color=VERMILLION, label=shown_word)
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.02 * terms, 1.02 * terms)
        axes.set_xlabel("rank by maximum score")
        axes.set_ylabel("maximum TF-IDF score")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=5)
        legend(axes)

    def window(axes: Axes) -> None:
        ranks = np.arange(low, high + 1)
        ranks = ranks[np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), POINTS)).astype(np.int64))]
        values = scores[ranks - 1]
        axes.plot(ranks, values, color=BLUE)
        marked = np.unique(np.append(np.linspace(low, high, LABELS + 2)[1:-1].astype(np.int64), rank))
        apart = (high - low) / (LABELS + 2) * 0.7
        marked = np.array([each for each in marked if each == rank or abs(each - rank) > apart])
        # Labels extend upwards from their points, so the fraction WORD of the height is free above the highest point.
        bottom, top = values.min(), values.max()
        height = max(1.05 * (top - bottom), (scores[marked - 1].max() - bottom) / (1 - WORD), 1e-3 * top, 1e-9)
        axes.set_ylim(bottom - 0.08 * height, bottom + height)
        for each in marked:
            own = each == rank
            term = index.terms[index.by_rank[each - 1]]
            axes.plot(each, scores[each - 1], "o", ms=6 if own else 4, color=VERMILLION if own else BLUE)
            axes.annotate(
                term if len(term) <= 14 else f"{term[:13]}\u2026",
                (each, scores[each - 1]),
                xytext=(0, 6),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                color=INK,
                fontsize=8.5,
                fontweight="bold" if own else "normal",
            )
        axes.set_xlabel("rank by maximum score")
        axes.set_ylabel("maximum TF-IDF score")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=5)

    return [
        Panel(
            "ranks",
            "Ranks of all terms",
            f"The {terms:,} terms of the index, ranked by maximum TF-IDF score, highest first. UNA replaces "
            f"\u201c{shown_word}\u201d (rank {rank:,}) with a term at most {reach:,} ranks above or below it.",
            whole,
        ),
        Panel(
            "ranks-window",
            f"Window of \u201c{shown_word}\u201d",
            "A magnified view of the band, with some of its terms labelled. UNA chooses a term with a probability "
            "proportional to its maximum score, and never the word itself.",
            window,
        ),
    ]

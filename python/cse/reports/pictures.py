"""The kinds of plots that ``cse plot`` writes and that the report page of a run contains.

Also: plots of the terms with which UNA may replace a word, which are those with a similar maximum TF-IDF score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..tfidf.index import TfidfIndex
from .curves import alignment_panels, cosine_panels, focal_panels, score_panels, training_panels
from .held_out import Compared, compare_models
from .runs import StoredRun
from .similarity import SentenceMap, map_panels, pair_panels, sentence_map
from .style import BLUE, INK, ORANGE, VERMILLION, Panel, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

    Section 3.2 of the UNA paper explains the ranks. ``radius`` is that of ``TfidfIndex.ranks``. Raises ``InputError``
    if the index does not have the word, or has fewer than two terms.
    """
    explained = index.explain(word, samples=0)
    if len(explained) != 1 or not explained[0].seen:
        raise InputError(f"--word {word!r}: not a word of the index; choose one that occurs in the corpus")
    if len(index) < 2:
        raise InputError(
            "--tfidf: the index has only one term, which no other term can replace; build it from more sentences"
        )
    reach, rank, terms = index.ranks(radius), explained[0].rank, len(index)
    scores = np.asarray(index.max_score)[index.by_rank]
    window = _Window(index, scores, rank, max(1, rank - reach), min(terms, rank + reach))
    return [
        Panel(
            "ranks",
            "Ranks of all terms",
            f"The {terms:,} terms of the index, ranked by maximum TF-IDF score, highest first. UNA replaces "
            f"\u201c{window.term(rank)}\u201d (rank {rank:,}) with a term at most {reach:,} ranks above or below it.",
            window.draw_all_terms,
        ),
        Panel(
            "ranks-window",
            f"Window of \u201c{window.term(rank)}\u201d",
            "A magnified view of the band, with some of its terms labelled. UNA chooses a term with a probability "
            "proportional to its maximum score, and never the word itself.",
            window.draw,
        ),
    ]


@dataclass(frozen=True)
class _Window:
    """The ranks of the terms that may replace a word. Ranks start at 1."""

    index: TfidfIndex
    scores: npt.NDArray[Any]
    """The maximum scores of all terms, in the order of their ranks."""
    rank: int
    """The rank of the word."""
    low: int
    high: int
    """The first and the last rank of the window."""

    def term(self, rank: int) -> str:
        return str(self.index.terms[self.index.by_rank[rank - 1]])

    def draw_all_terms(self, axes: Axes) -> None:
        terms = len(self.scores)
        shown = np.unique(np.linspace(1, terms, min(terms, POINTS)).astype(np.int64))
        axes.plot(shown, self.scores[shown - 1], color=BLUE, label="all terms")
        axes.axvspan(self.low, self.high, color=ORANGE, alpha=0.35, lw=0, label=f"ranks {self.low:,} to {self.high:,}")
        axes.plot(self.rank, self.scores[self.rank - 1], "o", ms=7, color=VERMILLION, label=self.term(self.rank))
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.02 * terms, 1.02 * terms)
        _label(axes)
        legend(axes)

    def draw(self, axes: Axes) -> None:
        ranks = np.arange(self.low, self.high + 1)
        ranks = ranks[np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), POINTS)).astype(np.int64))]
        values = self.scores[ranks - 1]
        axes.plot(ranks, values, color=BLUE)
        marked = self.labelled()
        # Labels extend upwards from their points, so the fraction WORD of the height is free above the highest point.
        bottom, top = values.min(), values.max()
        height = max(1.05 * (top - bottom), (self.scores[marked - 1].max() - bottom) / (1 - WORD), 1e-3 * top, 1e-9)
        axes.set_ylim(bottom - 0.08 * height, bottom + height)
        for rank in marked:
            own = rank == self.rank
            term = self.term(rank)
            axes.plot(rank, self.scores[rank - 1], "o", ms=6 if own else 4, color=VERMILLION if own else BLUE)
            axes.annotate(
                term if len(term) <= 14 else f"{term[:13]}\u2026",
                (rank, self.scores[rank - 1]),
                xytext=(0, 6),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                color=INK,
                fontsize=8.5,
                fontweight="bold" if own else "normal",
            )
        _label(axes)

    def labelled(self) -> npt.NDArray[np.int64]:
        """Returns the rank of the word and up to LABELS other ranks of the window, evenly spaced."""
        spaced = np.linspace(self.low, self.high, LABELS + 2)[1:-1].astype(np.int64)
        apart = (self.high - self.low) / (LABELS + 2) * 0.7
        ranks = np.unique(np.append(spaced, self.rank))
        return np.array([rank for rank in ranks if rank == self.rank or abs(rank - self.rank) > apart])


def _label(axes: Axes) -> None:
    axes.set_xlabel("rank by maximum score")
    axes.set_ylabel("maximum TF-IDF score")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)


@dataclass
class Material:
    """The data that the plots of a run are drawn from, read or computed when first needed."""

    run: StoredRun
    word: str | None = None
    """The word whose possible replacements by UNA are shown. Default: the first that UNA replaced in the examples."""
    device: str = "auto"
    method: str = "tsne"
    """Of ``sentence_map``."""
    progress: Callable[[int, int], None] | None = None
    """Of ``compare_models``."""
    encode: bool = True
    """If False, plots that need encoded texts raise ``InputError``."""

    @property
    def compared(self) -> Compared:
        """The held-out texts encoded by the models before and after training.

        If encoding fails, each access raises the same ``InputError``.
        """
        if isinstance(self._compared, InputError):
            raise self._compared
        return self._compared

    @cached_property
    def _compared(self) -> Compared | InputError:
        if not self.encode:
            return InputError("--no-encode: the held-out texts must be encoded by both models; leave the flag out")
        try:
            return compare_models(self.run, device=self.device, progress=self.progress)
        except InputError as error:
            return error

    @cached_property
    def map(self) -> SentenceMap:
        """The held-out sentences projected to two dimensions."""
        return sentence_map(self.compared, self.method)

    def ranks(self) -> list[Panel]:
        """Returns the result of ``rank_panels`` for the word; raises ``InputError`` if there is no index or no word."""
        config = self.run.config
        folder = config.get("tfidf", "tfidf")
        if "una" not in config.get("negatives", ()) and self.word is None:
            raise InputError(f"{self.run.folder}: trained without --una; name a word of the index with --word")
        index = TfidfIndex.open(folder, min_df=config.get("min_df", 0), max_terms=config.get("max_terms"))
        word = self.word or replaced_word(self.run)
        if word is None:
            raise InputError(f"{self.run.folder}: no example of a replaced word was stored; name a word with --word")
        return rank_panels(index, word, config.get("una", {}).get("radius"))


# OF_RUNS: plots that show all runs together. OF_EACH: plots that show one run each.
OF_RUNS: dict[str, Callable[[Sequence[StoredRun]], list[Panel]]] = {
    "training": lambda runs: [*training_panels(runs), *(score_panels(runs) if any(r.metric for r in runs) else [])],
    "alignment": alignment_panels,
    "focal": focal_panels,
}
OF_EACH: dict[str, Callable[[Material], list[Panel]]] = {
    "cosines": lambda material: cosine_panels(material.run),
    "pairs": lambda material: pair_panels(material.compared),
    "ranks": Material.ranks,
    "map": lambda material: map_panels(material.map),
}
KINDS = ("training", "cosines", "alignment", "focal", "pairs", "ranks", "map")
"""Names of the kinds of plots."""


def pictures(kind: str, materials: Sequence[Material]) -> list[Panel]:
    """Returns the panels of a plot of some runs, or of one run if the kind is in ``OF_EACH``.

    Raises ``InputError`` if a run lacks the data that the plot shows.
    """
    return OF_RUNS[kind]([material.run for material in materials]) if kind in OF_RUNS else OF_EACH[kind](*materials)

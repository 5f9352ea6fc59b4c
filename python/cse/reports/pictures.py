"""The kinds of plots that ``cse report`` shows and writes to files, and the ranks of the terms of a TF-IDF index."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..tfidf.index import TfidfIndex
from .curves import alignment_panels, cosine_panels, focal_panels, score_panels, training_panels
from .held_out import Compared, compare_models
from .runs import StoredRun
from .similarity import pair_panels
from .style import BLUE, ORANGE, VERMILLION, Panel, legend, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Maximum number of points of a line.
POINTS = 800


def replaced_word(run: StoredRun) -> str | None:
    """Returns the first word that UNA replaced in the stored examples of a run; None if there is none."""
    for example in (run.texts or {}).get("examples", []):
        for start, end in example["spans"]:
            word: str = example["text"][start:end]
            return word
    return None


def rank_panels(index: TfidfIndex, word: str, radius: int | str | None = None) -> list[Panel]:
    """Returns a plot of the maximum scores of all terms against rank, with the terms that may replace a word.

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
    low, high = max(1, rank - reach), min(terms, rank + reach)
    term = str(index.terms[index.by_rank[rank - 1]])

    def draw(axes: Axes) -> None:
        shown = np.unique(np.linspace(1, terms, min(terms, POINTS)).astype(np.int64))
        axes.plot(shown, scores[shown - 1], color=BLUE, label="all terms")
        axes.axvspan(low, high, color=ORANGE, alpha=0.35, lw=0, label=f"ranks {low:,} to {high:,}")
        axes.plot(rank, scores[rank - 1], "o", ms=7, color=VERMILLION, label=term)
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.02 * terms, 1.02 * terms)
        axes.set_xlabel("rank by maximum score")
        axes.set_ylabel("maximum TF-IDF score")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=5)
        legend(axes)

    caption = (
        f"The {terms:,} terms of the index, ranked by maximum TF-IDF score, highest first. UNA replaces "
        f"\u201c{term}\u201d (rank {rank:,}) with a term at most {reach:,} ranks above or below it, with a probability "
        "proportional to its maximum score."
    )
    return [Panel("ranks", "Ranks of all terms", caption, draw)]


@dataclass
class Material:
    """The data that the plots of a run are drawn from, read or computed when first needed."""

    run: StoredRun
    word: str | None = None
    """The word whose possible replacements by UNA are shown. Default: the first that UNA replaced in the examples."""
    device: str = "auto"
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
            return InputError("--no-encode: the held-out texts must be encoded by both models; omit the flag")
        try:
            return compare_models(self.run, device=self.device, progress=self.progress)
        except InputError as error:
            return error

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


KINDS: dict[str, Callable[[Material], list[Panel]]] = {
    "training": lambda material: [*training_panels(material.run), *score_panels(material.run)],
    "cosines": lambda material: cosine_panels(material.run),
    "alignment": lambda material: alignment_panels(material.run),
    "focal": lambda material: focal_panels(material.run),
    "pairs": lambda material: pair_panels(material.compared),
    "ranks": Material.ranks,
}
"""The kinds of plots. Each raises ``InputError`` if the run lacks the data that the plot shows."""


def kinds_of(material: Material) -> list[str]:
    """Returns the kinds of plots that apply to a run: all but those of methods that it did not use."""
    config, left_out = material.run.config, set()
    if config.get("loss") != "focal":
        left_out.add("focal")
    if material.word is None and "una" not in config.get("negatives", ()):
        left_out.add("ranks")
    return [kind for kind in KINDS if kind not in left_out]


def write_pictures(material: Material, folder: Path) -> list[str]:
    """Writes the plots that can be drawn to ``folder``, as files named after their kinds; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in kinds_of(material):
        with suppress(InputError):  # the page says which ones are left out, and why
            panels = KINDS[kind](material)
            write(panels, folder / f"{kind}.png")
            written.append(str(folder / f"{kind}.png"))
    return written

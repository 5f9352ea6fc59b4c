"""The kinds of plots that ``cse plot`` writes and that the report page of a run contains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import InputError, unknown
from ..tfidf.index import TfidfIndex
from .curves import alignment_panels, cosine_panels, focal_panels, score_panels, training_panels
from .held_out import Compared, compare_models
from .ranks import rank_panels, replaced_word
from .runs import StoredRun
from .similarity import SentenceMap, map_panels, pair_panels, sentence_map
from .style import Panel


class Material:
    """The data that the plots of a run are drawn from, read or computed when first needed.

    Args:
        run: The run.
        word: The word whose possible replacements by UNA are shown. Default: the first word that UNA replaced in the
            stored examples.
        device: A PyTorch device for encoding held-out texts.
        method: Method that projects sentences to two dimensions for the map, ``tsne`` or ``pca``.
        progress: See ``held_out.compare_models``.
        encode: If False, plots that need encoded texts raise ``InputError``.
    """

    def __init__(
        self,
        run: StoredRun,
        *,
        word: str | None = None,
        device: str = "auto",
        method: str = "tsne",
        progress: Callable[[int, int], None] | None = None,
        encode: bool = True,
    ) -> None:
        self.run, self.word, self.device, self.method = run, word, device, method
        self.progress, self.encode = progress, encode
        self._refused: InputError | None = None

    @property
    def compared(self) -> Compared:
        """The held-out texts encoded by the models before and after training.

        If encoding fails, each access raises the same ``InputError``.
        """
        if self._refused is not None:
            raise self._refused
        try:
            return self._compared
        except InputError as error:
            self._refused = error
            raise

    @cached_property
    def _compared(self) -> Compared:
        if not self.encode:
            raise InputError("--no-encode: the held-out texts must be encoded by both models; leave the flag out")
        return compare_models(self.run, device=self.device, progress=self.progress)

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


@dataclass(frozen=True)
class Picture:
    """The panels of a plot; ``run`` is set for kinds with one plot per run (``OF_EACH``)."""

    kind: str
    panels: list[Panel]
    run: StoredRun | None = None


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


def pictures(kind: str, materials: Sequence[Material]) -> list[Picture]:
    """Returns the plots of a kind: one for all runs together, or one for each run.

    Raises:
        InputError: If the kind is unknown, or a run lacks the data that the plot shows.
    """
    if kind not in KINDS:
        raise unknown("--kind", kind, KINDS)
    if kind in OF_RUNS:
        return [Picture(kind, OF_RUNS[kind]([material.run for material in materials]))]
    return [Picture(kind, OF_EACH[kind](material), material.run) for material in materials]

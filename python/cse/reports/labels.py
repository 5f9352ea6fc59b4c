"""The plots of what is promised about predicted labels: confusion, reliability, and accuracy by the share of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..classifier.promise import Promise
from ..classifier.stored import has_classifier, load
from ..errors import shortened
from .runs import StoredRun
from .style import GRID, INK, Panel, labelled, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 12
"""Most labels of which the confusion is drawn: those of the most rows."""


def promise_of(run: StoredRun) -> Promise | None:
    """Returns what the classifier of a run promises; None if it has none, or no confidence is known."""
    best = run.folder / "best"
    return load(best).promise if has_classifier(best) else None


def label_panels(promise: Promise) -> list[Panel]:
    """Returns panels of the predictions of labelled texts that neither encoder nor classifier knew."""
    table, (rows, _) = promise.confusion(), promise.counts()
    kept = np.argsort(-rows, kind="stable")[:MOST]
    names = [shortened(str(promise.classes[place]), 16) for place in kept]
    shown = table[kept][:, kept]

    def confusion(axes: Axes) -> None:
        shares = shown / np.maximum(shown.sum(1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (line, column), count in np.ndenumerate(shown):
            colour = "white" if shares[line, column] > 0.6 else INK
            axes.text(column, line, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.grid(False)
        labelled(axes, "predicted", "given")

    def reliability(axes: Axes) -> None:
        bins = promise.reliability()
        x, y, size = (np.array([each[name] for each in bins]) for name in ("confidence", "accuracy", "rows"))
        axes.plot([0, 100], [0, 100], color=GRID, lw=1)
        axes.scatter(x, y, s=10 + 150 * size / size.max(), color=line_style(0)["color"], alpha=0.8)
        axes.set_xlim(0, 102)
        axes.set_ylim(-2, 102)
        labelled(axes, "mean confidence (%)", "accuracy (%)")

    def coverage(axes: Axes) -> None:
        share, accuracy = promise.curve()
        axes.plot(100 * share, 100 * accuracy, **line_style(0))
        axes.axhline(promise.accuracy.value, color=GRID, lw=1)
        axes.set_xlim(0, 102)
        labelled(axes, "rows with the highest confidence (%)", "accuracy (%)")

    of = f"{len(promise.truth):,} labelled texts ({promise.how})"
    more = f" The {MOST} labels of the most texts are shown." if len(promise.classes) > MOST else ""
    return [
        Panel("Given and predicted labels", f"Numbers of {of}.{more}", confusion),
        Panel(
            "Confidence and accuracy",
            "Each point is a tenth of the range of confidence, and its size the number of texts; on the line, "
            "confidence is accuracy.",
            reliability,
        ),
        Panel(
            "Accuracy as the threshold moves",
            "Accuracy of the labels that are left if only the most certain rows get one (--min-confidence); the grey "
            "line is that of all.",
            coverage,
        ),
    ]

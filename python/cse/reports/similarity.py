"""Histograms of the cosines of held-out pairs before and after training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .held_out import Compared
from .style import Panel, legend, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 50


def pair_panels(compared: Compared) -> list[Panel]:
    """Returns histograms of the cosines of held-out pairs before and after training, with the same axis limits."""
    groups = compared.cosines()
    everything = np.concatenate([side for sides in groups.values() for side in sides])
    low, high = everything.min(), everything.max()
    pad = max(0.02 * (high - low), 1e-4)
    bins: list[float] = np.linspace(low - pad, high + pad, BINS + 1).tolist()
    most = max(np.histogram(side, bins, density=True)[0].max() for sides in groups.values() for side in sides)

    def draw(place: int, axes: Axes) -> None:
        for number, (name, sides) in enumerate(groups.items()):
            style = line_style(number)
            axes.hist(sides[place], bins, density=True, color=style["color"], alpha=0.22)
            axes.hist(sides[place], bins, density=True, histtype="step", lw=1.6, **style, label=name)
        axes.set_xlim(bins[0], bins[-1])
        axes.set_ylim(0, most * 1.05)
        axes.set_xlabel("cosine")
        axes.set_ylabel("density")
        legend(axes)

    what = "pairs of the development set" if compared.held_out.sets else "held-out texts"
    means = "; ".join(f"{name} {before.mean():.2f} and {after.mean():.2f}" for name, (before, after) in groups.items())
    caption = f"Cosines of {what}. The less the groups overlap, the better the model tells them apart."
    return [
        Panel("pairs-before", "Cosines before training", caption, partial(draw, 0)),
        Panel(
            "pairs-after",
            "Cosines after training",
            f"The same pairs, with the embeddings of best/. Means before and after: {means}.",
            partial(draw, 1),
        ),
    ]

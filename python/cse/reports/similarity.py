"""Histograms of the cosines of held-out pairs before and after training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..evaluation.geometry import effective_rank, unit
from .held_out import Compared
from .style import Panel, legend, line_style, log_axis

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
        spectrum_panel(compared),
    ]


def spectrum_panel(compared: Compared) -> Panel:
    """Returns a plot of the singular values of the held-out texts' embeddings before and after training."""
    texts = list(compared.before)
    values = [np.linalg.svd(unit(side), compute_uv=False) for side in compared.sides(texts)]
    ranks = [effective_rank(side) for side in compared.sides(texts)]

    def draw(axes: Axes) -> None:
        for number, (name, each) in enumerate(zip(("before training", "after training"), values, strict=True)):
            axes.plot(np.arange(1, len(each) + 1), each / each[0], label=name, **line_style(number))
        log_axis(axes, lowest=1e-4)
        axes.set_xlabel("number of the singular value")
        axes.set_ylabel("relative singular value")
        legend(axes)

    caption = (
        f"Singular values of the embeddings of {len(texts):,} held-out texts, at length 1, from the largest to the "
        f"smallest. The flatter the curve, the more directions are used; the effective rank is {ranks[0]:.1f} before "
        f"and {ranks[1]:.1f} after training."
    )
    return Panel("singular-values", "Singular values", caption, draw)

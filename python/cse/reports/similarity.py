"""Plots of the embeddings of held-out texts: histograms of cosines, and maps in two dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..evaluation.geometry import effective_rank, unit
from .held_out import SHOWN, Compared
from .style import COLOURS, GRID, INK, PAPER, Panel, legend, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = npt.NDArray[np.float64]
BINS = 50
# Maximum number of groups on a map.
GROUPS = 7
# Minimum number of sentences for t-SNE.
FEW = 3 * GROUPS
MARKERS = "osD^vpX"


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
        axes.set_yscale("log")
        axes.set_ylim(bottom=1e-4)
        axes.set_xlabel("number of the singular value")
        axes.set_ylabel("singular value, relative to the largest")
        legend(axes)

    caption = (
        f"Singular values of the embeddings of {len(texts):,} held-out texts, at length 1, in descending order. The "
        f"flatter the curve, the more directions are used; the effective rank is {ranks[0]:.1f} before and "
        f"{ranks[1]:.1f} after training."
    )
    return Panel("singular-values", "Singular values", caption, draw)


@dataclass(frozen=True)
class Group:
    number: int
    """Number of the group on the map, from 1."""
    size: int
    examples: list[str]
    """The sentences nearest to the centre of the group."""


@dataclass(frozen=True)
class SentenceMap:
    """Positions of sentences in two dimensions before and after training, and groups of similar sentences."""

    sentences: list[str]
    before: Points
    """``(n, 2)`` positions; ``after`` has the same shape."""
    after: Points
    group: npt.NDArray[np.int64]
    """``(n,)`` group of each sentence, as an index into ``groups``."""
    groups: list[Group]
    method: str
    """A description of how the positions were computed."""


def sentence_map(compared: Compared, method: str = "tsne", examples: int = 2) -> SentenceMap:
    """Projects the held-out sentences (only the first ``SHOWN``, if there are more) to two dimensions.

    Groups are found by k-means in the embeddings after training. With t-SNE, the positions after training are
    initialised with the positions before training, so that the two maps are similar if the embeddings are.

    The method is ``tsne`` (van der Maaten and Hinton 2008), or ``pca``, the first two principal components. With fewer
    than 21 sentences, or if all embeddings before training are equal, ``pca`` is always used.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    sentences = compared.held_out.sentences[:SHOWN]
    before, after = (unit(side) for side in compared.sides(sentences))
    with np.errstate(invalid="ignore"):  # PCA divides by the variance, which is 0 if all embeddings are equal
        maps = tuple(PCA(2, svd_solver="full").fit_transform(side) for side in (before, after))
    how = "the first two principal components"
    spread = maps[0][:, 0].std()
    if method == "tsne" and len(sentences) >= FEW and spread > 1e-9:  # t-SNE needs distinct initial positions
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(sentences) - 1) / 3)
        start = (maps[0] / spread * 1e-4).astype(np.float32)
        places = TSNE(init=start, perplexity=perplexity, random_state=0).fit_transform(before)
        # Early exaggeration is off, since it would first pull the points together, away from their initial positions.
        moved = TSNE(init=places, early_exaggeration=1.0, perplexity=perplexity, random_state=0).fit_transform(after)
        maps, how = (places, moved), f"t-SNE, perplexity {perplexity:.0f} (large distances mean little)"
    count = min(GROUPS, max(1, len(sentences) // 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # KMeans warns if it has fewer distinct points than groups
        model = KMeans(count, random_state=0, n_init=4).fit(after)
    distance = model.transform(after)
    sizes = np.bincount(model.labels_, minlength=count)
    order = np.argsort(-sizes, kind="stable")  # the largest group is number 1
    group = np.argsort(order)[model.labels_]
    order = order[: np.count_nonzero(sizes)]
    groups = []
    for place, cluster in enumerate(order.tolist()):
        nearest = [row for row in np.argsort(distance[:, cluster], kind="stable") if group[row] == place]
        size = int((group == place).sum())
        groups.append(Group(place + 1, size, [sentences[row] for row in nearest[:examples]]))
    first, second = (np.asarray(points, dtype=np.float64) for points in maps)
    return SentenceMap(sentences, first, second, group, groups, how)


def map_panels(chart: SentenceMap) -> list[Panel]:
    titles = {
        f"group-{place}": [text for text, part in zip(chart.sentences, chart.group, strict=True) if part == place]
        for place in range(len(chart.groups))
    }
    caption = (
        f"{len(chart.sentences):,} held-out sentences, projected by {chart.method}. Numbers and shapes show groups "
        "found by k-means in the embeddings after training."
    )
    return [
        Panel("map-before", "Map before training", caption, partial(_scatter, chart, chart.before), titles),
        Panel(
            "map-after",
            "Map after training",
            "The same sentences and groups, with the embeddings of best/.",
            partial(_scatter, chart, chart.after),
            titles,
        ),
    ]


def _scatter(chart: SentenceMap, places: Points, axes: Axes) -> None:
    for place in range(len(chart.groups)):
        rows = places[chart.group == place]
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.scatter(
            rows[:, 0], rows[:, 1], s=18, c=colour, marker=marker, alpha=0.75, linewidths=0, gid=f"group-{place}"
        )
    for group, centre in zip(chart.groups, _apart(chart, places), strict=True):
        axes.text(
            centre[0],
            centre[1],
            str(group.number),
            ha="center",
            va="center",
            fontweight="bold",
            fontsize=10,
            color=INK,
            bbox={"boxstyle": "circle,pad=0.25", "fc": PAPER, "ec": INK, "lw": 0.8, "alpha": 0.9},
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.margins(0.04)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(GRID)


def _apart(chart: SentenceMap, places: Points, gap: float = 0.09) -> Sequence[Points]:
    """Returns positions for the numbers of the groups: the medians of the groups, moved apart if they are too close."""
    span = np.ptp(places, axis=0).max() * gap
    centres = np.array([np.median(places[chart.group == place], axis=0) for place in range(len(chart.groups))])
    for _ in range(50):
        moved = False
        for one in range(len(centres)):
            for other in range(one):
                apart = centres[one] - centres[other]
                distance = float(np.hypot(*apart))
                if distance < span:
                    way = apart / distance if distance > 0 else np.array([1.0, 0.0])
                    centres[one] += way * (span - distance) / 2
                    centres[other] -= way * (span - distance) / 2
                    moved = True
        if not moved:
            break
    return list(centres)

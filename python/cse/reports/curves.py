"""The plots of a run: its log, focal re-scaling, and held-out texts before and after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..classifier.promise import Promise
from ..errors import InputError
from ..evaluation.geometry import effective_rank, unit
from .held_out import Compared, compare_models
from .labels import label_panels, promise_of
from .runs import StoredRun
from .style import GRID, INK, Panel, labelled, line_style, log_axis, step_axis, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Vector = npt.NDArray[np.float64]
Draw = Callable[["Axes"], object]

# Maximum number of points of a line; a longer log is averaged over groups of consecutive steps.
POINTS = 240
# Maximum number of arrows on the path of a run in the plot of alignment against uniformity; bars of a histogram.
ARROWS, BINS = 8, 50
COSINES: dict[str, str | None] = {
    "cos_pos": "positives",
    "cos_neg": "in-batch negatives",
    "cos_mix": "mixed negatives",
    "cos_syn": "synthetic negatives",
    "cos_hard": "labelled hard negatives",
}
SCORES = {"spearman": "Spearman's correlation x 100", "mrr": "mean reciprocal rank"}


def series(records: Sequence[dict[str, Any]], name: str) -> tuple[Vector, Vector]:
    """Returns the steps and values of one metric, ``(n,)`` each; records without the metric are left out."""
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    both = np.array(points, dtype=np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def thinned(steps: Vector, values: Vector, points: int = POINTS) -> tuple[Vector, Vector, int]:
    """Returns at most ``points`` means over groups of consecutive records, and the number of records in each."""
    size = max(1, -(-len(steps) // points))
    if size == 1:
        return steps, values, 1
    starts = np.arange(0, len(steps), size)
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts, size


def _means(run: StoredRun) -> str:
    """Returns a sentence for the caption if points are means of several steps, else an empty string."""
    size = thinned(*series(run.steps, "loss"))[2]
    return f" Each point is the mean of up to {size:,} steps." if size > 1 else ""


def _by_step(
    title: str,
    caption: str,
    records: Sequence[dict[str, Any]],
    labels: Mapping[str, str | None],
    axis: str,
    more: Draw = lambda axes: None,
) -> list[Panel]:
    """Returns a panel with a line over the steps for each metric that ``labels`` name; [] if no line changes."""
    lines = [(number, label, *thinned(*series(records, key))) for number, (key, label) in enumerate(labels.items())]
    if all(len(set(values.tolist())) < 2 for _, _, _, values, _ in lines):
        return []

    def draw(axes: Axes) -> None:
        for number, label, steps, values, size in lines:
            if len(steps):
                marker = "o" if len(steps) < 12 and size == 1 else None
                axes.plot(steps, values, label=label, marker=marker, markersize=3, **line_style(number))
        more(axes)
        step_axis(axes)
        labelled(axes, "step", axis)

    return [Panel(title, caption, draw)]


def training_panels(run: StoredRun) -> list[Panel]:
    """Returns panels of loss and learning rate by step."""
    terms = list(dict.fromkeys(key for record in run.steps for key in record if key.startswith("loss/")))
    losses: dict[str, str | None] = {"loss": None}
    if len(terms) > 1:
        losses = {"loss": "sum", **{key: key.removeprefix("loss/") for key in terms}}

    def from_zero(axes: Axes) -> None:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")

    every = run.config.get("una", {}).get("every", 1)
    taking_turns = "una" in run.config.get("negatives", ()) and every > 1
    turns = f" One step in every {every} uses UNA's negatives, which raise the loss." if taking_turns else ""
    caption = f"Training loss of each step.{_means(run)}{turns}"
    rate = "Learning rate of AdamW at each step."
    return [
        *_by_step("Loss", caption, run.steps, losses, "loss (nats)"),
        *_by_step("Learning rate", rate, run.steps, {"lr": None}, "learning rate", from_zero),
    ]


def score_panels(run: StoredRun) -> list[Panel]:
    """Returns a panel of the scores of the evaluations; an empty list if they have no score."""
    metric = run.metric
    if not metric:
        return []

    def best_and_interval(axes: Axes) -> None:
        x, y = series(run.evaluations, metric)
        errors = series(run.evaluations, "mrr_se")[1] if metric == "mrr" else np.empty(0)
        colour = line_style(0)["color"]
        if len(errors) == len(y):
            axes.fill_between(x, y - 1.96 * errors, y + 1.96 * errors, color=colour, alpha=0.22, lw=0)
        if run.best.get(metric) is not None:
            axes.plot(run.best["step"], run.best[metric], "o", ms=10, mfc="none", mec=colour)
        axes.margins(x=0.06)

    caption = "Score of each evaluation; step 0 is before training."
    if metric == "mrr":
        caption = (
            "Retrieval of one half of a held-out sentence with the other half as the query, with 95 % intervals "
            "(1.96 standard errors). The score falls when embeddings collapse, but does not measure similarity."
        )
    caption += " The ring marks the step that was saved as best."
    axis = SCORES[metric]
    return _by_step(axis[0].upper() + axis[1:], caption, run.evaluations, {metric: None}, axis, best_and_interval)


def cosine_panels(run: StoredRun) -> list[Panel]:
    """Returns a panel of mean cosines by step."""
    caption = (
        "Mean cosine of the anchors of a batch with their positives and their negatives. Negatives are hard if their "
        "cosine is close to the positives'. Negatives with far lower cosines contribute little to the "
        "gradient." + _means(run)
    )
    return _by_step("Cosines during training", caption, run.steps, COSINES, "mean cosine to the anchor")


def alignment_panels(run: StoredRun) -> list[Panel]:
    """Returns a panel of alignment against uniformity, a point per evaluation, as in figure 2 of SimCSE."""
    points = _places(run)
    return [_paths({"": points}, run.metric)] if len(set(points)) > 1 else []


def trainings_panel(runs: Sequence[StoredRun]) -> Panel:
    """Returns a panel with the alignment and uniformity of several runs; raises ``InputError`` if they were measured on
    different texts."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    measured = [run.stored_texts().get("dev") or run.stored_texts()["held_out"] for run in runs]
    for run, texts in zip(runs, measured, strict=True):
        if texts != measured[0]:
            raise InputError(
                f"{run.folder}: its alignment was measured on other texts than in {runs[0].folder}; name runs "
                "with the same --dev, or with the same corpus and seed"
            )
    paths = dict(zip(names, map(_places, runs), strict=True))
    for run, points in zip(runs, paths.values(), strict=True):
        if len(set(points)) < 2:
            raise InputError(f"{run.folder}: has fewer than two evaluations; omit it, or train with --eval-every N")
    return _paths(paths, runs[0].metric)


def _places(run: StoredRun) -> list[tuple[float, float]]:
    """Returns the uniformity and alignment of each evaluation."""
    records = run.evaluations if run.metric else []
    points = [(each.get("uniformity"), each.get("alignment")) for each in records]
    return [(x, y) for x, y in points if x is not None and y is not None]


def _paths(paths: Mapping[str, Sequence[tuple[float, float]]], metric: str | None) -> Panel:
    """Returns a panel with a path for each run, by its name in the legend."""
    of = "close pairs of the development set" if metric == "spearman" else "halves of held-out sentences"
    caption = (
        "Lower is better on both axes: alignment is the mean squared distance between positives, here the "
        f"{of}; uniformity is lower if sentences are spread more evenly. The path begins at the ring, before "
        "training, and its arrows point towards the last step."
    )

    def draw(axes: Axes) -> None:
        for number, (name, points) in enumerate(paths.items()):
            x, y = zip(*points, strict=True)
            style = line_style(number)
            axes.plot(x, y, lw=1.2, marker="o" if len(x) < 30 else None, ms=2.5, label=name or None, **style)
            axes.plot(x[:1], y[:1], "o", ms=9, mfc="none", mec=style["color"])
            arrow = {"arrowstyle": "-|>", "color": style["color"], "lw": 0, "shrinkA": 0, "shrinkB": 0}
            steps = np.unique(np.linspace(0, len(x) - 1, min(len(x), ARROWS + 1)).astype(int))
            for start, end in pairwise(steps.tolist()):
                # The arrow is drawn along the last segment of the path before its tip, so that it lies on the line.
                tail = points[max(start, end - 1)]
                axes.annotate("", xy=points[end], xytext=tail, arrowprops={**arrow, "mutation_scale": 13})
        axes.margins(0.12)
        labelled(axes, "uniformity", "alignment")

    return Panel("Alignment and uniformity", caption, draw)


def models_panel(runs: Sequence[StoredRun]) -> Panel:
    """Returns a plot of the models in ``best/``, as in figure 3 of SimCSE, coloured by their scores on ``--dev``."""
    needed = ("uniformity", "alignment", "spearman")
    models = [(run.best, run.name) for run in runs if all(run.best.get(key) is not None for key in needed)]
    if len(models) < 2:
        raise InputError(f"{len(models)} of {len(runs)} runs have scores on --dev; at least two are needed for a plot")

    places = [(name, (record["uniformity"], record["alignment"])) for record, name in models]
    caption = "The models in best/, coloured by Spearman's correlation x 100 on the development set."
    return scatter(places, caption, [record["spearman"] for record, _ in models])


def scatter(
    places: Sequence[tuple[str, tuple[float, float]]], caption: str = "", scores: Sequence[float] | None = None
) -> Panel:
    """Returns a plot of the uniformity and alignment of encoders by name, as in figure 3 of SimCSE, coloured by their
    scores on ``--dev`` if there are any."""

    def draw(axes: Axes) -> None:
        x, y = zip(*(place for _, place in places), strict=True)
        colour: dict[str, Any] = (
            {"color": line_style(0)["color"]} if scores is None else {"c": scores, "cmap": "viridis"}
        )
        points = axes.scatter(x, y, s=60, edgecolors=INK, linewidths=0.6, **colour)
        for name, place in places:
            axes.annotate(name, place, xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8, color=INK)
        if scores is not None:
            axes.figure.colorbar(points, ax=axes, label=SCORES["spearman"])
        axes.margins(0.15)
        labelled(axes, "uniformity", "alignment")

    return Panel("Models", caption, draw)


def focal_panels(run: StoredRun, margins: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4)) -> list[Panel]:
    """Returns panels of the similarity that Focal-InfoNCE uses (its figure 1), and of the weights of negatives."""
    from ..losses.base import focal

    if run.config.get("loss") == "focal" and not {"temperature", "contrastive.margin"} <= run.settings.keys():
        raise InputError(f"{run.folder / 'config.toml'}: has no temperature or no margin; restore it")
    own = float(run.settings["contrastive.margin"]) if run.config.get("loss") == "focal" else None
    tau = 0.05 if own is None else float(run.settings["temperature"])
    s = np.linspace(-1, 1, 401)
    # By margin, the logits of negatives at temperature 1.
    chosen = sorted({*margins} if own is None else {*margins, own})
    curves = {margin: np.asarray(focal(s, None, 1.0, margin)) for margin in chosen}  # type: ignore[arg-type]  # arrays work as well

    def draw(axes: Axes) -> None:
        axes.plot(s, s, color=INK, lw=1, label="not re-scaled")
        for number, (margin, logits) in enumerate(curves.items()):
            name = f"m = {margin:g}" + (", this run" if margin == own else "")
            width = 2.8 if margin == own else 1.3
            axes.plot(s, logits, label=name if margin else "positives (m = 0)", **{**line_style(number), "lw": width})
        axes.axhline(0, color=GRID, lw=1, zorder=0)
        labelled(axes, "cosine s", "re-scaled similarity")

    def draw_weights(axes: Axes) -> None:
        named = {f"m = {margin:g}": (logits, 2 * s + margin) for margin, logits in curves.items()}
        for number, (name, (logits, slopes)) in enumerate({"not re-scaled": (s, np.ones_like(s)), **named}.items()):
            # The derivative of the loss by the cosine of a negative is its share of the denominator times the slope of
            # its logit.
            weights = np.exp((logits - np.interp(0.5, s, logits)) / tau) * slopes / np.interp(0.5, s, slopes)
            style = {"color": INK, "lw": 1} if number == 0 else line_style(number - 1)
            axes.plot(s, np.where(weights > 0, weights, np.nan), label=name, **style)
        log_axis(axes, lowest=1e-9)
        labelled(axes, "cosine s", "weight of a negative")

    caption = (
        "Focal-InfoNCE replaces the cosine s by s² for positives and s (s + m) for negatives. A negative with a cosine "
        "above 1 - m, or below 0, counts more than without re-scaling; any other counts less. The minimum is at -m/2."
    )
    weights_caption = (
        "The weight of a negative is the derivative of the loss by its cosine, here at the temperature "
        f"{tau:g} and divided by its value at the cosine 0.5: how much more hard negatives count than easy "
        "ones. Below -m/2 it is negative (not shown): the loss then pulls a negative closer."
    )
    return [
        Panel("Focal re-scaling", caption, draw),
        Panel("Weights of negatives", weights_caption, draw_weights),
    ]


def pair_panels(compared: Compared) -> list[Panel]:
    """Returns histograms of the cosines of held-out pairs before and after training, with the same axis limits, and the
    singular values of the held-out texts' embeddings."""
    groups = compared.cosines()
    everything = np.concatenate([side for sides in groups.values() for side in sides])
    low, high = everything.min(), everything.max()
    pad = max(0.02 * (high - low), 1e-4)
    bins: list[float] = np.linspace(low - pad, high + pad, BINS + 1).tolist()
    most = max(np.histogram(side, bins, density=True)[0].max() for sides in groups.values() for side in sides)

    def histogram(place: int, axes: Axes) -> None:
        for number, (name, sides) in enumerate(groups.items()):
            style = line_style(number)
            axes.hist(sides[place], bins, density=True, color=style["color"], alpha=0.22)
            axes.hist(sides[place], bins, density=True, histtype="step", lw=1.6, **style, label=name)
        axes.set_xlim(bins[0], bins[-1])
        axes.set_ylim(0, most * 1.05)
        labelled(axes, "cosine", "density")

    texts = list(compared.before)
    values = [np.linalg.svd(unit(side), compute_uv=False) for side in compared.sides(texts)]
    ranks = [effective_rank(side) for side in compared.sides(texts)]

    def spectrum(axes: Axes) -> None:
        for number, (name, each) in enumerate(zip(("before training", "after training"), values, strict=True)):
            axes.plot(np.arange(1, len(each) + 1), each / each[0], label=name, **line_style(number))
        log_axis(axes, lowest=1e-4)
        labelled(axes, "number of the singular value", "relative singular value")

    what = "pairs of the development set" if compared.held_out.sets else "held-out texts"
    means = "; ".join(f"{name} {before.mean():.2f} and {after.mean():.2f}" for name, (before, after) in groups.items())
    caption = f"Cosines of {what}. The less the groups overlap, the better the model tells them apart."
    after = f"The same pairs, with the embeddings of best/. Means before and after: {means}."
    singular = (
        f"Singular values of the embeddings of {len(texts):,} held-out texts, at length 1, from the largest to the "
        f"smallest. The flatter the curve, the more directions are used; the effective rank is {ranks[0]:.1f} before "
        f"and {ranks[1]:.1f} after training."
    )
    return [
        Panel("Cosines before training", caption, partial(histogram, 0)),
        Panel("Cosines after training", after, partial(histogram, 1)),
        Panel("Singular values", singular, spectrum),
    ]


@dataclass
class Material:
    """The data that the plots of a run are drawn from, read or computed when first needed."""

    run: StoredRun
    before: str | None = None
    """The model before training; see ``compare_models``."""
    device: str = "auto"
    progress: Callable[[int, int], None] | None = None
    encode: bool = True
    """If False, plots that need encoded texts raise ``InputError``."""

    @cached_property
    def compared(self) -> Compared:
        if not self.encode:
            raise InputError("--no-encode: the held-out texts must be encoded by both models; omit the flag")
        return compare_models(self.run, self.before, device=self.device, progress=self.progress)

    @property
    def kinds(self) -> list[str]:
        """The kinds of plots that apply to the run: all, but Focal-InfoNCE's only if the run used it, and that of
        predicted labels if something is promised about them."""
        applies = {"focal": self.run.config.get("loss") == "focal", "labels": self.promise is not None}
        return [kind for kind in KINDS if applies.get(kind, True)]

    @cached_property
    def promise(self) -> Promise | None:
        """What the classifier of the run promises, if it has one."""
        return promise_of(self.run)

    def panels(self, kind: str) -> list[Panel]:
        """Returns the panels of a kind; raises ``InputError`` if the run lacks the data, or if no value changes."""
        panels = KINDS[kind](self)
        if not panels:
            raise InputError(f"{self.run.folder}: no value in its log changes over the steps; train for more steps")
        return panels

    def write_pictures(self, folder: Path) -> list[str]:
        """Writes the plots that can be drawn to ``folder``, as files named after their kinds; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for kind in self.kinds:
            with suppress(InputError):  # the page says which ones are left out, and why
                panels = self.panels(kind)
                write(panels, folder / f"{kind}.png")
                written.append(str(folder / f"{kind}.png"))
        return written


KINDS: dict[str, Callable[[Material], list[Panel]]] = {
    "training": lambda material: [*training_panels(material.run), *score_panels(material.run)],
    "cosines": lambda material: cosine_panels(material.run),
    "alignment": lambda material: alignment_panels(material.run),
    "focal": lambda material: focal_panels(material.run),
    "pairs": lambda material: pair_panels(material.compared),
    "labels": lambda material: [] if material.promise is None else label_panels(material.promise),
}
"""The kinds of plots, which ``Material.panels`` draws."""

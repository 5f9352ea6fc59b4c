"""Appearance of the plots: colours, fonts, figures and files. Matplotlib is imported only when a figure is made.

The colours are from Okabe and Ito (2008); they can be told apart with the common kinds of colour blindness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..io import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, ORANGE, SKY = "#cc79a7", "#e69f00", "#56b4e9"
# INK is for text, axes and one series, GRID for grid lines, as in the style sheet.
INK, GRID = "#1b1b1b", "#d0d0d1"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1)))

# Size of a panel in inches. On a page, a panel is about as wide as the screen of a phone, and is never scaled down.
WIDTH, HEIGHT = 3.9, 3.0
# Characters and lines of a legend that fit into a panel; height of each further line in inches.
CHARACTERS, LINES, LINE = 56, 3, 0.18
# Fonts for scripts that the main font lacks; used if they are installed.
FALLBACKS = ("Noto Sans CJK JP", "Noto Sans", "Arial Unicode MS", "Hiragino Sans", "Microsoft YaHei", "Noto Sans Thai")


def line_style(number: int) -> dict[str, Any]:
    """Returns the colour and the dashes of a line in a plot; up to 35 lines differ in one or both."""
    place, turn = number % len(COLOURS), number // len(COLOURS)
    return {"color": COLOURS[place], "linestyle": DASHES[(place + turn) % len(DASHES)]}


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a plot, with a title and a caption."""

    title: str
    caption: str
    draw: Callable[[Axes], object]


def require_extra(command: str) -> None:
    """Raises ``InputError`` if a package of the extra ``plots`` is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if missing:
        raise InputError(f"{command} needs {missing[0]}, which is not installed; run pip install 'cse[plots]'")


def styled() -> AbstractContextManager[None]:
    """Returns a context manager in which figures have the style of ``resources/plots.mplstyle``."""
    from matplotlib import style
    from matplotlib.font_manager import get_font_names

    fonts = ["DejaVu Sans", *(name for name in FALLBACKS if name in get_font_names())]
    sheet = str(files("cse") / "resources" / "plots.mplstyle")
    return style.context([sheet, {"font.family": fonts}])


def figure(panels: Sequence[Panel], columns: int = 3) -> Figure:
    """Draws panels in a grid; a single panel gets no title, because the report page shows its title as a heading."""
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    made = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    # Each panel has its own subfigure, so that its legend is below it, outside the axes.
    parts = made.subfigures(rows, columns, squeeze=False)
    lines = 0
    for part, panel in zip(parts.flat, panels, strict=False):
        axes = part.add_subplot()
        panel.draw(axes)
        if len(panels) > 1:
            axes.set_title(panel.title)
        names = axes.get_legend_handles_labels()[1]
        lines = max(lines, -(-len(names) // _columns(names)) if names else 0)
    made.set_figheight(rows * (HEIGHT + LINE * max(0, lines - LINES)))
    return made


def drawn(panels: Sequence[Panel], form: str) -> bytes:
    """Returns panels as the contents of a ``png``, ``svg`` or ``pdf`` file."""
    out = BytesIO()
    with styled():
        # Without a date, identical plots give identical files.
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {"Software": "cse"})
        figure(panels).savefig(out, format=form, metadata=metadata)
    return out.getvalue()


def write(panels: Sequence[Panel], path: Path) -> None:
    """Writes panels to a file in the format given by its suffix."""
    content = drawn(panels, path.suffix[1:])
    write_atomically(path, lambda file: file.write(content))


def labelled(axes: Axes, x: str, y: str) -> None:
    """Names the axes, and adds a legend below them, where it covers nothing; series without a label are left out."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    handles, names = axes.get_legend_handles_labels()
    if names:
        axes.figure.legend(handles, names, loc="outside lower left", ncols=_columns(names))


def _columns(names: Sequence[str]) -> int:
    """Returns the number of columns of a legend that fit into the width of a panel, at most two."""
    fitting = CHARACTERS // (max(map(len, names)) + 7)  # 7 for the line before the name, and for spaces
    return max(1, min(2, fitting, len(names)))


def step_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def log_axis(axes: Axes, lowest: float) -> None:
    """Makes the vertical axis logarithmic from ``lowest`` on; its labels are numbers, since formulas are not parsed."""
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.set_ylim(bottom=lowest)
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())

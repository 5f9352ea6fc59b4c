"""The kinds of plots that ``cse report`` shows and writes to files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import InputError
from .curves import alignment_panels, cosine_panels, focal_panels, pair_panels, score_panels, training_panels
from .held_out import Compared, compare_models
from .runs import StoredRun
from .style import Panel, write


@dataclass
class Material:
    """The data that the plots of a run are drawn from, read or computed when first needed."""

    run: StoredRun
    device: str = "auto"
    progress: Callable[[int, int], None] | None = None
    encode: bool = True
    """If False, plots that need encoded texts raise ``InputError``."""

    @cached_property
    def compared(self) -> Compared:
        if not self.encode:
            raise InputError("--no-encode: the held-out texts must be encoded by both models; omit the flag")
        return compare_models(self.run, device=self.device, progress=self.progress)

    @property
    def kinds(self) -> list[str]:
        """The kinds of plots that apply to the run: all but that of Focal-InfoNCE, unless the run used it."""
        return [kind for kind in KINDS if kind != "focal" or self.run.config.get("loss") == "focal"]

    def panels(self, kind: str) -> list[Panel]:
        """Returns the panels of a kind; raises ``InputError`` if the run lacks the data, or if no value changes."""
        panels = KINDS[kind](self)
        if not panels:
            raise InputError(f"{self.run.folder}: no value in its log changes over the steps; train for more steps")
        return panels


KINDS: dict[str, Callable[[Material], list[Panel]]] = {
    "training": lambda material: [*training_panels(material.run), *score_panels(material.run)],
    "cosines": lambda material: cosine_panels(material.run),
    "alignment": lambda material: alignment_panels(material.run),
    "focal": lambda material: focal_panels(material.run),
    "pairs": lambda material: pair_panels(material.compared),
}
"""The kinds of plots, which ``Material.panels`` draws."""


def write_pictures(material: Material, folder: Path) -> list[str]:
    """Writes the plots that can be drawn to ``folder``, as files named after their kinds; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in material.kinds:
        with suppress(InputError):  # the page says which ones are left out, and why
            panels = material.panels(kind)
            write(panels, folder / f"{kind}.png")
            written.append(str(folder / f"{kind}.png"))
    return written

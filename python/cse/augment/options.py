"""Options of UNA. This module imports neither NumPy nor torch, so that the command line starts quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, cast

from annotated_types import Ge

from ..options import If, Opt
from ..tfidf.options import Beta, DrawOptions, Radius, ReplaceWhich, ReplaceWith, Surface, TokenizerName, check_radius


@dataclass(frozen=True)
class UNAOptions:
    """Synthetic hard negatives from the TF-IDF index (UNA).

    The defaults are the paper's, except for ``radius``, ``surface`` and ``tokenizer``.
    """

    every: Annotated[int, Ge(0), Opt("make negatives at steps 0, N, 2N, ...; 0: never", "N", flag="--una-every")] = 5
    use_as: Annotated[
        Literal["pairs", "hard-negatives"],
        Opt(
            "add negatives as further anchor-positive pairs (as published), or as hard negatives only", flag="--una-as"
        ),
    ] = "pairs"
    beta: Annotated[Beta, Opt(flag="--beta")] = 0.5
    radius: Annotated[Radius, Opt(flag="--radius", needs=If("replace_with", ("radius",), "--replace-with radius"))] = (
        None
    )
    surface: Annotated[Surface, Opt(flag="--surface")] = None
    replace_which: Annotated[ReplaceWhich, Opt(flag="--replace-which")] = "tfidf"
    replace_with: Annotated[ReplaceWith, Opt(flag="--replace-with")] = "radius"
    tokenizer: Annotated[TokenizerName | None, Opt("required tokenizer of the index; None: any")] = None

    def __post_init__(self) -> None:
        check_radius(self.radius)

    def drawing(self) -> DrawOptions:
        """Returns the sampling options as keyword arguments of ``TfidfIndex.augment``."""
        names = DrawOptions.__annotations__.keys() & vars(self).keys()
        return cast(DrawOptions, {name: getattr(self, name) for name in names})

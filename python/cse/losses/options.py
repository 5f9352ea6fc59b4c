"""Options of loss terms. This module does not import torch, so that the command line starts quickly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from ..errors import InputError
from ..registry import Note, OnlyIf

__all__ = ["ContrastiveOptions", "KeepSimilaritiesOptions", "MLMOptions", "MatryoshkaOptions", "parse_dims"]


@dataclass(frozen=True)
class ContrastiveOptions:
    """Options of the contrastive loss; see ``cse.losses.contrastive.contrastive_loss``.

    If ``--loss`` is ``standard``, ``focal`` or ``mixed``, the options ``objective``, ``logits``, ``temperature`` and
    ``mixed_negatives`` come from the settings of the run.
    """

    objective: Annotated[Literal["infonce", "nt-xent"], Note("which views are negatives")] = "infonce"
    logits: Annotated[Literal["cosine", "focal"], Note("cosine: cosine / tau; focal: as in Focal-InfoNCE")] = "cosine"
    temperature: Annotated[float, Ge(1e-4), Note("tau")] = 0.05
    margin: Annotated[
        float, Note("margin m of the focal logits", "--margin"), OnlyIf("logits", ("focal",), "--loss focal")
    ] = 0.3
    mixed_negatives: Annotated[bool, Note("use mixed negatives (MixCSE)")] = False
    mix_lambda: Annotated[
        float,
        Ge(0),
        Le(1),
        Note("weight of the anchor's own positive in a mixed negative", "--mix-lambda"),
        OnlyIf("mixed_negatives", named="--mixed-negatives"),
    ] = 0.2
    mix_variant: Annotated[
        Literal["paper", "release"],
        Note("mixed negatives as in the MixCSE paper, or as in its released code", "--mix-variant"),
        OnlyIf("mixed_negatives", named="--mixed-negatives"),
    ] = "paper"
    hard_negative_weight: Annotated[
        float,
        Gt(0),
        Note("weight alpha of each anchor's own hard negative, given in --pairs", "--hard-negative-weight"),
    ] = 1.0

    @property
    def mixed(self) -> str | None:
        """``mix_variant`` if there are mixed negatives, else None."""
        return self.mix_variant if self.mixed_negatives else None


@dataclass(frozen=True)
class MLMOptions:
    """Options of masked language modelling."""

    weight: Annotated[
        float, Gt(0), Note("adds masked language modelling with this weight", "--mlm-weight", default="0", enables=True)
    ] = 0.1
    share: Annotated[float, Gt(0), Lt(1), Note("fraction of tokens to predict")] = 0.15


@dataclass(frozen=True)
class KeepSimilaritiesOptions:
    """Options of the term that keeps the similarities of the base model."""

    weight: Annotated[float, Gt(0), Note("weight of the term")] = 1.0
    temperature: Annotated[float, Ge(1e-4), Note("temperature of the softmax over cosines")] = 0.05


@dataclass(frozen=True)
class MatryoshkaOptions:
    """Options of the loss on the first dimensions of the embeddings."""

    dims: Annotated[
        tuple[int, ...] | str,
        Note(
            "also trains the first N dimensions of the embeddings, for each N in a list like 256,128,64 (Matryoshka)",
            "--dims",
            "N,N,...",
            default="off",
            enables=True,
        ),
    ] = "256,128,64"


def parse_dims(given: str | Sequence[int]) -> list[int]:
    """Parses numbers of dimensions, and returns them in descending order, without repeats.

    The numbers are given as a list, or as text separated by commas. Raises ``InputError`` for any other value, and for
    a number below 1.
    """
    try:
        found = [int(part) for part in (given.split(",") if isinstance(given, str) else given)]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"--dims {given}: must be numbers of dimensions separated by commas, like 256,128,64")
    return sorted(set(found), reverse=True)

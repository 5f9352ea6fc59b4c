"""Options of the losses, and which parts of the contrastive loss can be combined.

This module does not import torch, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from ..errors import InputError
from ..options import If, Opt


@dataclass(frozen=True)
class ContrastiveOptions:
    """Options of the contrastive loss; see ``cse.losses.contrastive.contrastive_loss``."""

    objective: Annotated[Literal["infonce", "nt-xent"], Opt("which views are negatives")] = "infonce"
    logits: Annotated[Literal["cosine", "focal"], Opt("cosine: cosine / tau; focal: as in Focal-InfoNCE")] = "cosine"
    temperature: Annotated[
        float, Ge(1e-4), Opt("temperature tau, by which similarities are divided before the softmax")
    ] = 0.05
    margin: Annotated[
        float,
        Opt(
            "margin m of --loss focal, in which the similarity s of a negative becomes s * (s + m)",
            flag="--margin",
            needs=If("logits", ("focal",), "--loss focal"),
        ),
    ] = 0.3
    mixed_negatives: Annotated[bool, Opt("use mixed negatives (MixCSE)")] = False
    mix_lambda: Annotated[
        float,
        Ge(0),
        Le(1),
        Opt(
            "weight of the anchor's own positive in a mixed negative",
            flag="--mix-lambda",
            needs=If("mixed_negatives", named="--mixed-negatives"),
        ),
    ] = 0.2
    mix_variant: Annotated[
        Literal["paper", "release"],
        Opt(
            "mixed negatives as in the MixCSE paper, or as in its released code",
            flag="--mix-variant",
            needs=If("mixed_negatives", named="--mixed-negatives"),
        ),
    ] = "paper"
    stop_gradient: Annotated[
        bool,
        Opt("mixed negatives have no gradient, as in MixCSE", needs=If("mixed_negatives", named="--mixed-negatives")),
    ] = True
    hard_negative_weight: Annotated[
        float,
        Gt(0),
        Opt(
            "weight alpha, in the denominator of the loss, of each anchor's own hard negative from --pairs",
            flag="--hard-negative-weight",
        ),
    ] = 1.0

    @property
    def mixed(self) -> str | None:
        """``mix_variant`` if there are mixed negatives, else None."""
        return self.mix_variant if self.mixed_negatives else None


@dataclass(frozen=True)
class MLMOptions:
    """Options of masked language modelling."""

    weight: Annotated[
        float,
        Gt(0),
        Opt("adds masked language modelling with this weight", flag="--mlm-weight", default="0", enables=True),
    ] = 0.1
    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of tokens to predict")] = 0.15


@dataclass(frozen=True)
class KeepSimilaritiesOptions:
    """Options of the term that keeps the similarities of the base model."""

    weight: Annotated[float, Gt(0), Opt("weight of the term")] = 1.0
    temperature: Annotated[float, Ge(1e-4), Opt("temperature of the softmax over cosines")] = 0.05


@dataclass(frozen=True)
class TeacherOptions:
    """Options of the term that learns the embeddings of another encoder."""

    model: Annotated[
        str | None,
        Opt(
            "encoder whose embeddings are learned, with any tokenizer and number of dimensions",
            flag="--teacher",
            metavar="MODEL",
            default="none",
            enables=True,
        ),
    ] = None
    weight: Annotated[float, Gt(0), Opt("weight of the term")] = 1.0
    prompt: Annotated[str | None, Opt("prompt of the encoder: the name of one that it declares, or a text")] = None
    pooler: Annotated[str | None, Opt("pooling of the encoder, if its folder declares none or a wrong one")] = None
    most_lost: Annotated[
        float | None,
        Ge(0),
        Opt(
            "points of the score without labels (MRR of halves, or Spearman's correlation on --dev) that best/ may "
            "lose",
            default="any number; with --learn, 1",
        ),
    ] = None


@dataclass(frozen=True)
class MatryoshkaOptions:
    """Options of the loss on the first dimensions of the embeddings."""

    dims: Annotated[
        tuple[int, ...] | str,
        Opt(
            "also trains the first N dimensions of the embeddings, for each N in a list like 256,128,64 (Matryoshka)",
            flag="--dims",
            metavar="N,N,...",
            default="off",
            enables=True,
        ),
    ] = "256,128,64"


def parse_dims(dims: str | Sequence[int]) -> list[int]:
    """Parses numbers of dimensions, and returns them in descending order, without repeats.

    >>> parse_dims("64,256,64")
    [256, 64]
    """
    try:
        numbers = [int(part) for part in (dims.split(",") if isinstance(dims, str) else dims)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"--dims {dims} must be numbers of dimensions separated by commas, like 256,128,64")
    return sorted(set(numbers), reverse=True)


def incompatibility(objective: str | None, logits: str, mixed: str | None, synthetic_pairs: bool) -> str | None:
    """Returns an error message if a combination of loss parts is not defined, else None.

    ``objective`` is None if it is not known yet; ``synthetic_pairs``: synthetic negatives also form pairs.
    """
    if mixed != "release":
        return None
    remedy = "use --mix-variant paper"
    if logits == "focal":
        return f"--mix-variant release is defined for the standard logits only, not for --loss focal; {remedy}"
    if synthetic_pairs:
        return (
            "--mix-variant release is not defined with --una-as pairs; "
            "use --una-as hard-negatives, or --mix-variant paper"
        )
    if objective == "nt-xent":
        return f"--mix-variant release is defined for --objective infonce only; {remedy}"
    return None

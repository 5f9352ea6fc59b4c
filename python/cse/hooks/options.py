"""Options of LoRA. This module does not import torch, so that the command line starts quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from ..options import Opt


@dataclass(frozen=True)
class LoRAOptions:
    """Options of LoRA."""

    rank: Annotated[
        int,
        Ge(1),
        Opt(
            "trains adapters of this rank, not the weights (LoRA, with peft)",
            flag="--lora",
            metavar="RANK",
            default="off",
            enables=True,
        ),
    ] = 16
    alpha: Annotated[float, Ge(0), Opt("the adapters are scaled by alpha / rank; 0: alpha is twice the rank")] = 0.0
    dropout: Annotated[float, Ge(0), Lt(1), Opt("dropout probability for the inputs of the adapters")] = 0.0
    targets: Annotated[
        tuple[str, ...], Opt("last parts of the names of the layers to adapt, such as query; empty: all linear layers")
    ] = ()

"""Options of LoRA.

This module does not import torch, so that the command line, which lists the options, starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from ..registry import Note


@dataclass(frozen=True)
class LoRAOptions:
    """Options of LoRA."""

    rank: Annotated[
        int,
        Ge(1),
        Note("trains adapters of this rank, not the weights (LoRA, with peft)", "--lora", "RANK", "off", enables=True),
    ] = 16
    keep: Annotated[
        bool, Note("with --lora, save only the adapter; loading it requires the base model and peft", "--keep-adapter")
    ] = False
    alpha: Annotated[float, Ge(0), Note("the adapters are scaled by alpha / rank; 0: alpha is twice the rank")] = 0.0
    dropout: Annotated[float, Ge(0), Lt(1), Note("dropout probability for the inputs of the adapters")] = 0.0
    targets: Annotated[
        tuple[str, ...], Note("last parts of the names of the layers to adapt, such as query; empty: all linear layers")
    ] = ()

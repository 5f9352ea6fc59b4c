"""ConSERT: shuffled positions, and cut-offs of the embedding layer's output (Yan et al. 2021, arXiv:2105.11741)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt, Lt
from torch import Tensor

from cse.context import ModelContext
from cse.hooks.base import Hook, RowStep
from cse.options import Opt
from cse.views import first_position


@dataclass(frozen=True)
class CutoffOptions:
    """Options of a cut-off; the default of ``share`` is the published value for the feature cut-off."""

    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of the dimensions or tokens to set to 0")] = 0.2


class TokenShuffle(Hook):
    """Randomly permutes the position ids of a sentence's tokens, including the special tokens."""

    summary = "permutes the position ids (ConSERT)"
    recordable = True

    def __init__(self, options: Any, context: ModelContext) -> None:
        super().__init__(options, context)
        self.first = first_position(context.encoder.backbone)

    def tokens(self, tokens: dict[str, Tensor], step: RowStep) -> dict[str, Tensor]:
        """Returns the inputs with permuted ``position_ids``; padding keeps the last ids, in order."""
        mask = tokens["attention_mask"].bool()
        keys = step.uniform("token shuffle", mask.shape[1]).to(mask.device).masked_fill(~mask, 2.0)
        return {**tokens, "position_ids": keys.argsort(dim=1, stable=True).argsort(1) + self.first}


class FeatureCutoff(Hook):
    """Sets floor(share * D) random dimensions of the embedding layer's output to 0 in all tokens of a row."""

    Options = CutoffOptions
    summary = "sets random dimensions of the embedding layer's output to 0 (ConSERT)"
    recordable = True

    def embedded(self, states: Tensor, tokens: dict[str, Tensor], step: RowStep) -> Tensor:
        size = states.shape[-1]
        ranks = step.uniform("feature cutoff", size).argsort(1).argsort(1)
        return states * (ranks >= int(self.options.share * size)).to(states)[:, None]


class TokenCutoff(Hook):
    """Sets the embedding layer's output to 0 for floor(share * tokens) random tokens of each sentence."""

    Options = CutoffOptions
    summary = "sets the embedding layer's output of random tokens to 0 (ConSERT)"
    recordable = True

    def embedded(self, states: Tensor, tokens: dict[str, Tensor], step: RowStep) -> Tensor:
        mask = tokens["attention_mask"].bool()
        keys = step.uniform("token cutoff", mask.shape[1]).to(mask.device).masked_fill(~mask, 2.0)
        cut = (mask.sum(1, keepdim=True) * self.options.share).long()
        kept: Tensor = keys.argsort(1).argsort(1) >= cut
        return states * kept.to(states)[..., None]

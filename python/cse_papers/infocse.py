"""InfoCSE: masked language modelling given the embedding of the sentence (Wu et al. 2022, arXiv:2210.06432)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cse import InputError
from cse.context import ModelContext
from cse.losses.auxiliary import IGNORED, draw_masks
from cse.losses.base import RowTerm
from cse.options import Opt
from cse.views import BatchStep, Frozen, RowStep, Views, embedding_output, parts_of

from .diffcse import Projector

STATE = "{} state"


class StateProjector(Projector):
    """As ``projector``; the embeddings before it stay as further views, ``anchor state`` and ``positive state``."""

    summary = "the projector of DiffCSE, for --loss-term infocse, which reads the embeddings before it (InfoCSE)"

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the projected views, and the embeddings before the projection with the role ``other``."""
        kept = {STATE.format(name): views[name] for name in ("anchor", "positive")}
        projected = super().forward(views, step)
        return projected.replace(
            embeddings={**projected.embeddings, **kept}, roles={**projected.roles, **dict.fromkeys(kept, "other")}
        )


@dataclass(frozen=True)
class InfoCSEOptions:
    """Options of InfoCSE; the defaults are those of the released command for BERT-base."""

    weight: Annotated[float, Gt(0), Opt("weight of the term")] = 1e-5
    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of tokens to mask")] = 0.4
    frozen_layers: Annotated[int, Ge(1), Opt("first layers of the model, frozen, that encode the masked sentence")] = 6
    head_layers: Annotated[int, Ge(1), Opt("new layers that decode the masked tokens")] = 2


def shortened(backbone: Any, layers: int) -> Any:
    """Returns a copy of a transformer with its first ``layers`` layers."""
    result = copy.deepcopy(backbone)
    del parts_of(result)[1][layers:]
    result.config.num_hidden_layers = layers
    return result


class InfoCSE(RowTerm):
    """``weight`` times the mean cross-entropy of masked tokens that are decoded given the embedding of the sentence.

    The first layers of the model before training, frozen and without dropout, encode the masked sentence. Their state
    at the first position is replaced by the embedding of the whole sentence, new layers decode the result, and the head
    for masked language modelling predicts the tokens: the term trains the encoder through the embedding. Both views are
    masked, each differently; masks are functions of (seed, epoch, row, token position). The new layers have the
    dropout of the model, and the head starts as a copy of the model's.
    """

    Options = InfoCSEOptions
    summary = "masked tokens are decoded from the embedding (InfoCSE)"
    recordable = True
    reads = frozenset({"anchor", "positive"})

    def __init__(self, options: InfoCSEOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
        count = len(parts_of(encoder.backbone)[1])
        if max(options.frozen_layers, options.head_layers) > count:
            raise InputError(f"infocse.frozen_layers and infocse.head_layers must be at most {count}, as the model has")
        self.frozen = Frozen(shortened(encoder.backbone, options.frozen_layers))
        self.decoder = shortened(encoder.backbone, options.head_layers).cpu()  # equal initial weights on any device
        embedding, blocks = parts_of(self.decoder)
        embedding.requires_grad_(False)  # its output is replaced
        for module in blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        model, untrained = encoder.masked_language_model()
        heads = [module for name, module in model.named_children() if name != model.base_model_prefix]
        if len(heads) != 1:
            raise InputError(
                f"--loss-term infocse: {encoder.source.name} has no head in one module; use BERT or RoBERTa"
            )
        self.head = copy.deepcopy(heads[0])
        if untrained:
            self.warning = (
                f"--loss-term infocse: {encoder.source.name} has no head for masked language modelling, so one is "
                "trained from scratch; a checkpoint like bert-base-uncased has a head"
            )
        self.special: Tensor
        self.register_buffer("special", torch.tensor(encoder.tokenizer.all_special_ids), persistent=False)
        self.mask_id: int = encoder.tokenizer.mask_token_id
        self.vocabulary = len(encoder.tokenizer)

    @classmethod
    def implies(cls, options: InfoCSEOptions) -> dict[str, Any]:
        return {"feature_augmentations": ("state-projector",)}

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        tokens = step.tokens["anchor"]
        ids = tokens["input_ids"]
        total, count = (views["anchor"].new_zeros(()) for _ in range(2))
        for view in ("anchor", "positive"):
            masked, labels = draw_masks(
                step, f"infocse {view}", ids, self.special, self.options.share, self.mask_id, self.vocabulary
            )
            name = STATE.format(view)
            logits = self.logits({**tokens, "input_ids": masked}, views[name if name in views else view])
            losses = cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
            total, count = total + losses.sum(), count + (labels != IGNORED).sum()
        return self.options.weight * total, count

    def logits(self, tokens: dict[str, Tensor], z: Tensor) -> Tensor:
        """Returns the logits ``(n, T, V)`` of masked tokens, given embeddings ``(n, D)``."""
        states = self.frozen(**tokens).last_hidden_state
        logits: Tensor = self.head(self.decoded(torch.cat([z[:, None].to(states.dtype), states[:, 1:]], dim=1), tokens))
        return logits

    def decoded(self, states: Tensor, tokens: dict[str, Tensor]) -> Tensor:
        """Returns the states ``(n, T, D)`` after the new layers."""
        with embedding_output(self.decoder, lambda output: states):
            decoded: Tensor = self.decoder(**tokens).last_hidden_state
        return decoded

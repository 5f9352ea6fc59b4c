"""PromptBERT: a template around each sentence, and pooling at the mask token (Jiang et al. 2022, arXiv:2201.04337)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from cse import InputError
from cse.context import ModelContext
from cse.encoder.prompts import Template
from cse.hooks.base import EncoderMethod, Hook, RowStep
from cse.options import Opt
from cse.views import first_position

PLACE = "{}"


@dataclass(frozen=True)
class PromptOptions:
    """Options of PromptBERT; the default templates are the published ones for BERT-base."""

    template: Annotated[str, Opt("text with {} for the sentence and [MASK] for the mask token")] = (
        'This sentence of "{}" means [MASK].'
    )
    positive_template: Annotated[
        str,
        Opt(
            "template of the positives; needs the same tokens after {} as the first template, and the same "
            "number of tokens before {}; empty: use the first template"
        ),
    ] = 'This sentence : "{}" means [MASK].'
    denoise: Annotated[
        bool, Opt("in training, subtract the mask token's hidden state in the template without a sentence")
    ] = True


def mask_template(text: str, tokenizer: Any) -> Template:
    """Returns the template of a text; see ``PromptOptions``."""
    if None in (tokenizer.mask_token, tokenizer.cls_token, tokenizer.sep_token):
        raise InputError("--encoder-method prompt needs a mask, a CLS and a SEP token; use a model like BERT")
    before, place, after = text.partition(PLACE)
    if not place or after.count("[MASK]") != 1 or "[MASK]" in before:
        raise InputError(f"prompt.template: {text!r} must have one {{}} and then one [MASK]")
    # The sentence is tokenized by itself, so the space before it is left out; the space after it is kept.
    return Template(before.rstrip(), after.replace("[MASK]", tokenizer.mask_token), tokenizer)


class Prompt(EncoderMethod):
    """Encodes a sentence as the hidden state of the mask token in a template around the sentence.

    In training, the mask token's hidden state in the bare template (without the sentence) is subtracted, unless
    ``denoise`` is false, and an MLP (linear, tanh) is applied. The tokens of the bare template keep the positions that
    they have around the sentence. The tokenizer of the saved model contains the template and does not truncate it.
    ``--max-length`` includes the tokens of the template: for the published limit of 32 tokens per sentence, set it to
    32 plus the number of tokens in the template.

    Differences from the released code: position ids start at the model's first position (in RoBERTa, after the padding
    index); checkpoints are selected without denoising; no full stop is added in evaluation; with RoBERTa, there is no
    space before a sentence.
    """

    Options = PromptOptions
    summary = "a template around the sentence, and the state of its mask token (PromptBERT)"
    recordable = True

    def __init__(self, options: PromptOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
        self.template = mask_template(options.template, encoder.tokenizer)
        second = mask_template(options.positive_template or options.template, encoder.tokenizer)
        if len(second.prefix) != len(self.template.prefix) or second.suffix != self.template.suffix:
            raise InputError(
                "prompt.positive_template: must have as many tokens before the sentence as prompt.template, and the "
                "same tokens after it"
            )
        self.second_prefix: Tensor  # a buffer, so that it is on the device of the run
        self.register_buffer("second_prefix", torch.tensor(second.prefix), persistent=False)
        self.template.apply(encoder.tokenizer)
        encoder.keeps_tokenizer = True
        encoder.add_head(*([Denoise(self.template, encoder)] if options.denoise else []))
        context.shared["prompt"] = self

    @classmethod
    def implies(cls, options: PromptOptions) -> dict[str, Any]:
        """Returns the pooler ``mask`` and, if there is a second template, the hook that applies it to the positives."""
        second = options.positive_template not in ("", options.template)
        return {"pooler": "mask", **({"positive_hook": "second-template"} if second else {})}

    requires = implies


class Denoise(nn.Module):
    """Subtracts the mask token's hidden state in the bare template, without a sentence, from the pooled output."""

    suffix: Tensor

    def __init__(self, template: Template, encoder: Any) -> None:
        super().__init__()
        self.backbone = (encoder.backbone,)  # in a tuple, so that it is not registered twice
        self.before = len(template.prefix)
        self.mask_at = self.before + template.suffix.index(encoder.tokenizer.mask_token_id)
        self.register_buffer("suffix", torch.tensor(template.suffix), persistent=False)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        bias = self.bias(features["input_ids"], features["attention_mask"])
        return {**features, "sentence_embedding": features["sentence_embedding"] - bias}

    def bias(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Returns the mask token's hidden state in the bare template, at the position ids of each row: ``(n, D)``."""
        (backbone,) = self.backbone
        before, after = self.before, len(self.suffix)
        longest = ids.shape[1] - before - after
        bare = torch.cat([ids[0, :before], self.suffix]).expand(longest + 1, -1)
        # Row l: the positions of the template around a sentence of l tokens.
        places = torch.arange(before + after, device=ids.device)
        gap = torch.arange(longest + 1, device=ids.device)[:, None] * (places >= before)
        positions = places + gap + first_position(backbone)
        states = backbone(input_ids=bare, attention_mask=torch.ones_like(bare), position_ids=positions)
        bias: Tensor = states.last_hidden_state[mask.sum(1) - before - after, self.mask_at]
        return bias


class PromptHook(Hook):
    """Applies ``prompt.positive_template`` to the positives; implied by ``--encoder-method prompt``."""

    summary = "the second template of PromptBERT; implied by --encoder-method prompt"
    recordable = True

    def __init__(self, options: Any, context: ModelContext) -> None:
        super().__init__(options, context)
        self.prompt: Any = context.shared.get("prompt")
        if self.prompt is None:
            raise InputError("--positive-hook second-template belongs to --encoder-method prompt, which was not given")

    def tokens(self, tokens: dict[str, Tensor], step: RowStep) -> dict[str, Tensor]:
        """Returns the tokens with the prefix of the second template."""
        ids = tokens["input_ids"].clone()
        ids[:, : len(self.prompt.second_prefix)] = self.prompt.second_prefix
        return {**tokens, "input_ids": ids}

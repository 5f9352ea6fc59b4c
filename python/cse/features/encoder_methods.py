"""Changes to the encoder itself: averaged weights, low-rank adapters, a projector, and prompts.

- An exponential moving average of the weights (Polyak and Juditsky 1992), which is evaluated and saved.
- LoRA: low-rank adapters of linear layers (Hu et al. 2021, arXiv:2106.09685), implemented by peft.
- A projector with batch normalisation between the encoder and the loss (DiffCSE; Chuang et al. 2022), which is
  registered as a feature method.
- PromptBERT: a template around each sentence, and pooling at the mask token (Jiang et al. 2022, arXiv:2201.04337).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from ..errors import InputError, first_line
from ..models.device import copied_to
from ..models.reading.adapters import Adapters, import_peft
from ..models.reading.resolve import first_position
from ..options import Opt
from . import LoRAOptions
from .base import BatchStep, EncoderMethod, FeatureMethod, Hook, RowStep, Views

if TYPE_CHECKING:
    from ..context import Context


@dataclass(frozen=True)
class EMAOptions:
    """Options of the moving average."""

    decay: Annotated[float, Ge(0), Lt(1), Opt("fraction of the average kept at each step")] = 0.99
    warmup: Annotated[bool, Opt("limit decay to (1 + n) / (10 + n) at step n; needed in short runs")] = True


class EMA(EncoderMethod):
    """Evaluates and saves a moving average of the encoder's weights; training continues with the unaveraged weights.

    After step n, the average becomes d * average + (1 - d) * weights, with d = min(decay, (1 + n) / (10 + n)),
    or d = decay without ``warmup``. Checkpoints contain the average. Weights that are not trained are not averaged.

    Raises ``InputError`` if an encoder method given after EMA changes which weights are trained, as LoRA does.
    """

    Options = EMAOptions
    summary = "evaluates and saves a moving average of the weights"
    steps: Tensor

    def __init__(self, options: EMAOptions, context: Context) -> None:
        super().__init__(options, context)
        self.source = (context.trained,)  # not a submodule
        self.names = [name for name, each in context.trained.named_parameters() if each.requires_grad]
        for number, parameter in enumerate(self._weights()):
            self.register_buffer(f"average_{number}", parameter.detach().clone())
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def _weights(self) -> list[nn.Parameter]:
        trained = {name: each for name, each in self.source[0].named_parameters() if each.requires_grad}
        if list(trained) != self.names:
            raise InputError(
                "--encoder-method ema: a method after it changed which weights are trained; give ema last, as in "
                "--encoder-method lora --encoder-method ema"
            )
        return list(trained.values())

    def _averages(self) -> list[Tensor]:
        return [self.get_buffer(f"average_{number}") for number in range(len(self.names))]

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the average towards the weights."""
        self.steps += 1
        kept = torch.full((), self.options.decay, device=self.steps.device)
        if self.options.warmup:
            kept = torch.minimum(kept, (1 + self.steps) / (10 + self.steps))
        for average, parameter in zip(self._averages(), self._weights(), strict=True):
            average.lerp_(parameter, (1 - kept).to(average))

    @contextmanager
    def for_evaluation(self) -> Iterator[None]:
        """Returns a context manager in which the encoder has the averaged weights."""
        weights = self._weights()
        with torch.no_grad():
            trained = [parameter.clone() for parameter in weights]
            for average, parameter in zip(self._averages(), weights, strict=True):
                parameter.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for value, parameter in zip(trained, weights, strict=True):
                    parameter.copy_(value)


# Matches the layers of a pooler, which have no gradient if the pooler is not used.
UNUSED = r"(.*\.)?pooler\..*"


class LoRA(EncoderMethod):
    """Replaces the weights W of linear layers with W + alpha / rank * B A, where W is frozen and B starts at 0.

    Only the adapters and, if there is one, the MLP head are trained and stored in checkpoints; modules that follow the
    pooling are not changed. When the encoder is saved, the adapters are added to the weights or, with ``keep``, saved
    alone. ``--merge-with-base WEIGHT`` multiplies B by 1 - WEIGHT for evaluation and saving. A run can be resumed only
    if the files of the base weights are unchanged.

    Raises ``InputError`` if peft is not installed, no layer has a name in ``targets``, or ``keep`` is set and the model
    is itself an adapter.
    """

    Options = LoRAOptions
    summary = "trains low-rank adapters instead of the weights (LoRA, with peft)"

    def __init__(self, options: LoRAOptions, context: Context) -> None:
        super().__init__(options, context)
        peft = import_peft(f"--lora {options.rank}")
        encoder = context.trained
        source = encoder.source
        if options.keep and source.base is not None:
            raise InputError(f"--keep-adapter: {source.name} is an adapter itself; leave --keep-adapter out")
        for folder in (Path(each) for each in (source.path, source.base) if each is not None):
            for path in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
                context.depends_on(path)
        head = encoder.head
        encoder.requires_grad_(False)
        if head is not None:
            head.requires_grad_(True)
        config = peft.LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha or 2 * options.rank,
            lora_dropout=options.dropout,
            target_modules=list(options.targets) or "all-linear",
            exclude_modules=None if encoder.use_trained_pooler else UNUSED,
        )
        try:
            peft.inject_adapter_in_model(config, encoder.backbone)
        except ValueError as error:
            raise InputError(f"lora.targets: {', '.join(options.targets)}: {first_line(error)}") from None
        encoder.adapters = Adapters(config, encoder.source, keep=options.keep)

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns a learning rate of 1e-4, higher than usual because B starts at 0; this rate was not tuned."""
        return {"lr": 1e-4}


class Projector(FeatureMethod):
    """Projects the embeddings before the loss, in training only.

    The layers are: linear (D, 2D), batch normalisation, ReLU, linear (2D, D), batch normalisation without affine
    parameters. Batch statistics are computed over the rows of all views, across all processes and all chunks of
    gradient caching.
    """

    summary = "a projector with batch normalisation, in training only (DiffCSE)"
    other_space = True

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        size = context.trained.embedding_dim
        self.layers = nn.Sequential(
            nn.Linear(size, 2 * size, bias=False),
            nn.BatchNorm1d(2 * size),
            nn.ReLU(),
            nn.Linear(2 * size, size, bias=False),
            nn.BatchNorm1d(size, affine=False),
        )

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the projected views."""
        names = list(views.embeddings)
        projected = self.layers(torch.cat([views[name] for name in names]))
        parts = projected.split([len(views[name]) for name in names])
        return views.replace(embeddings=dict(zip(names, parts, strict=True)))


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


class Template:
    """The token ids that a template puts before and after a sentence.

    Args:
        text: The template; see ``PromptOptions``.
        tokenizer: A tokenizer with a [CLS], a [SEP] and a mask token.

    Raises:
        InputError: If the template does not have one ``{}`` and then one [MASK], or the tokenizer lacks one of the
            three tokens.
    """

    def __init__(self, text: str, tokenizer: Any) -> None:
        if None in (tokenizer.mask_token, tokenizer.cls_token, tokenizer.sep_token):
            raise InputError("--encoder-method prompt: needs a mask, a CLS and a SEP token; use a model like BERT")
        before, place, after = text.partition(PLACE)
        if not place or after.count("[MASK]") != 1 or "[MASK]" in before:
            raise InputError(f"prompt.template: {text!r} must have one {{}} and then one [MASK]")
        after = after.replace("[MASK]", tokenizer.mask_token)
        # The sentence is tokenized by itself, so the space before it is left out; the space after it is kept.
        ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before.rstrip(), after)]
        self.prefix: list[int] = [tokenizer.cls_token_id, *ids[0]]
        self.suffix: list[int] = [*ids[1], tokenizer.sep_token_id]

    def apply(self, tokenizer: Any) -> None:
        """Installs the template in a fast tokenizer, which then adds it to every text and truncates only the text."""
        from tokenizers.processors import TemplateProcessing

        pieces = [
            {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)}
            for name, ids in (("before", self.prefix), ("after", self.suffix))
        ]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="before $A after", special_tokens=pieces)


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

    Raises ``InputError`` if a template is invalid (see ``Template``) or the two templates do not match.
    """

    Options = PromptOptions
    summary = "a template around the sentence, and the state of its mask token (PromptBERT)"

    def __init__(self, options: PromptOptions, context: Context) -> None:
        super().__init__(options, context)
        encoder = context.trained
        self.template = Template(options.template, encoder.tokenizer)
        second = Template(options.positive_template or options.template, encoder.tokenizer)
        if len(second.prefix) != len(self.template.prefix) or second.suffix != self.template.suffix:
            raise InputError(
                "prompt.positive_template: must have as many tokens before the sentence as prompt.template, and the "
                "same tokens after it"
            )
        self.second_prefix = second.prefix
        self.mask_at = len(self.template.prefix) + self.template.suffix.index(encoder.tokenizer.mask_token_id)
        self.template.apply(encoder.tokenizer)
        encoder.template = self
        size = encoder.backbone.config.hidden_size
        dense = nn.Linear(size, size)
        nn.init.normal_(dense.weight, std=getattr(encoder.backbone.config, "initializer_range", 0.02))
        nn.init.zeros_(dense.bias)
        encoder.head = nn.Sequential(dense, nn.Tanh())
        if options.denoise:
            encoder.denoise = self.bias

    @classmethod
    def implies(cls, options: PromptOptions) -> dict[str, Any]:
        """Returns the pooler ``mask`` and, if there is a second template, the hook that applies it to the positives."""
        second = options.positive_template not in ("", options.template)
        return {"pooler": "mask", **({"positive_hook": "second-template"} if second else {})}

    requires = implies

    def bias(self, backbone: Any, tokens: dict[str, Tensor]) -> Tensor:
        """Returns the mask token's hidden state in the bare template, at the position ids of each row: ``(n, D)``."""
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        before, after = len(self.template.prefix), len(self.template.suffix)
        longest = ids.shape[1] - before - after
        suffix = copied_to(torch.tensor(self.template.suffix), ids.device)
        bare = torch.cat([ids[0, :before], suffix]).expand(longest + 1, -1)
        # Row l: the positions of the template around a sentence of l tokens.
        places = torch.arange(before + after, device=ids.device)
        gap = torch.arange(longest + 1, device=ids.device)[:, None] * (places >= before)
        positions = places + gap + first_position(backbone.config)
        states = backbone(input_ids=bare, attention_mask=torch.ones_like(bare), position_ids=positions)
        found: Tensor = states.last_hidden_state[mask.sum(1) - before - after, self.mask_at]
        return found


class PromptHook(Hook):
    """Applies ``prompt.positive_template`` to the positives; implied by ``--encoder-method prompt``."""

    summary = "the second template of PromptBERT; implied by --encoder-method prompt"

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self.prompt: Any = context.trained.template
        if self.prompt is None:
            raise InputError("--positive-hook second-template: belongs to --encoder-method prompt, which was not given")

    def tokens(self, tokens: dict[str, Tensor], step: RowStep) -> dict[str, Tensor]:
        """Returns the tokens with the prefix of the second template."""
        ids = tokens["input_ids"].clone()
        prefix = self.prompt.second_prefix
        ids[:, : len(prefix)] = copied_to(torch.tensor(prefix), ids.device)
        return {**tokens, "input_ids": ids}

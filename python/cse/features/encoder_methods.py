"""Changes to the encoder itself: averaged weights, low-rank adapters, and a projector.

- An exponential moving average of the weights (Polyak and Juditsky 1992), which is evaluated and saved.
- LoRA: low-rank adapters of linear layers (Hu et al. 2021, arXiv:2106.09685), implemented by peft.
- A projector with batch normalisation between the encoder and the loss (DiffCSE; Chuang et al. 2022), which is
  registered as a feature method.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ..errors import InputError, first_line
from ..models.reading.adapters import Adapters, import_peft
from .base import BatchStep, EncoderMethod, FeatureMethod, Views
from .options import LoRAOptions

if TYPE_CHECKING:
    from ..context import Context


@dataclass(frozen=True)
class EMAOptions:
    """Options of the moving average."""

    decay: Annotated[float, Field(ge=0, lt=1, description="fraction of the average kept at each step")] = 0.99
    warmup: Annotated[bool, Field(description="limit decay to (1 + n) / (10 + n) at step n; needed in short runs")] = (
        True
    )


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

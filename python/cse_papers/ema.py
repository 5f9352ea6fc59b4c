"""An exponential moving average of the weights, which is evaluated and saved (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from cse import InputError
from cse.context import ModelContext
from cse.hooks.base import EncoderMethod
from cse.options import Opt


@dataclass(frozen=True)
class EMAOptions:
    """Options of the moving average."""

    decay: Annotated[float, Ge(0), Lt(1), Opt("fraction of the average kept at each step")] = 0.99
    warmup: Annotated[bool, Opt("limit decay to (1 + n) / (10 + n) at step n; needed in short runs")] = True


class EMA(EncoderMethod):
    """Evaluates and saves a moving average of the encoder's weights; training continues with the unaveraged weights.

    After step n, the average becomes d * average + (1 - d) * weights, with d = min(decay, (1 + n) / (10 + n)),
    or d = decay without ``warmup``. Checkpoints contain the average. Weights that are not trained are not averaged.
    """

    Options = EMAOptions
    summary = "evaluates and saves a moving average of the weights"
    recordable = True
    steps: Tensor

    def __init__(self, options: EMAOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        self.source = (context.encoder,)  # not a submodule
        self.names = [name for name, weight in context.encoder.named_parameters() if weight.requires_grad]
        for number, parameter in enumerate(self._weights()):
            self.register_buffer(f"average_{number}", parameter.detach().clone())
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def _weights(self) -> list[nn.Parameter]:
        trained = {name: parameter for name, parameter in self.source[0].named_parameters() if parameter.requires_grad}
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

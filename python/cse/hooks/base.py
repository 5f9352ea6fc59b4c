"""Base classes of feature methods, encoder methods and hooks, and LoRA. This module imports torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from ..encoder.modules import import_peft
from ..errors import InputError, first_line
from ..options import WithOptions
from ..views import BatchStep as BatchStep
from ..views import Role, embedding_output, parts_of
from ..views import RowStep as RowStep
from ..views import Views as Views
from .options import LoRAOptions

if TYPE_CHECKING:
    from ..context import ModelContext


class Method(WithOptions, nn.Module):
    """Base class of feature methods, encoder methods and hooks; checkpoints contain their parameters and buffers.

    Args:
        options: An instance of ``Options``.
        context: The resources of the run; ``context.encoder`` is the sentence encoder.
    """

    recordable: ClassVar[bool] = False
    """See ``cse.losses.base.LossTerm.recordable``."""

    def __init__(self, options: Any, context: ModelContext) -> None:
        super().__init__()
        self.options = options


class FeatureMethod(Method, ABC):
    """Base class of methods that change or add embeddings, between the encoder and the loss.

    A feature method receives the embeddings of the whole batch, which are the same in all processes of the run.
    Examples are batch normalisation, queues of earlier embeddings, and noise negatives. The parameters of the method
    are trained; neither they nor its buffers are saved with the encoder. If a subclass defines ``after_step()``, it is
    called after each step.
    """

    changes: ClassVar[frozenset[Role]] = frozenset(("anchor", "positive", "negative"))
    """Roles of the views that the method changes or adds. If no loss term reads them, the run is refused."""
    other_space: ClassVar[bool] = False
    """Whether the method maps the embeddings to another space, whose dimensions are not the saved ones."""
    encodes: ClassVar[bool] = False
    """Whether the method adds embeddings of an encoder. Another method with ``other_space`` is then refused."""

    @abstractmethod
    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the changed views of a batch; see ``Views.replace`` and ``Views.with_negatives``."""


class EncoderMethod(Method):
    """Base class of methods that change the encoder itself: its tokenizer, or its weights in training or evaluation.

    The method is constructed once the encoder, ``context.encoder``, is loaded, and may change it.
    """

    @classmethod
    def requires(cls, options: Any) -> dict[str, Any]:
        """Returns the settings of the run, by name, without which the method, or one of the options, has no effect."""
        return {}

    def after_step(self) -> None:
        """Called after each step, when the optimizer has updated the weights. Default: does nothing."""

    def for_evaluation(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which the encoder has the weights that are evaluated and saved."""
        return nullcontext()


class Hook(Method):
    """Base class of methods that change the forward pass of a view inside the transformer, separately for each row."""

    def tokens(self, tokens: dict[str, Tensor], step: RowStep) -> dict[str, Tensor]:
        """Returns the changed inputs of the transformer, ``(n, T)`` each. Default: unchanged."""
        return tokens

    def embedded(self, states: Tensor, tokens: dict[str, Tensor], step: RowStep) -> Tensor:
        """Returns the changed output of the embedding layer, ``(n, T, D)``. Default: unchanged."""
        return states

    def layers(self, count: int, step: RowStep) -> list[int]:
        """Returns the indices (0 to ``count - 1``) of the transformer blocks whose inputs ``layer`` changes."""
        return []

    def layer(self, number: int, states: Tensor, tokens: dict[str, Tensor], step: RowStep) -> Tensor:
        """Returns the changed input of a transformer block, ``(n, T, D)``. Default: unchanged."""
        return states


@contextmanager
def hooked(hook: Hook, backbone: nn.Module, tokens: dict[str, Tensor], step: RowStep) -> Iterator[None]:
    """Context manager in which a hook changes the forward pass of a transformer."""
    _, blocks = parts_of(backbone)

    def before(number: int) -> Any:
        def change(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if arguments:
                return (hook.layer(number, arguments[0], tokens, step), *arguments[1:]), named
            return arguments, {**named, "hidden_states": hook.layer(number, named["hidden_states"], tokens, step)}

        return change

    with ExitStack() as stack:
        stack.enter_context(embedding_output(backbone, lambda states: hook.embedded(states, tokens, step)))
        for number in hook.layers(len(blocks), step):
            stack.callback(blocks[number].register_forward_pre_hook(before(number), with_kwargs=True).remove)
        yield


# Matches the layers of a pooler, which have no gradient if the pooler is not used.
UNUSED = r"(.*\.)?pooler\..*"


class LoRA(EncoderMethod):
    """Replaces the weights W of linear layers with W + alpha / rank * B A, where W is frozen and B starts at 0.

    See Hu et al. 2021, arXiv:2106.09685; peft implements the adapters.
    Only the adapters and, if there is one, the MLP head are trained and stored in checkpoints. When the encoder is
    saved, the adapters are added to the weights. ``--merge-with-base WEIGHT`` multiplies B by 1 - WEIGHT for this.
    """

    Options = LoRAOptions
    summary = "trains low-rank adapters instead of the weights (LoRA, with peft)"
    recordable = True

    def __init__(self, options: LoRAOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        peft = import_peft(f"--lora {options.rank}")
        encoder = context.encoder
        source = encoder.source
        for folder in (Path(name) for name in (source.path, source.base) if name is not None):
            for path in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
                context.depends_on(path)
        shapes = [layer.weight.shape for layer in encoder.backbone.modules() if isinstance(layer, nn.Linear)]
        if options.rank > (widest := max(map(min, shapes), default=options.rank)):
            raise InputError(
                f"--lora {options.rank}: the layers of {source.name} have at most {widest} dimensions; use a lower rank"
            )
        head = encoder.head
        encoder.requires_grad_(False)
        if head is not None:
            head.requires_grad_(True)
        config = peft.LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha or 2 * options.rank,
            lora_dropout=options.dropout,
            target_modules=list(options.targets) or "all-linear",
            exclude_modules=UNUSED,
        )
        try:
            peft.inject_adapter_in_model(config, encoder.backbone)
        except ValueError as error:
            raise InputError(f"lora.targets: {', '.join(options.targets)}: {first_line(error)}") from None
        encoder.adapters = "default"  # the name that peft gives them

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns a learning rate of 1e-4, higher than usual because B starts at 0; this rate was not tuned."""
        return {"lr": 1e-4}

"""The encoder of a run: the model, its pooling, its prompt and its MLP head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InputError

if TYPE_CHECKING:
    from ...context import Context
    from ...models.reading.resolve import Source
    from ...models.running.encoder import SentenceEncoder


def check_length(max_length: int, longest: int) -> None:
    """Raises ``InputError`` if the maximum length of a run is more than that of the model."""
    if max_length > longest:
        raise InputError(f"--max-length: {max_length} is more than the {longest} tokens of the model; lower it")


def build_encoder(
    source: Source, context: Context, seed: int, pooler: str, *, keep_head: bool, eval_pooler: str | None
) -> SentenceEncoder:
    """Loads the encoder on the device of the run, and sets ``context.encoder``.

    Seeds PyTorch's generator, which is used only for the
    initial weights of new modules and, in training, for dropout.
    """
    import torch

    from ...models.running.encoder import load_encoder

    torch.manual_seed(seed)
    encoder = load_encoder(source, pooler, keep_head=keep_head, eval_pooler=eval_pooler)
    context.encoder = encoder.to(context.device)
    return context.encoder


def seed_dropout(seed: int, rank: int) -> None:
    """Seeds PyTorch's generator for dropout on a rank above 0; rank 0 continues after the initial weights."""
    import torch

    if rank:
        torch.manual_seed(seed + 2**32 * rank)

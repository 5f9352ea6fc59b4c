"""The encoder of a run: the model, its pooling, its prompt and its MLP head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ...errors import InputError
from .fields import Group, Named, Pooler, Shown

if TYPE_CHECKING:
    from ...context import Context
    from ...models.reading.resolve import Source
    from ...models.running.encoder import SentenceEncoder

DEFAULT_MODEL = "bert-base-uncased"


class Model(Group):
    """Model"""

    model: Annotated[str | None, Shown(default="bert-base-uncased")] = None
    """Model to train: minilm, a folder, or a name on the Hugging Face Hub."""
    pooler: Annotated[Pooler | None, Shown("NAME", default="the model's own, else cls")] = None
    """Pooling of token vectors: cls, cls_before_pooler, avg, avg_top2, avg_first_last, avg_embed_last, max,
    mean_sqrt_len_tokens, weightedmean, lasttoken or mask.

    See ``cse.models.pooling.pool``."""
    eval_pooler: Annotated[Pooler | None, Shown("NAME", default="the same as --pooler")] = None
    """Pooling of the saved model and of the evaluations, if it differs from the pooling in training (ConSERT)."""
    prompt: Annotated[str | None, Shown("NAME|TEXT|auto", default="the model's default prompt")] = None
    """Text to put before each sentence.

    The name of one of the model's prompts, or a text. With ``pairs``, also ``auto``, which stands for the model's
    prompts for queries and for documents. See ``cse.models.reading.prompts``."""
    keep_head: Annotated[bool | None, Shown(default="yes with --pairs")] = None
    """Keep the MLP of --pooler cls in the saved model.

    Supervised SimCSE keeps it; otherwise the MLP is used only in training."""
    preset: Annotated[str | None, Shown("NAME"), Named("cse.training.settings.precedence:preset_names")] = None
    """A published recipe, such as simcse-bert-base or una-bert-base; or adapt, the defaults for sentence encoders;
    or adapt-queries, for the rows of cse mine --by hybrid."""


class ResolvedModel(Model):
    """The settings that have a value in every run."""

    model: str
    pooler: Pooler
    keep_head: bool


def describe_model(settings: Model) -> dict[str, str]:
    """Returns the name of the model and its pooling."""
    other = f" in training, {settings.eval_pooler} in evaluation" if settings.eval_pooler else ""
    return {"model": f"{settings.model}, pooler {settings.pooler}{other}"}


def check_length(max_length: int, source: Source) -> None:
    """Raises ``InputError`` if the maximum length of a run is more than that of the model."""
    if max_length > source.max_length:
        raise InputError(
            f"--max-length: {max_length} is more than the {source.max_length} tokens of the model; lower it"
        )


def build_encoder(settings: ResolvedModel, source: Source, context: Context, seed: int) -> SentenceEncoder:
    """Loads the encoder on the device of the run, and sets ``context.encoder``.

    Seeds PyTorch's generator, which is used only for
    the initial weights of new modules and, in training, for dropout.
    """
    import torch

    from ...models.running.encoder import load_encoder

    torch.manual_seed(seed)
    encoder = load_encoder(source, settings.pooler, keep_head=settings.keep_head, eval_pooler=settings.eval_pooler)
    context.encoder = encoder.to(context.device)
    return context.encoder


def seed_dropout(seed: int, rank: int) -> None:
    """Seeds PyTorch's generator for dropout on a rank above 0; rank 0 continues after the initial weights."""
    import torch

    if rank:
        torch.manual_seed(seed + 2**32 * rank)

"""The encoder of a run: the model, its pooling, its prompt and its MLP head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from ...errors import InputError
from .fields import Group, Named, NotNegative, Pooler, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...background import ProgressCallback
    from ...context import Context
    from ...models.reading.resolve import Source
    from ...models.running.encoder import SentenceEncoder

DEFAULT_MODEL = "bert-base-uncased"
BLOCK = 16384
"""Number of rows whose words are counted at a time."""


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
    add_tokens: NotNegative = 0
    """Add the N words of the corpus that save most tokens to the tokenizer, as whole words.

    The embedding of an added word starts as the mean of the embeddings of its pieces, and is then trained. The words
    come from the rows to train on; ``cse doctor --model MODEL CORPUS`` lists such words. See
    ``cse.models.vocabulary``."""
    preset: Annotated[str | None, Shown("NAME"), Named("cse.training.settings.precedence:preset_names")] = None
    """A published recipe, such as simcse-bert-base or una-bert-base; or adapt, the defaults for sentence encoders;
    or adapt-queries, for the rows of cse mine --by hybrid."""


class ResolvedModel(Model):
    """The settings that have a value in every run."""

    model: str
    pooler: Pooler
    keep_head: bool


def describe_model(settings: Model, added: Sequence[str] = ()) -> dict[str, str]:
    """Returns the name of the model and its pooling, and the words ``added`` to its tokenizer, if any."""
    other = f" in training, {settings.eval_pooler} in evaluation" if settings.eval_pooler else ""
    found = {"model": f"{settings.model}, pooler {settings.pooler}{other}"}
    if added:
        more = ", ..." if len(added) > 5 else ""
        found["added tokens"] = f"{len(added):,} ({', '.join(added[:5])}{more})"
    return found


def check_length(max_length: int, source: Source) -> None:
    """Raises ``InputError`` if the maximum length of a run is more than that of the model."""
    if max_length > source.max_length:
        raise InputError(
            f"--max-length: {max_length} is more than the {source.max_length} tokens of the model; lower it"
        )


def build_encoder(
    settings: ResolvedModel, source: Source, context: Context, seed: int, progress: ProgressCallback
) -> SentenceEncoder:
    """Loads the encoder on the device of the run, and sets ``context.encoder``.

    ``progress`` is called while the words of a corpus are counted. Seeds PyTorch's generator, which is used only for
    the initial weights of new modules and, in training, for dropout.
    """
    import torch

    from ...models.running.encoder import load_encoder

    torch.manual_seed(seed)
    encoder = load_encoder(source, settings.pooler, keep_head=settings.keep_head, eval_pooler=settings.eval_pooler)
    if settings.add_tokens:
        _add_tokens(settings.add_tokens, encoder, context, progress)
    context.encoder = encoder.to(context.device)
    return context.encoder


def _add_tokens(number: int, encoder: SentenceEncoder, context: Context, progress: ProgressCallback) -> None:
    """Adds the words of the rows to train on that save most tokens to the tokenizer and to the word embeddings."""
    from ...models.vocabulary import add_words, count_words

    where, name = f"--add-tokens {number}", encoder.source.name
    columns = [context.corpus] if context.pairs is None else context.pairs.corpora
    texts = [each for each in columns if each is not None]
    total = len(texts) * len(context.rows)

    def blocks() -> Iterator[Sequence[str]]:
        done = 0
        for column in texts:
            for start in range(0, len(context.rows), BLOCK):
                block = column.take(context.rows[start : start + BLOCK])
                yield block
                done += len(block)
                progress("words", done, total, "sentences")

    words = count_words(encoder.tokenizer, blocks(), where).most_saving(number, name)
    add_words(encoder.tokenizer, encoder.backbone, words, where, summed=encoder.source.static)
    encoder.added_tokens = tuple(each.word for each in words)


def check_added(encoder: SentenceEncoder) -> None:
    """Raises ``InputError`` if tokens were added to a model whose word embeddings are not trained."""
    if encoder.added_tokens and not encoder.backbone.get_input_embeddings().weight.requires_grad:
        raise InputError(
            "--add-tokens: adds word embeddings, which an encoder method of the run does not train; leave out "
            "--add-tokens, or the method (such as --lora)"
        )


def seed_dropout(seed: int, rank: int) -> None:
    """Seeds PyTorch's generator for dropout on a rank above 0; rank 0 continues after the initial weights."""
    import torch

    if rank:
        torch.manual_seed(seed + 2**32 * rank)

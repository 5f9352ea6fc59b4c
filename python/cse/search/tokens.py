"""Late interaction: ranks the first rows again by the vectors of their tokens (MaxSim).

MaxSim of a query and a document is the mean over the tokens of the query of the largest cosine with a token of the
document, weighted by the tokens' inverse document frequency log(1 + (n - df + 0.5) / (df + 0.5)) (Khattab and Zaharia
2020, arXiv:2004.12832, without training for it and with these weights). Token vectors are the last hidden states of the
encoder. The first rows are ranked by (1 - SHARE) z(score) + SHARE z(MaxSim), where z(s) are the scores of these rows
minus their mean, divided by their standard deviation.

The vectors of the candidates are computed when they are needed, or, with ``SearchIndex.build(..., tokens=D)``, stored
in the index: projected to D dimensions, scaled to unit length and rounded to int8. The projection contains the first D
principal axes of the vectors of the pieces in the vocabulary of the model, each encoded alone, so it depends on the
model only, and not on the rows or on the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..models.base import unit, unwrapped
from .hybrid import standardised
from .vectors import Doubles, Floats, TokenVectors

if TYPE_CHECKING:
    from ..models.running.inference import Encoder

Numbers = npt.NDArray[np.int64]
Progress = Callable[[int], None]

SHARE = 0.3
# Default number of rows that are ranked again.
RERANKED = 100


def check_tokens(encoder: Encoder) -> Any:
    """Returns the transformer encoder of an encoder; raises ``InputError`` if it has none."""
    from ..models.modules import Transformer
    from ..models.running.inference import Encoder

    encoder = unwrapped(encoder)
    if not isinstance(encoder, Encoder) or not isinstance(encoder[0], Transformer) or encoder.tokenizer is None:
        raise InputError("--rerank, --tokens: the encoder has no vectors of tokens; use a transformer, or leave it out")
    return encoder


def encode_tokens(
    encoder: Encoder,
    texts: Sequence[str],
    basis: Floats | None = None,
    *,
    prompt: str = "",
    batch_size: int = 64,
    progress: Progress | None = None,
) -> list[TokenVectors]:
    """Returns the vectors of the tokens of texts.

    Args:
        encoder: An encoder with a transformer.
        texts: The texts; they are truncated as in ``Encoder.encode``.
        basis: ``(H, D)`` projection of the hidden states; None: they are not projected.
        prompt: Text that is put before each of the texts.
        batch_size: Texts per forward pass.
        progress: Called with the number of texts encoded since its last call.
    """
    from ..models.running.inference import repaired
    from ..models.templates import templated
    from ..models.tokens import token_lists

    model = check_tokens(encoder)
    with templated(model.tokenizer, prompt) as before:
        tokens = token_lists(model.tokenizer, [before + repaired(text) for text in texts], model.max_seq_length)
    return _encode(encoder, tokens, basis, batch_size, progress)


def _encode(
    encoder: Encoder,
    tokens: dict[str, list[list[int]]],
    basis: Floats | None,
    batch_size: int,
    progress: Progress | None = None,
) -> list[TokenVectors]:
    import torch

    from ..models.device import autocast, copied_to, uncompiled
    from ..models.running.acceleration import batches_by_length
    from ..models.tokens import pad

    model = check_tokens(encoder)
    special = np.array(model.tokenizer.all_special_ids)
    encoded: list[TokenVectors | None] = [None] * len(tokens["input_ids"])
    with torch.inference_mode(), autocast(str(encoder.device), encoder.precision), uncompiled():
        for rows in batches_by_length(tokens["input_ids"], batch_size):
            batch = pad(model.tokenizer, tokens, rows.tolist())
            states = model.token_states({key: copied_to(value, encoder.device) for key, value in batch.items()})
            states = states.float().cpu().numpy()
            for row, mask, values in zip(rows.tolist(), batch["attention_mask"].numpy(), states, strict=True):
                ids = np.array(tokens["input_ids"][row], dtype=np.int64)
                kept = ~np.isin(ids, special)
                vectors = values[mask > 0][kept]
                encoded[row] = TokenVectors(ids[kept], unit(vectors if basis is None else vectors @ basis))
            if progress:
                progress(len(rows))
    return [item for item in encoded if item is not None]


def principal_axes(encoder: Encoder, dimensions: int) -> Floats:
    """Returns the first principal axes of the vectors of all pieces in the vocabulary, ``(H, dimensions)``.

    Raises ``InputError`` if the states have fewer dimensions.
    """
    from ..models.tokens import TOKENIZING

    model = check_tokens(encoder)
    width = model[0].config.hidden_size
    if not 1 <= dimensions <= width:
        raise InputError(f"--tokens {dimensions}: the vectors of this model's tokens have {width}; give 1 to {width}")
    special = set(model.tokenizer.all_special_ids)
    ids = [number for number in range(len(model.tokenizer)) if number not in special]
    total = np.zeros((width, width))
    with TOKENIZING:
        around = model.tokenizer("")["input_ids"]  # the special tokens of an empty text
    for start in range(0, len(ids), 4096):
        texts = [[*around[:1], number, *around[1:]] for number in ids[start : start + 4096]]
        tokens = {"input_ids": texts}
        if "token_type_ids" in model.tokenizer.model_input_names:
            tokens["token_type_ids"] = [[0] * len(text) for text in texts]
        vectors = [item.vectors for item in _encode(encoder, tokens, None, 512)]
        states = np.concatenate(vectors).astype(np.float64)
        total += states.T @ states
    values, axes = np.linalg.eigh(total)
    order = np.argsort(-values, kind="stable")[:dimensions]
    axes = axes[:, order] * np.where(axes[np.abs(axes[:, order]).argmax(0), order] < 0, -1, 1)
    return np.ascontiguousarray(axes, dtype=np.float32)


def max_sim(query: TokenVectors, documents: Sequence[TokenVectors], idf: Doubles) -> Doubles:
    """Returns MaxSim of a query and each document, ``(documents,)`` float64; 0 for one without tokens.

    Args:
        query: The tokens of the query.
        documents: The tokens of the documents.
        idf: ``(vocabulary,)`` inverse document frequency of each token.
    """
    weights = idf[query.ids]
    total = weights.sum()
    scores = np.zeros(len(documents))
    if total > 0:
        for number, document in enumerate(documents):
            if len(document.ids):
                scores[number] = (document.vectors @ query.vectors.T).max(axis=0) @ weights / total
    return scores


def combined(scores: Doubles, similarities: Doubles) -> Doubles:
    """Returns (1 - SHARE) z(scores) + SHARE z(similarities)."""
    result: Doubles = (1 - SHARE) * standardised(scores) + SHARE * standardised(similarities)
    return result


def inverse_document_frequency(counts: Numbers, total: int) -> Doubles:
    """Returns log(1 + (total - df + 0.5) / (df + 0.5)) of each token, given the numbers of rows df that contain it."""
    result: Doubles = np.log(1 + (total - counts + 0.5) / (counts + 0.5))
    return result

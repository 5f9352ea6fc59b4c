"""Static encoders: one vector per token, whose mean approximates the embedding of a text by a transformer.

``export_static`` writes the format of model2vec (https://github.com/MinishLab/model2vec). As there, the first vectors
are the embeddings of the single tokens, minus their mean, times weights that fall with the frequency of a token, here
in the corpus (SIF; Arora, Liang and Ma 2017). They are then fitted to the embeddings of the texts of the corpus, by
ridge regression towards the first vectors, and rotated to principal components.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..data.corpus import Corpus
from ..errors import InputError
from ..io import file_mode, fresh_folder
from .base import unit
from .encoder import Encoder
from .modules import Transformer
from .resolve import MINILM
from .saving import public_name
from .taught import LABELS, taught_of

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from tokenizers import Tokenizer

NOT_INSTALLED = "model2vec is not installed; run pip install 'cse[static]'"
# Values chosen in benches/static.py; of a corpus with more than MAX_ROWS rows, evenly spaced ones are encoded.
SMOOTHING, RIDGE = 1e-3, 0.05
MAX_ROWS = 50_000
ITERATIONS = 100
TOLERANCE = 1e-4

Floats = npt.NDArray[np.float32]
Counting = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class StaticExported:
    """The result of ``export_static``."""

    folder: str
    bytes: int
    tokens: int
    embedding_dim: int
    rows: int
    """Number of rows of the corpus to which the vectors were fitted."""
    cosine: float
    """Mean cosine between the fitted embeddings of these rows and the encoder's, minus the latter's mean."""


def export_static(
    encoder: Encoder,
    corpus: Corpus,
    output: str,
    *,
    dims: int | None = None,
    batch_size: int = 64,
    counting: Counting | None = None,
) -> StaticExported:
    """Distils an encoder into a static encoder for texts like a corpus."""
    check_static(output)
    from model2vec.persistence import save_pretrained

    model, width = encoder.given[0], encoder.embedding_dim
    name = "sentence-transformers/all-MiniLM-L6-v2" if model == MINILM else public_name(model)
    if dims is not None and not 1 <= dims <= width:
        raise InputError(f"--dims {dims}: the embeddings of this model have {width} dimensions; give 1 to {width}")
    filled = corpus.filled()
    texts = corpus.take(filled[np.linspace(0, len(filled) - 1, min(len(filled), MAX_ROWS)).astype(np.int64)])
    tokenizer, special = static_tokenizer(encoder)
    design = token_counts(tokenizer, texts, special)
    known = np.flatnonzero(design.getnnz(axis=1))
    if len(known) < 2:
        raise InputError("--corpus: fewer than 2 of its rows have tokens; give the texts that are to be encoded")
    texts, design = [texts[row] for row in known.tolist()], design[known]
    count = counting or (lambda label, total, unit: nullcontext(lambda more: None))
    pieces = piece_texts(tokenizer, special)
    with count("encoding tokens", sum(bool(piece.strip()) for piece in pieces), "tokens") as more:
        alone = encoder.encode(pieces, prompt="", batch_size=batch_size, progress=more)
    with count("encoding the corpus", len(texts), "rows") as more:
        targets = encoder.encode_document(texts, batch_size=batch_size, progress=more)
    prior, weights = first_vectors(alone, design)
    vectors, made, cosine = fit(prior, weights, design, targets)
    _, axes = np.linalg.eigh(made.T.astype(np.float64) @ made)  # the principal axes, the last one is the largest
    vectors = (vectors @ axes[:, ::-1].astype(np.float32))[:, :dims]
    config: Any = {"model_type": "model2vec", "architectures": ["StaticModel"], "tokenizer_name": name}
    config |= {"hidden_dim": vectors.shape[1], "apply_pca": vectors.shape[1], "sif_coefficient": SMOOTHING}
    if columns := taught_of(encoder).columns:
        config |= {LABELS: [{"column": column, "texts": texts} for column, texts in columns]}
    config |= {"pooling": "mean", "normalize": True, "max_length": None, "seq_length": 1_000_000}
    # No licence: the encoder's is not known here, and model2vec would write its own.
    card: Any = {"base_model_name": name, "model_name": Path(output).name, "language": None, "license": None}
    with fresh_folder(Path(output)) as fresh:
        save_pretrained(fresh, vectors.astype(np.float16), tokenizer, config, **card)
        for path in fresh.iterdir():
            path.chmod(file_mode())  # safetensors writes a file that only its owner can read
        size = sum(path.stat().st_size for path in fresh.iterdir())
    return StaticExported(output, size, len(vectors), vectors.shape[1], len(texts), cosine)


def check_static(output: str) -> None:
    """Raises ``InputError`` if model2vec is not installed or the folder exists."""
    try:
        import model2vec  # noqa: F401
    except ImportError:
        raise InputError(f"cse export --static: {NOT_INSTALLED}") from None
    if Path(output).exists():
        raise InputError(f"-o {output}: exists; name a new folder")


def static_tokenizer(encoder: Encoder) -> tuple[Tokenizer, set[int]]:
    """Returns a copy of an encoder's tokenizer that neither pads nor adds special tokens, and its special tokens."""
    from tokenizers import Tokenizer

    own = encoder.tokenizer if isinstance(encoder[0], Transformer) else None
    if own is None or not hasattr(own, "backend_tokenizer"):
        raise InputError(
            f"cse export --static: {encoder.given[0]} has no transformer with a fast tokenizer to distil; name a model "
            "that has one, such as minilm (a static encoder needs no export)"
        )
    settings = json.loads(own.backend_tokenizer.to_str())
    tokenizer = Tokenizer.from_str(json.dumps(settings | {"post_processor": None, "padding": None, "truncation": None}))
    return tokenizer, set(own.all_special_ids)


def token_counts(tokenizer: Tokenizer, texts: list[str], left_out: set[int]) -> csr_matrix:
    """Returns how often each token occurs in each text, ``(len(texts), V)`` float32."""
    from scipy.sparse import csr_matrix

    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    columns = np.array([token for ids in rows for token in ids], dtype=np.int64)
    starts = np.cumsum([0, *map(len, rows)])
    values = (~np.isin(columns, list(left_out))).astype(np.float32)
    counts = csr_matrix((values, columns, starts), shape=(len(texts), tokenizer.get_vocab_size()))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts


def piece_texts(tokenizer: Tokenizer, left_out: set[int]) -> list[str]:
    """Returns the text of each token, without the marks of pieces inside words; empty for ``left_out``."""
    prefix = json.loads(tokenizer.to_str())["model"].get("continuing_subword_prefix") or ""
    texts = []
    for token in range(tokenizer.get_vocab_size()):
        piece = "" if token in left_out else tokenizer.id_to_token(token) or ""
        inside = bool(prefix) and piece.startswith(prefix) and piece != prefix
        texts.append(piece[len(prefix) :] if inside else tokenizer.decode([token]) if piece else "")
    return texts


def first_vectors(alone: Floats, design: csr_matrix) -> tuple[Floats, Floats]:
    """Returns the vectors before the fit, ``(V, D)``, and the weights of the tokens, ``(V,)``.

    The weight of a token is SMOOTHING / (SMOOTHING + its share among all tokens of the corpus). ``alone`` holds the
    embeddings of the single tokens, ``(V, D)``, and ``design`` their counts in the texts, ``(n, V)``.
    """
    counts = np.asarray(design.sum(axis=0), dtype=np.float64).ravel()
    weights = (SMOOTHING / (SMOOTHING + counts / counts.sum())).astype(np.float32)
    vectors, filled = unit(alone), np.any(alone, axis=1)
    vectors -= vectors[filled].mean(axis=0)
    return np.where(filled.reshape(-1, 1), vectors, 0) * weights[:, None], weights


def fit(prior: Floats, weights: Floats, design: csr_matrix, targets: Floats) -> tuple[Floats, Floats, float]:
    """Fits token vectors to the embeddings of texts.

    With a_i the counts of text i, divided by the length of their combination of the rows of ``prior``, and y_i its
    embedding of unit length, minus the mean of these, scaled to unit length, the result minimises over W

        sum_i |a_i W - y_i|^2 + lambda sum_t |(W_t - prior_t) / weights_t|^2,  lambda = RIDGE mean_i |a_i|^2,

    by the method of conjugate gradients. Vectors of tokens that do not occur remain unchanged.
    Returns W, ``(V, D)``, the embeddings of the texts, ``(n, D)``, of unit length, and their mean cosine with y_i.
    """
    from scipy.sparse import diags

    wanted = unit(targets)
    wanted = unit(wanted - wanted.mean(axis=0))
    used = np.unique(design.indices)
    lengths = np.linalg.norm(design @ prior, axis=1)
    rows = diags(1 / np.where(lengths > 1e-6, lengths, np.inf)).astype(np.float32) @ design[:, used]
    strength = RIDGE * float(rows.multiply(rows).sum()) / len(wanted)
    scaled = (rows @ diags(weights[used])).tocsr()
    change = solve(scaled, wanted - rows @ prior[used], strength)
    vectors = prior.copy()
    vectors[used] += weights[used, None] * change
    made = unit(design @ vectors)
    return vectors, made, float((made * wanted).sum(axis=1).mean())


def solve(matrix: csr_matrix, right: Floats, strength: float) -> Floats:
    """Returns X that minimises |matrix X - right|^2 + strength |X|^2, by conjugate gradients for all columns."""
    transposed = matrix.T.tocsr()
    residual = transposed @ right
    solution, direction = np.zeros_like(residual), residual.copy()
    old = first = (residual**2).sum(axis=0)
    for _ in range(ITERATIONS):
        if (old <= TOLERANCE**2 * first).all():
            break
        image = transposed @ (matrix @ direction) + np.float32(strength) * direction
        step = old / np.maximum((direction * image).sum(axis=0), np.finfo(np.float32).tiny)
        solution += step * direction
        residual -= step * image
        new = (residual**2).sum(axis=0)
        direction = residual + new / np.maximum(old, np.finfo(np.float32).tiny) * direction
        old = new
    return solution

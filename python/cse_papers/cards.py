"""CARDS: words in another case as positives, retrieved sentences as negatives (Wang et al. 2022, arXiv:2206.02457)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Gt, Le

from cse.augment.base import Draws, Edit
from cse.context import TextContext
from cse.encoder.base import unit
from cse.identity import first_rows
from cse.options import Opt
from cse.progress import counting

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Texts that are encoded in one call.
BLOCK = 16384
# Maximum number of cosines in memory at a time (512 MB).
COSINES = 1 << 27
# Maximum number of sentences whose neighbours are searched for together.
TOGETHER = 1024


@dataclass(frozen=True)
class SwitchCaseOptions:
    """Options of switch-case; the defaults are those of the released command for RoBERTa-base."""

    probability: Annotated[float, Gt(0), Le(1), Opt("probability with which the case of a word is switched")] = 0.05
    variant: Annotated[
        Literal["v1", "v2"],
        Opt(
            "v2: words are drawn independently; v1: their number is the probability times that of all words, at least 1"
        ),
    ] = "v2"


class SwitchCase(Edit):
    """Switches the case of the first letter of random words, which changes their word pieces but not their meaning.

    Words are separated by white space. With ``variant="v2"`` (the paper), each word is drawn independently with the
    given probability, so that a short sentence often stays unchanged. With ``variant="v1"``, max(1, round(probability *
    n)) words of a sentence of n words are drawn among those that can be switched, or all of them if there are fewer. A
    word can be switched if its first character is a letter that has another case. Both variants have the names of the
    released code, ``switch_case_method``.

    Differences from the released code:

    - The sentence is edited before it is tokenized, and truncated afterwards; in the released code, the truncated
      tokens are turned into text, edited and tokenized again, without truncation.
    - White space is kept, and with ``v1``, words in scripts without case are never drawn.
    - The rules that depend on how the word pieces change (``substitution``, ``retokenization``) do not exist.

    A tokenizer that lower-cases texts, such as that of ``bert-base-uncased``, gives the edited sentence the same tokens
    as the original. The method then has no effect: all positives count as unchanged in the log, and are those of
    ``--positive dropout``.
    """

    Options = SwitchCaseOptions
    summary = "switches the case of words (CARDS); has no effect on a tokenizer that lower-cases texts"

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[str]:
        starts = [[match.start() for match in re.finditer(r"\S+", text)] for text in texts]
        keys = draws.uniform(rows, "switch-case", max(map(len, starts), default=0))
        edited = []
        for text, places, u in zip(texts, starts, keys, strict=True):
            letters, u = list(text), u[: len(places)]
            if self.options.variant == "v1":
                most = max(1, round(len(places) * self.options.probability))
                order = np.argsort(u, kind="stable")
            else:
                most, order = len(places), np.flatnonzero(u < self.options.probability)
            cased = [places[word] for word in order.tolist() if switched(text[places[word]]) != text[places[word]]]
            for place in cased[:most]:
                letters[place] = switched(text[place])
            edited.append("".join(letters))
        return edited


def switched(letter: str) -> str:
    """Returns a letter in the other case; any other character is returned as it is."""
    if not letter.isalpha():
        return letter
    return letter.upper() if letter.islower() else letter.lower()


@dataclass(frozen=True)
class RetrievedOptions:
    """Options of retrieved negatives; the default number is that of the released command for RoBERTa-base."""

    model: Annotated[str, Opt("encoder whose cosines determine the nearest rows; empty: the model before training")] = (
        ""
    )
    nearest: Annotated[
        int, Ge(2), Opt("number of nearest rows, with the sentence itself, from which the negative is drawn")
    ] = 65


class Retrieved(Edit):
    """Draws the hard negative of a sentence from its nearest rows in the corpus; for ``--negative``.

    The rows that are trained on are ranked by their cosine with the sentence under a frozen encoder, ``model``, with
    its own pooling and without dropout. The sentence itself has rank 1, and the negative is drawn uniformly from ranks
    2 to ``nearest``, anew in each epoch. Rows with equal texts (``cse.identity.row_keys``) count as one row, so that a
    sentence never is its own negative, and a text that occurs often is not drawn more often than others. The run's
    encoder encodes the negatives with gradients, and the negative of one sentence is a negative of all anchors of the
    batch, as in the released code (``dyn_knn``, ``sample_k=1``, ``share_dyn_knn``, ``knn_metric=cos``).

    All texts are encoded, and the nearest rows of all of them are found, once before training, by every process, with
    all pairs of rows compared on the run's device. Then ``(texts, nearest - 1)`` int32 row numbers are kept. While the
    nearest rows are found, the embeddings are also in memory, in float32. The time of this search grows with the square
    of the number of texts: about 1.5e15 operations for a million texts of 768 dimensions. Unlike ``cse mine``, which
    writes triples for labelled pairs to a file, there is a new negative in each epoch, and no label.

    Differences from the released code:

    - There, an anchor is not compared with the negative of another sentence of the batch if that negative is the
      anchor's own row. Here, it is; with batches of B out of n rows, this concerns a fraction of about B / n of the
      anchors.
    - The encoder reads whole texts up to its own maximum length, instead of 32 tokens. A plain model of transformers is
      mean-pooled, as in the released script that computes the vectors (``data/datasets/simcse_utils.py``).
    - Vectors are in float32 instead of float16.
    """

    Options = RetrievedOptions
    summary = "draws hard negatives from the nearest rows of the corpus (CARDS)"

    def __init__(self, options: RetrievedOptions, context: TextContext) -> None:
        super().__init__(options, context)
        from cse import Encoder

        self.corpus = context.corpus
        every = self.corpus.filled() if context.pairs is None else context.pairs.complete()
        keys = self.corpus.row_keys()
        self.pool = first_of_each_text(context.rows, keys)
        """``(P,)`` rows that may be drawn: of the rows to train on, the first one with each text, ascending."""
        # Held-out rows get negatives, too (for the statistics of the log), but are never drawn.
        asked = np.concatenate([self.pool, first_of_each_text(np.setdiff1d(every, context.rows), keys)])
        # Every process of a run computes the same; only the first one shows the progress.
        silent: Any = nullcontext(lambda more: None)
        shows: Any = counting if context.part(2**20).start == 0 else lambda *_: silent
        encoder = Encoder(options.model or context.model, device=context.device)
        context.models.append(options.model or context.model)
        vectors = np.empty((len(asked), encoder.width), dtype=np.float32)
        with shows("encoding for --negative retrieved", len(asked), "texts") as advance:
            for start in range(0, len(asked), BLOCK):
                part = asked[start : start + BLOCK]
                vectors[start : start + BLOCK] = unit(encoder.encode(self.corpus.take(part), progress=advance))
        del encoder
        with shows("nearest rows", len(asked), "texts") as advance:
            self.near = nearest_others(vectors, len(self.pool), options.nearest - 1, context.device, advance)
            """``(n, k)`` int32: for each text, the positions of its nearest rows in ``pool``."""
        order = np.argsort(keys[asked])
        places = order[np.searchsorted(keys[asked], keys[every], sorter=order)]
        self.place = np.full(len(self.corpus), len(asked), dtype=np.int32)
        """``(rows of the corpus,)`` positions in ``near``; that of a row without a text is out of range."""
        self.place[every] = places

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[str]:
        near = self.near[self.place[rows]]
        drawn = (draws.uniform(rows, "retrieved")[:, 0] * near.shape[1]).astype(np.int64)
        return self.corpus.take(self.pool[near[np.arange(len(rows)), drawn]])


def first_of_each_text(rows: Rows, keys: npt.NDArray[np.uint64]) -> Rows:
    """Returns the first of the rows with each row key, in the order of ``rows``; ``keys`` are those of all rows."""
    return rows[first_rows(keys[rows])]


def nearest_others(
    vectors: Floats, pool: int, count: int, device: str, advance: Callable[[int], None]
) -> npt.NDArray[np.int32]:
    """Returns the nearest vectors of each vector among the first ``pool``: ``(n, min(count, pool - 1))``, ascending.
    The vectors ``(n, D)`` have unit length; a vector is no neighbour of itself. ``advance`` gets the number of vectors
    done since its last call."""
    count = min(count, pool - 1)
    neighbours = np.empty((len(vectors), count), dtype=np.int32)
    together = max(1, min(TOGETHER, COSINES // pool))
    x = torch.from_numpy(vectors).to(device)
    for start in range(0, len(vectors), together):
        part = x[start : start + together]
        cosines = part @ x[:pool].T
        own = torch.arange(start, max(start, min(start + len(part), pool)), device=x.device)
        cosines[own - start, own] = -torch.inf
        near = cosines.topk(count, dim=1, sorted=False).indices.sort(dim=1).values
        neighbours[start : start + together] = near.cpu().numpy()
        advance(len(part))
    return neighbours

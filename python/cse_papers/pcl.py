"""PCL: several edited forms of each sentence as positives, and a peer encoder (Wu et al. 2022, arXiv:2201.12093)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Gt, Le, MinLen
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, normalize, softmax

from cse import InputError
from cse.augment.base import Draws, Edit
from cse.context import ModelContext, TextContext
from cse.encoder.modules import applied
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views

from .esimcse import TokenEdit

# Stands for -inf as a logit, so that rows without a valid column have finite gradients.
REMOVED = -1e30

Kind = Literal["shuffle", "reverse", "delete", "repeat", "dropout"]


@dataclass(frozen=True)
class DiverseOptions:
    """Options of the edits; the defaults are those of the released code."""

    edits: Annotated[
        tuple[Kind, ...],
        MinLen(1),
        Opt("the edits, each of which makes one view; dropout: the sentence under another dropout mask"),
    ] = ("shuffle", "reverse", "delete", "repeat", "shuffle", "reverse", "delete", "repeat")
    rate: Annotated[float, Gt(0), Le(1), Opt("fraction of the tokens that are deleted or repeated")] = 0.2
    longest: Annotated[
        int, Ge(0), Opt("tokens, without special tokens, beyond which a sentence gets no repeated tokens; 0: no limit")
    ] = 0


class Diverse(TokenEdit):
    """Makes several edited forms of each sentence: views ``edited``, ``edited_2``, and so on, one for each edit.

    The positive is the original under another dropout mask; contrastive losses do not read the edited sentences. The
    edits change the tokens (word pieces) of the truncated sentence, and leave special tokens in place, as in the
    released code. In a sentence of n tokens, with k = round(``rate`` * n):

    - ``shuffle`` orders the tokens randomly, ``reverse`` reverses their order;
    - ``delete`` k times chooses a token, and deletes the first token that is equal to it;
    - ``repeat`` k times chooses a token, and inserts a copy of it at a random position, as long as the sentence has
      fewer than ``longest`` tokens;
    - ``dropout`` leaves the sentence as it is.

    An edit that occurs twice draws different random numbers. The released code never makes a sentence longer than the
    maximum length, which is ``longest`` = maximum length - 2 for BERT and RoBERTa; the preset sets it. As an edit of
    texts, in the examples before training, the method changes words.
    """

    Options = DiverseOptions
    summary = "several edited forms of each sentence, for --loss-term pcl (PCL)"

    def __init__(self, options: DiverseOptions, context: TextContext) -> None:
        super().__init__(options, context)
        self.number = 0
        """Number of the edit that this object applies."""
        self.others = [copy.copy(self) for _ in options.edits[1:]]
        for number, other in enumerate(self.others, 1):
            other.number = number

    @classmethod
    def is_positive(cls, options: DiverseOptions) -> bool:
        return False

    def further(self) -> Sequence[Edit]:
        return self.others

    def changes(self, count: int) -> int:
        """Returns the number of tokens that are deleted or repeated in a sentence of ``count`` tokens."""
        options: DiverseOptions = self.options
        changed = round(options.rate * count)
        if options.edits[self.number] == "repeat" and options.longest:
            return max(0, min(changed, options.longest - count))
        return changed

    def most_tokens(self, count: int) -> int:
        if self.options.edits[self.number] != "repeat":
            return count
        return max(fewer + self.changes(fewer) for fewer in range(count + 1))

    def edit_tokens(self, ids: Sequence[list[Any]], rows: npt.NDArray[np.int64], draws: Draws) -> list[list[Any]]:
        kind: Kind = self.options.edits[self.number]
        if kind == "dropout":
            return [list(tokens) for tokens in ids]
        if kind == "reverse":
            return [list(tokens[::-1]) for tokens in ids]
        lengths = [len(tokens) if kind == "shuffle" else self.changes(len(tokens)) for tokens in ids]
        most = max(lengths, default=0)
        chosen = draws.uniform(rows, f"diverse {self.number}", most)
        if kind == "shuffle":
            return [
                [tokens[place] for place in np.argsort(u[: len(tokens)], kind="stable").tolist()]
                for tokens, u in zip(ids, chosen, strict=True)
            ]
        places = draws.uniform(rows, f"diverse place {self.number}", most if kind == "repeat" else 0)
        edited = []
        for tokens, count, first, second in zip(ids, lengths, chosen.tolist(), places.tolist(), strict=True):
            new = list(tokens)
            for number in range(count):
                token = new[int(first[number] * len(new))]
                if kind == "delete":
                    new.remove(token)
                else:
                    new.insert(int(second[number] * (len(new) + 1)), token)
            edited.append(new)
        return edited


@dataclass(frozen=True)
class PCLOptions:
    """Options of PCL; the defaults are those of the released code."""

    temperature: Annotated[float, Ge(0), Opt("divisor of the cosines in this term; 0: the temperature of the loss")] = (
        0.0
    )
    cooperation: Annotated[float, Ge(0), Opt("weight of the two divergences between the encoder and its peer")] = 1.0
    contrast: Annotated[float, Ge(0), Opt("weight of the classification of positives, in both encoders")] = 1.0
    variant: Annotated[
        Literal["paper", "release"],
        Opt("peer: a copy of the encoder; release: with the pooler of the checkpoint and the head of the encoder"),
    ] = "paper"


def group_logits(anchors: Tensor, group: Tensor, others: Tensor, kept: Tensor, temperature: float) -> Tensor:
    """Returns ``(B, k + B)``: cosines of each anchor with its k positives, and with a vector of every row, over tau.
    ``anchors`` and ``others``, the negatives, are ``(B, D)``, and ``group`` is ``(B, k, D)``. Logits that are not
    ``kept`` ``(B, k + B)`` become ``REMOVED``."""
    anchors, group, others = (normalize(z, dim=-1) for z in (anchors, group, others))
    s = torch.cat([(anchors[:, None] * group).sum(-1), anchors @ others.T], dim=1)
    return (s / temperature).masked_fill(~kept, REMOVED)


def divergence(logits: Tensor, peer: Tensor, kept: Tensor) -> Tensor:
    """Returns the mean over the kept logits of q (log q - log p), with p and q the softmax of ``logits`` and ``peer``.
    As in the released code, this is a mean over rows and columns: the mean of KL(q | p) over rows, divided by the
    number of columns. Both distributions have gradients."""
    p, q = log_softmax(logits, dim=-1), log_softmax(peer, dim=-1)
    return _mean(q.exp() * (q - p), kept)


def classification(logits: Tensor, positives: int, kept: Tensor) -> Tensor:
    """Returns the mean binary cross-entropy of the kept logits' softmax; the first ``positives`` columns have label 1.
    As in the released code, the probabilities of the softmax are the logits of the binary cross-entropy."""
    probabilities = softmax(logits, dim=-1)
    labels = torch.zeros_like(probabilities)
    labels[:, :positives] = 1
    return _mean(binary_cross_entropy_with_logits(probabilities, labels, reduction="none"), kept)


def _mean(values: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, values, 0.0).sum() / kept.sum().clamp(min=1)


class PooledPeer:
    """Encodes tokens by a peer that pools by the pooler of its checkpoint, and by the head of the encoder, if any."""

    def __init__(self, peer: Any, encoder: Any) -> None:
        self.peer, self.encoder, self.embedding_dim = peer, encoder, peer.embedding_dim

    @property
    def backbone(self) -> Any:
        """The transformer of the peer."""
        return self.peer.backbone

    def embed(self, tokens: dict[str, Tensor]) -> Tensor:
        """Returns ``(n, D)``."""
        z: Tensor = self.peer.embed(tokens)
        if self.encoder.head in applied(self.encoder):
            z = self.encoder.head({"sentence_embedding": z})["sentence_embedding"]
        return z


class PCL(BatchTerm):
    """Trains a second encoder, the peer, and makes the distributions of the two over their positives agree.

    The group of a sentence are its positive and its edited forms: k = 1 + number of edits positives of the anchor. The
    peer encodes the texts of all views. The term is the sum of

    - the contrastive loss of the run for the embeddings of the peer;
    - ``cooperation`` times two divergences (see ``divergence``), each between two distributions over the group of an
      anchor and the anchors of the other rows: in the first, the anchor of the encoder is compared with embeddings of
      the peer, and the anchor of the peer with embeddings of the encoder; in the second, both are compared with
      embeddings of their own encoder;
    - ``contrast`` times the binary cross-entropy (see ``classification``) of the encoder's own distribution, and that
      of the peer's.

    Gradients flow into both encoders through all of these, as in the released code. The peer starts as a copy of the
    encoder, is trained, and is kept in checkpoints; only the encoder is saved. A step encodes each sentence
    2 * (k + 1) times.

    With ``variant="release"``, the peer pools by the linear layer and tanh of the checkpoint, and the head of the
    encoder, if any, is applied to the result. In the released code, the peer also attends to padding; this is left out
    in both variants, since embeddings would depend on the other sentences of the batch. The released options for a
    fixed peer and for training without a peer are left out, too. Rows with equal texts are not negatives of each
    other, unless the run keeps duplicates, as in the preset. The peer has the dropout of each view, but not its hook.
    """

    Options = PCLOptions
    summary = "a peer encoder and several positives, with --positive diverse (PCL)"
    recordable = True
    reads = frozenset({"anchor", "positive", "other"})
    encodes = True

    def __init__(self, options: PCLOptions, context: ModelContext) -> None:
        from cse.training.step.acceleration import accelerate
        from cse.training.step.state import Modules

        super().__init__(options, context)
        encoder = context.encoder
        self.peer = copy.deepcopy(encoder)
        self.encode: Any = (self.peer,)  # in a tuple, so that nothing is registered twice
        if options.variant == "release":
            pooler = getattr(self.peer.backbone, "pooler", None)
            if pooler is None:
                raise InputError(
                    f"pcl.variant: {encoder.source.name} has no pooler in its checkpoint; use the variant paper"
                )
            pooler.requires_grad_(True)
            self.peer.pool_by_checkpoint()
            self.encode = (PooledPeer(self.peer, encoder),)
        accelerate(Modules(self.peer, None, {}, {}, {}, {}), context.device, compiled=False)

    @classmethod
    def implies(cls, options: PCLOptions) -> dict[str, Any]:
        return {"positive": "diverse"}

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        options: PCLOptions = self.options
        if step.contrastive is None:
            raise InputError("--loss-term pcl needs --loss standard, focal or mixed")
        texts = views.texts()
        edited = [name for name in texts if name.startswith("edited")]
        if not edited:
            raise InputError("--loss-term pcl needs edited sentences; use --positive diverse")
        names = ["positive", *edited]
        peer = Views(
            {name: step.encode(name, self.encode[0]) for name in texts},
            {name: views.roles[name] for name in texts},
            {name: mask for name, mask in views.masks.items() if name in texts},
            keys={name: key for name, key in views.keys.items() if name in texts},
        )
        first, second = (torch.stack([z[name] for name in names], dim=1) for z in (views, peer))  # (B, k, D)
        own, other = views["anchor"], peer["anchor"]
        kept = self.kept(views, names)
        tau = options.temperature or step.temperature
        assert tau is not None  # the run has a contrastive loss

        def logits(anchors: Tensor, group: Tensor, others: Tensor) -> Tensor:
            return group_logits(anchors, group, others, kept, tau)

        of_first, of_second = logits(own, first, own), logits(other, second, other)
        of_peer = step.contrastive(peer)
        cooperation = divergence(logits(own, second, other), logits(other, first, own), kept)
        cooperation = cooperation + divergence(of_first, of_second, kept)
        contrast = classification(of_first, len(names), kept) + classification(of_second, len(names), kept)
        self.metrics = {
            "pcl_peer": of_peer.detach(),
            "pcl_cooperation": cooperation.detach(),
            "pcl_contrast": contrast.detach(),
        }
        return of_peer + options.cooperation * cooperation + options.contrast * contrast

    def kept(self, views: Views, names: Sequence[str]) -> Tensor:
        """Returns ``(B, k + B)`` bool, True for the valid positives, and for anchors of other rows as negatives."""
        rows = views.valid("anchor", "positive")
        removed = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        removed = removed | views.equal("anchor", "anchor")
        positives = torch.stack([views.valid("anchor", name) for name in names], dim=1)
        return torch.cat([positives, rows & ~removed], dim=1) & rows[:, None]

"""Base classes of loss terms, and logits: functions of cosine similarities that several losses use.

- A *row term* receives only rows of this process, and returns a sum and a count. The training loop divides the total
  sum over chunks and processes by the total count. The term runs in the precision of the encoder.
- A *batch term* receives the embeddings of all rows of the batch, and returns a scalar that is the same in all
  processes. It runs in float32.

The training loop sums the gradients of all parameters, in the encoder and in the terms, over the processes. It also
handles chunks, precision, processes without rows, training mode and devices, so that terms need no code for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..options import WithOptions
from ..views import BatchStep, Role, RowStep, Views

if TYPE_CHECKING:
    from ..context import ModelContext


class LossTerm(WithOptions, nn.Module, ABC):
    """Base class of ``RowTerm`` and ``BatchTerm``, from which loss terms are derived.

    The loss of a batch is the sum of its terms; each term applies its weight itself. A term may have parameters, which
    are trained and kept in checkpoints; only what ``save`` writes is saved with the encoder. Subclasses define
    ``forward`` and, if they have options, ``Options``: a frozen dataclass whose values are read from the term's table
    in the configuration file.

    Args:
        options: An instance of ``Options``.
        context: The resources of the run; ``context.encoder`` is the sentence encoder.
    """

    reads: ClassVar[frozenset[Role]] = frozenset(("anchor", "positive", "negative"))
    """Roles of the views whose embeddings the term uses; ``other``: the views ``edited``, ``edited_2``, and so on. A
    setting that affects only views that no term of the run uses is refused."""
    is_loss: ClassVar[bool] = False
    """Whether the term is used as the loss (``--loss``); ``cse methods --combinations`` then lists it."""
    encodes: ClassVar[bool] = False
    """Whether the term compares the views with further embeddings of an encoder. A feature method that maps
    the views to another space is refused."""
    recordable: ClassVar[bool] = False
    """Whether Python does the same in every step, so that ``--graphs`` can record a step and replay it: only tensors
    change from step to step, the host reads none of them, and ``number``, ``epoch`` and ``progress`` are not used."""
    warning: str = ""
    """A warning that is shown before training; set by the constructor."""
    about: str = ""
    """What the term uses, for the header of the run, such as the pooling of a teacher; set by the constructor."""

    def __init__(self, options: Any, context: ModelContext) -> None:
        super().__init__()
        self.options = options
        self.metrics: dict[str, Any] = {}
        """Values to log in addition to the loss, by name, set by each call of ``forward``.

        Batch terms: scalar tensors. Row terms: pairs (sum, count) over the rows of the call; the training loop adds up
        the pairs and logs sum / count.
        """

    def save(self, folder: Path) -> None:
        """Writes files for later runs to the folder of a saved encoder. Default: writes nothing."""


class RowTerm(LossTerm):
    """Base class of terms that are means over rows, tokens or other items of a row."""

    logged: ClassVar[tuple[str, ...]] = ()
    """Names of the ``metrics``; declared here because a process without rows does not call ``forward``."""

    @abstractmethod
    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns two scalar tensors: the sum over all items of these rows, and the number of items.

        Called with at least one row: once per batch or, with ``--chunk-size``, once per chunk, and again when the chunk
        is recomputed in the backward pass. The totals over all chunks must not depend on how the rows are divided.
        """


class BatchTerm(LossTerm):
    """Base class of terms that compare the rows of a batch with each other."""

    @abstractmethod
    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the value of the term for the batch, a scalar tensor."""

    def partner_views(self, roles: Mapping[str, Role]) -> tuple[int, list[str]] | None:
        """Returns the number of views that need mixing partners, and the names of the views that supply them.

        MixCSE mixes the positive of each anchor with another embedding, its partner; see ``cse.rng``.
        ``step.partners`` holds the positions of the partners. Returns None, the default, if no view needs partners.

        Args:
            roles: Roles of the batch's views by name, in the order of encoding.

        Returns:
            The number of views whose rows need partners (with the objective nt-xent, these include the positives), and
            the names of the views that partners are drawn from.
        """
        return None


def cosine(s: Tensor, positive: Tensor | None, temperature: float, margin: float) -> Tensor:
    """Returns s / tau for positives and negatives (SimCSE, equation 1); ``positive`` and ``margin`` are ignored.

    >>> cosine(torch.tensor([[0.5, -0.25]]), torch.tensor([0]), temperature=0.5, margin=0.3).tolist()
    [[1.0, -0.5]]
    """
    return s / temperature


def focal(s: Tensor, positive: Tensor | None, temperature: float, margin: float) -> Tensor:
    """Returns s^2 / tau for positives and s (s + m) / tau for negatives (Focal-InfoNCE, equation 2).

    ``positive``, ``(M,)`` int64, is the column of each row of s, ``(M, K)``, that holds its positive; None: all columns
    are negatives. The factors s and s + m have gradients too.

    >>> focal(torch.tensor([[0.5, -0.5]]), torch.tensor([0]), temperature=0.5, margin=0.25).tolist()
    [[0.5, 0.25]]
    """
    if positive is None:
        return s * (s + margin) / temperature
    negative = s.new_ones(s.shape).scatter_(1, positive[:, None], 0.0)
    return s * (s + margin * negative) / temperature


LOGITS = {"cosine": cosine, "focal": focal}


def mixture_similarity(
    anchors: Tensor, candidates: Tensor, target: Tensor, partners: Tensor, mix_lambda: float, stop_gradient: bool = True
) -> Tensor:
    """Returns the cosine ``(M, 1)`` of each anchor with its own mixed negative (MixCSE: Zhang et al. 2022, 3.2).

    The mixture is normalise(lambda h_target + (1 - lambda) h_partner), where h are the candidates ``(K, D)`` at unit
    length. ``target`` and ``partners``, ``(M,)`` int64, are positions among them: of the positives, and of their
    partners.

    >>> z = torch.eye(2)
    >>> own, partners = torch.tensor([0, 1]), torch.tensor([1, 0])
    >>> mixture_similarity(z, z, own, partners, mix_lambda=0.5).square().round(decimals=4).tolist()
    [[0.5], [0.5]]
    """
    h = normalize(candidates.detach() if stop_gradient else candidates, dim=-1)
    mixture = normalize(mix_lambda * h[target] + (1 - mix_lambda) * h[partners], dim=-1)
    return (normalize(anchors, dim=-1) * mixture).sum(-1, keepdim=True)


def release_similarities(z1: Tensor, z2: Tensor, mix_lambda: float, stop_gradient: bool = True) -> Tensor:
    """Returns the cosines with the mixed negatives of MixCSE's released code, ``(B, 2B)``.

    Neighbouring rows of unnormalised embeddings are mixed. In row i, the first B columns compare row i of z1 with all
    mixtures of z2; the last B columns compare mixture i of z1 with all rows of z2. In each half, the entries of one
    diagonal are set to 0 instead of being removed, so each adds e^0 = 1 to a denominator.
    """

    def mix(x: Tensor) -> Tensor:  # row k: lambda x_k + (1 - lambda) x_{k+1}
        x = x.detach() if stop_gradient else x
        return normalize(mix_lambda * x + (1 - mix_lambda) * x.roll(-1, 0), dim=-1)

    identity = torch.eye(len(z1), dtype=torch.bool, device=z1.device)
    first = normalize(z1, dim=-1) @ mix(z2).T
    second = mix(z1) @ normalize(z2, dim=-1).T
    # Set to 0: (i, i - 1) in the first B columns, since mixture i - 1 contains z2_i; (i, i + 1) in the last B columns,
    # since mixture i contains z1_{i+1}.
    first = first.masked_fill(identity.roll(1, 0), 0.0)
    second = second.masked_fill(identity.roll(1, 1), 0.0)
    return torch.cat([first, second], dim=1)

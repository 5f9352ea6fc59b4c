"""Base classes of loss terms.

There are two kinds of terms. They differ in the rows that they receive, and in how their values are combined over
processes:

- A *row term* receives only rows of this process, and returns a sum and a count. The training loop adds up the sums
  and the counts over chunks and processes, and divides the total sum by the total count. The term runs in the
  precision of the encoder.
- A *batch term* receives the embeddings of all rows of the batch, and returns a scalar that is the same in all
  processes. It runs in float32.

The training loop sums the gradients of all parameters, in the encoder and in the terms, over the processes. It also
handles chunks, precision, processes without rows, training mode and devices, so that terms need no code for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from ..views import BatchStep, Role, RowStep, Views

if TYPE_CHECKING:
    from ..context import Context


@dataclass(frozen=True)
class NoOptions:
    """Options of a loss term without options."""


class LossTerm(nn.Module):
    """Base class of ``RowTerm`` and ``BatchTerm``, from which loss terms are derived.

    The loss of a batch is the sum of its terms; each term applies its weight itself. A term may have parameters, which
    are trained and kept in checkpoints; only what ``save`` writes is saved with the encoder. Subclasses define
    ``forward`` and, if they have options, ``Options``: a frozen dataclass whose values are read from the term's table
    in the configuration file.

    Args:
        options: An instance of ``Options``.
        context: The resources of the run; ``context.trained`` is the sentence encoder.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""
    reads: ClassVar[frozenset[Role]] = frozenset(("anchor", "positive", "negative"))
    """Roles of the views whose embeddings the term uses. Settings that affect only other views are refused, unless
    another term of the run uses these."""
    warning: str = ""
    """A warning that is shown before training; set by the constructor."""

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__()
        self.options = options
        self.metrics: dict[str, Any] = {}
        """Values to log in addition to the loss, by name, set by each call of ``forward``.

        Batch terms: scalar tensors. Row terms: pairs (sum, count) over the rows of the call; the training loop adds up
        the pairs and logs sum / count.
        """

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns defaults for settings of the run, by name, that apply if the term is used with these options."""
        return {}

    def save(self, folder: Path) -> None:
        """Writes files for later runs to the folder of a saved encoder. Default: writes nothing."""


class RowTerm(LossTerm):
    """Base class of terms that are means over rows, tokens or other items of a row."""

    logged: ClassVar[tuple[str, ...]] = ()
    """Names of the ``metrics``; declared here because a process without rows does not call ``forward``."""

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns two scalar tensors: the sum over all items of these rows, and the number of items.

        Called with at least one row: once per batch or, with ``--chunk-size``, once per chunk, and again when the chunk
        is recomputed in the backward pass. The totals over all chunks must not depend on how the rows are divided.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")


class BatchTerm(LossTerm):
    """Base class of terms that compare the rows of a batch with each other."""

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the value of the term for the batch, a scalar tensor."""
        raise TypeError(f"{type(self).__name__} does not define forward")

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

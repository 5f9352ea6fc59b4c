"""ClusterNS: clusters of sentences supply hard negatives and show false ones (Deng et al. 2023, arXiv:2305.09892)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn.functional import normalize

from cse import InputError
from cse.context import ModelContext
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views

from .sncse import bidirectional_margin


@dataclass(frozen=True)
class ClusterNSOptions:
    """Options of ClusterNS; the defaults are the published values for BERT-base."""

    clusters: Annotated[int, Ge(2), Opt("number of clusters, at most the batch size")] = 128
    rate: Annotated[float, Gt(0), Le(1), Opt("share of the batch in the moving average of a centroid")] = 1e-3
    threshold: Annotated[
        float, Le(1), Opt("clustering begins when the mean cosine of anchors and positives falls to this value")
    ] = 0.4
    hard_negatives: Annotated[bool, Opt("use second nearest centroids as further negatives")] = True
    weight: Annotated[float, Ge(0), Opt("weight of the margin loss of false negatives")] = 1e-3
    alpha: Annotated[float, Opt("a false negative is to be less similar than the positive by at least alpha")] = 0.0
    beta: Annotated[float, Opt("and by at most beta")] = 0.3
    variant: Annotated[
        Literal["paper", "release"],
        Opt("centroids move towards the mean of their rows, or, as in the released code, towards their sum"),
    ] = "paper"


def distant_rows(similarity: Tensor, first: Tensor, valid: Tensor, count: int) -> Tensor:
    """Returns ``(count,)`` int64: rows, of which each is the least similar to the one before it, among those left.
    ``similarity`` is ``(B, B)``, and ``first`` the first row. Rows that are not ``valid`` ``(B,)`` are not chosen; if
    fewer than ``count`` are valid, rows recur."""
    removed = similarity.new_zeros(len(similarity)).masked_fill(~valid, math.inf)
    last = first.reshape(1)
    chosen = [last]
    for _ in range(count - 1):
        removed = removed.index_fill(0, last, math.inf)
        last = (similarity.index_select(0, last)[0] + removed).argmin(0, keepdim=True)
        chosen.append(last)
    return torch.cat(chosen)


def nearest_centroids(z: Tensor, centroids: Tensor, count: int) -> Tensor:
    """Returns ``(B, count)`` int64: the centroids with the largest cosines with each row of ``z``, largest first."""
    return (normalize(z, dim=-1) @ normalize(centroids, dim=-1).T).topk(count, dim=-1).indices


def moved_centroids(centroids: Tensor, z: Tensor, valid: Tensor, rate: float, variant: str = "paper") -> Tensor:
    """Returns the centroids ``(k, D)`` after a step of k-means with ``z`` ``(B, D)``: c + rate * (m - c). m is the mean
    of the cluster's rows, or, with the variant ``release``, their sum. A row belongs to the centroid with the largest
    cosine, unless it is not ``valid`` ``(B,)``. A centroid without rows stays."""
    nearest = nearest_centroids(z, centroids, 1)
    member = ((nearest == torch.arange(len(centroids), device=z.device)) & valid[:, None]).to(z)  # (B, k)
    counts = member.sum(0)[:, None]
    m = member.T @ z
    if variant == "paper":
        m = m / counts.clamp(min=1)
    return torch.where(counts > 0, centroids + rate * (m - centroids), centroids)


class ClusterNS(BatchTerm):
    """Adds centroids of clusters as hard negatives, and a margin loss for negatives of the anchor's own cluster.

    Clusters are found by k-means over the batches of the run. They begin when the mean cosine of all anchors with all
    positives of a batch is at most ``threshold``: the centroids are then anchors of this batch, a random one, and after
    each the row with the least similar positive among those that are left. The batch needs ``clusters`` valid rows;
    a smaller one leaves the beginning to a later batch. The term is 0 up to and including this batch. From then on, the
    anchors of each batch first move the centroids (``moved_centroids``), and the moved centroids serve in the loss:

    - The second nearest centroid of each row is a further negative of all anchors, B in all, without gradient. The term
      is the difference between the run's contrastive loss with and without them.
    - ``weight`` times the bidirectional margin loss of all pairs of rows with the same nearest centroid is added. Its
      difference d is cos(anchor i, positive j) - cos(anchor i, positive i). The losses of these pairs are summed and
      divided by B^2, the number of all pairs of rows, as in the released code, for which the published weights were
      chosen. There, the other pairs add a constant. Rows with equal texts are left out if the run masks them.

    Rows without a valid anchor and positive are left out of everything. The metric ``clustering`` in the log is 1 once
    clusters exist; if it stays 0, the cosines never fell to ``threshold``, and the run is one without the term.
    Checkpoints contain the centroids.

    Difference from the released code: a centroid moves towards the mean of its rows; with ``variant="release"``, it
    moves towards their sum, as there.
    """

    Options = ClusterNSOptions
    centroids: Tensor
    begun: Tensor
    summary = "centroids of clusters as hard negatives, a margin for false negatives (ClusterNS)"
    recordable = True
    reads = frozenset({"anchor", "positive"})

    def __init__(self, options: ClusterNSOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        self.register_buffer("centroids", torch.zeros(options.clusters, context.encoder.embedding_dim))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))
        self.checked = False

    @classmethod
    def implies(cls, options: ClusterNSOptions) -> dict[str, Any]:
        """Returns twice the number of clusters as the default batch size, as published for BERT-base."""
        return {"batch_size": 2 * options.clusters}

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the difference of the contrastive losses plus the margin loss, and updates the centroids."""
        options: ClusterNSOptions = self.options
        self._check(len(views["anchor"]), step)
        valid = views.valid("anchor", "positive")
        s = normalize(views["anchor"], dim=-1) @ normalize(views["positive"], dim=-1).T
        # Nothing below depends on values in Python's control flow, so that the host does not wait for the device.
        begun = self._cluster(views["anchor"].detach(), s.detach(), valid, step)
        nearest = nearest_centroids(views["anchor"].detach(), self.centroids, 2)
        pairs = (nearest[:, :1] == nearest[:, 0]) & valid[:, None] & valid
        pairs = pairs & ~torch.eye(len(s), dtype=torch.bool, device=s.device) & ~views.equal("anchor", "positive")
        losses = bidirectional_margin(s - s.diagonal()[:, None], options.alpha, options.beta)
        count = valid.sum().clamp(min=1)
        total = options.weight * torch.where(pairs, losses, 0.0).sum() / count.square()
        if options.hard_negatives:
            assert step.contrastive is not None
            # A copy, because the buffer may be replaced before the backward pass.
            more = views.with_negatives("centroid", self.centroids[nearest[:, 1]].to(s), valid)
            total = total + step.contrastive(more) - step.contrastive(views)
        self.metrics["false_negatives"] = torch.where(begun, pairs.sum() / count, 0.0)
        return torch.where(begun, total, 0.0)

    def _check(self, rows: int, step: BatchStep) -> None:
        if self.options.hard_negatives and step.contrastive is None:
            raise InputError("--loss-term clusterns needs --loss standard, focal or mixed")
        if not self.checked and step.number == 0 and rows < self.options.clusters:
            raise InputError(
                f"clusterns.clusters: {self.options.clusters} is more than the {rows} rows of a batch, some of which "
                "become the first centroids; lower it or raise --batch-size"
            )
        self.checked = True

    @torch.no_grad()
    def _cluster(self, z: Tensor, s: Tensor, valid: Tensor, step: BatchStep) -> Tensor:
        """Moves the centroids, or chooses them if clustering begins; returns whether it had begun before this batch.
        The first centroids are computed at every step, and used at one."""
        options: ClusterNSOptions = self.options
        begun, centroids = self.begun, self.centroids.to(z)
        both = valid[:, None] & valid
        mean = torch.where(both, s, 0.0).sum() / both.sum().clamp(min=1)
        begins = ~begun & (mean <= options.threshold) & (valid.sum() >= options.clusters)
        first = step.uniform("clusterns first", 1)[:, 0].to(z).masked_fill(~valid, 2.0).argmin()
        chosen = z[distant_rows(s, first, valid, min(options.clusters, len(z)))]
        if len(chosen) < len(centroids):  # too few rows to begin
            chosen = torch.cat([chosen, centroids[len(chosen) :]])
        moved = moved_centroids(centroids, z, valid, options.rate, options.variant)
        self.centroids = torch.where(begun, moved, torch.where(begins, chosen, centroids)).to(self.centroids)
        self.begun = begun | begins
        self.metrics = {"mean_cosine": mean, "clustering": self.begun.to(z)}
        return begun

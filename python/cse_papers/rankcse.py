"""RankCSE: the order of similarities is learned from frozen encoders (Liu et al. 2023, arXiv:2305.16726)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le, MinLen
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from cse import InputError
from cse.context import ModelContext
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views

# Stands for -inf as a logit, so that rows without a valid column have finite gradients.
REMOVED = -1e4


@dataclass(frozen=True)
class RankCSEOptions:
    """Options of RankCSE; the defaults are the published settings for BERT-base."""

    teachers: Annotated[
        tuple[str, ...], MinLen(1), Opt("one or two encoders, with the same tokenizer, whose similarities are learned")
    ] = ("voidism/diffcse-bert-base-uncased-sts", "princeton-nlp/unsup-simcse-bert-large-uncased")
    alpha: Annotated[float, Ge(0), Le(1), Opt("weight of the first of two teachers")] = 0.33
    ranking: Annotated[
        Literal["listnet", "listmle"],
        Opt("listnet: cross-entropy of the two distributions; listmle: likelihood of the teachers' order"),
    ] = "listnet"
    gamma: Annotated[float, Ge(0), Opt("weight of the ranking loss")] = 1.0
    beta: Annotated[float, Ge(0), Opt("weight of the consistency of the two views")] = 1.0
    temperature: Annotated[float, Gt(0), Opt("divisor of the encoder's cosines")] = 0.05
    teacher_temperature: Annotated[float, Gt(0), Opt("divisor of the teachers' cosines")] = 0.05


def list_net(scores: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """Returns the mean over valid rows of -sum_j p_j log q_j, with p and q the softmax of ``teacher`` and ``scores``.
    Both are ``(B, B)`` cosines, divided by their temperature. Rows that are not ``valid`` ``(B,)`` are left out as rows
    and columns, and the diagonal is always left out."""
    removed = torch.eye(len(scores), dtype=torch.bool, device=scores.device) | ~valid
    p, q = (log_softmax(values.masked_fill(removed, REMOVED), dim=-1) for values in (teacher, scores))
    return _mean(-(p.exp() * q).masked_fill(removed, 0.0).sum(-1), valid)


def list_mle(scores: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """Returns the mean over valid rows of -log P(the teacher's order), in the model of Plackett and Luce.

    With the columns of a row sorted by ``teacher``, largest first, this is sum_k (log sum_{l >= k} exp s_l - s_k). The
    arguments are those of ``list_net``, but the diagonal is not left out. Equal values of the teacher keep the order of
    the columns.
    """
    order = teacher.masked_fill(~valid, -math.inf).argsort(dim=-1, descending=True, stable=True)
    s = scores.masked_fill(~valid, REMOVED).gather(1, order)
    rest = s.flip(-1).logcumsumexp(-1).flip(-1)  # (B, B): log sum_{l >= k} exp s_l
    return _mean((rest - s).masked_fill(~valid[order], 0.0).sum(-1), valid)


def jensen_shannon(scores: Tensor, valid: Tensor) -> Tensor:
    """Returns the mean over valid rows of the Jensen-Shannon divergence of a row and the column with the same number.
    Row i of ``scores`` compares anchor i with all positives, column i positive i with all anchors; the softmax of both
    is compared. The value is in [0, log 2]."""
    p, q = (log_softmax(values.masked_fill(~valid, REMOVED), dim=-1) for values in (scores, scores.T))
    middle = torch.logaddexp(p, q) - math.log(2)
    return _mean((p.exp() * (p - middle) + q.exp() * (q - middle)).sum(-1) / 2, valid)


def _mean(rows: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, rows, 0.0).sum() / valid.sum().clamp(min=1)


class RankCSE(BatchTerm):
    """gamma times the ranking loss (ListNet or ListMLE), plus beta times the consistency of the two views.

    The teachers' similarities are alpha * first + (1 - alpha) * second, each the cosines of the anchors and positives
    of the batch. The teachers are frozen and run without dropout.

    Differences from the released code: consistency is the Jensen-Shannon divergence of the paper (in the release, the
    logarithm of the mean distribution is clamped to a constant, so the term rewards sharp distributions instead), and
    ``beta`` is applied.
    """

    Options = RankCSEOptions
    summary = "the order of the similarities of frozen encoders (RankCSE)"
    recordable = True
    reads = frozenset({"anchor", "positive"})

    def __init__(self, options: RankCSEOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        if len(options.teachers) > 2:
            raise InputError(f"rankcse.teachers: must be one or two encoders, got {len(options.teachers)}")
        self.teachers = torch.nn.ModuleList(
            context.load_model(name, "rankcse.teachers", same_tokens=True) for name in options.teachers
        )

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        options: RankCSEOptions = self.options
        names = ("anchor", "positive")
        first, second = (normalize(views[name], dim=-1) for name in names)
        scores = first @ second.T / options.temperature
        weights = (options.alpha, 1 - options.alpha) if len(self.teachers) == 2 else (1.0,)
        teacher = torch.zeros_like(scores)
        for weight, model in zip(weights, self.teachers, strict=True):
            anchors, positives = (normalize(step.encode(name, model), dim=-1) for name in names)
            teacher = teacher + weight / options.teacher_temperature * (anchors @ positives.T)
        valid = views.valid(*names)
        ranking = (list_net if options.ranking == "listnet" else list_mle)(scores, teacher, valid)
        consistency = jensen_shannon(scores, valid)
        self.metrics = {"ranking": ranking.detach(), "consistency": consistency.detach()}
        return options.gamma * ranking + options.beta * consistency

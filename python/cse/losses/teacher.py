"""Learning the embeddings of another encoder, the teacher (knowledge distillation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..errors import InputError
from ..evaluation.geometry import unit
from ..views import RowStep, Views
from .base import RowTerm
from .options import TeacherOptions

if TYPE_CHECKING:
    from ..context import Context

# Rows of which the teacher's and the base model's vectors are compared to rotate one into the space of the other.
ROWS = 2048


def alignment(teacher: npt.NDArray[np.float32], base: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Returns the matrix M ``(E, D)`` that maps vectors of a teacher into the space of the base model.

    Of the teacher's unit vectors T ``(n, E)``, the D first principal components (not centred) are kept, if E > D. M
    rotates them so that the mean cosine with the base model's unit vectors B ``(n, D)`` is largest (the orthogonal
    Procrustes problem; Schoenemann 1966): among all matrices with orthonormal columns or rows in this subspace, M
    maximises the trace of B' T M.
    """
    t, b = unit(teacher.astype(np.float64)), unit(base.astype(np.float64))
    components = np.linalg.eigh(t.T @ t)[1][:, ::-1][:, : b.shape[1]]  # (E, min(E, D))
    left, _, right = np.linalg.svd(b.T @ (t @ components), full_matrices=False)
    mapping: npt.NDArray[np.float64] = components @ (left @ right).T
    return mapping


class Teacher(RowTerm):
    """``weight`` times 1 - cos(z, t M), the mean over the anchors z of the batch.

    t is the teacher's vector of the whole row, which is computed once, with its own tokenizer and maximum length, and M
    rotates it into the space of the model before training (``alignment``), so that the model has to change as little as
    possible. M is fitted to the first rows of the first epoch. The number of dimensions may differ.

    Similarities in a batch as the target (SEED; Fang et al. 2021, arXiv:2101.04731) were tried and taught less.
    """

    Options = TeacherOptions
    summary = "learns the embeddings of a better encoder (--teacher)"
    recordable = True
    encodes = True
    reads = frozenset({"anchor"})  # a positive may be of another row
    logged = ("cos_teacher",)

    def __init__(self, options: TeacherOptions, context: Context) -> None:
        super().__init__(options, context)
        encoder = context.trained
        if not options.model:
            raise InputError("--loss-term teacher needs an encoder to learn from; use --teacher MODEL instead")
        if context.pairs is not None or context.corpus is None:
            raise InputError("--teacher: belongs to a corpus of single texts, not to --pairs; omit one of them")
        if encoder.head is not None and not encoder.keep_head:
            raise InputError(
                "--teacher would train the output of the MLP head, which is not saved; add --keep-head, or use a "
                "pooler without a head, such as --pooler avg"
            )
        rows, vectors = context.vectors_by(context.open_encoder(options.model, "--teacher"), "--teacher")
        first = np.isin(rows, context.first_rows(ROWS))
        texts = context.corpus.take(rows[first])
        mapping = alignment(vectors[first], encoder.encode(texts, truncate_dim=encoder.width))
        targets = np.empty((len(rows), mapping.shape[1]), dtype=np.float32)
        for start in range(0, len(rows), ROWS):
            targets[start : start + ROWS] = unit(vectors[start : start + ROWS] @ mapping)
        # Not buffers, which checkpoints would contain: a resumed run takes them from the cache.
        self.rows, self.targets = (torch.from_numpy(each).to(context.device) for each in (rows, targets))

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns the weighted sum over the anchors, and their number."""
        targets = self.targets[torch.searchsorted(self.rows, step.rows)]
        cosines = (normalize(views["anchor"].float(), dim=-1) * targets).sum(-1)
        valid = views.valid("anchor")
        total, count = torch.where(valid, cosines, 0.0).sum(), valid.sum().to(cosines.dtype)
        self.metrics = {"cos_teacher": (total, count)}
        return self.options.weight * (count - total), count

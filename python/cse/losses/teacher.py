"""Learning the embeddings of another encoder, the teacher (knowledge distillation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..errors import InputError
from ..views import Frozen, RowStep, Views
from .base import RowTerm
from .options import TeacherOptions

if TYPE_CHECKING:
    from ..context import ModelContext

# Rows of which the teacher's and the base model's vectors are compared to rotate one into the space of the other.
ROWS = 2048
# Vectors of unit length of which no dimension differs by more than this are equal.
EQUAL = 1e-5


def alignment(teacher: Tensor, base: Tensor) -> Tensor:
    """Returns the matrix M ``(E, D)``, float64, that maps vectors of a teacher into the space of the base model.

    Of the teacher's unit vectors T ``(n, E)``, the D first principal components (not centred) are kept, if E > D. M
    rotates them so that the mean cosine with the base model's unit vectors B ``(n, D)`` is largest (the orthogonal
    Procrustes problem; Schoenemann 1966): among all matrices with orthonormal columns or rows in this subspace, M
    maximises the trace of B' T M.
    """
    t, b = (normalize(each.double(), dim=-1) for each in (teacher, base))
    components = torch.linalg.eigh(t.T @ t)[1].flip(1)[:, : b.shape[1]]  # (E, min(E, D))
    left, _, right = torch.linalg.svd(b.T @ (t @ components), full_matrices=False)
    mapping: Tensor = components @ (left @ right).T
    return mapping


def check_vectors(vectors: Tensor, model: str) -> str:
    """Returns a warning if a teacher has a vector of zeros ``(n, E)`` for some rows, as for texts without a known word;
    raises ``InputError`` if it has no information: zeros for all, or one vector for all."""
    known = vectors[vectors.any(-1)]
    if not len(known):
        raise InputError(
            f"--teacher {model}: has a vector of zeros for all rows; name an encoder that reads these texts"
        )
    spread = float((normalize(known, dim=-1).amax(0) - normalize(known, dim=-1).amin(0)).max())
    if len(known) > 1 and spread <= EQUAL:
        raise InputError(f"--teacher {model}: has the same vector for all rows; name another encoder")
    zeros = len(vectors) - len(known)
    return f"--teacher {model} has a vector of zeros for {zeros:,} rows, which it does not teach" if zeros else ""


class Targets(nn.Module):
    """The targets ``(n, D)`` of rows ``(n,)`` with ascending numbers."""

    def __init__(self, rows: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.rows: Tensor
        self.targets: Tensor
        self.register_buffer("rows", rows)
        self.register_buffer("targets", targets)

    def forward(self, rows: Tensor) -> Tensor:
        return self.targets[torch.searchsorted(self.rows, rows)]


class Teacher(RowTerm):
    """``weight`` times 1 - cos(z, t M), the mean over the anchors z of the batch.

    t is the teacher's vector of the whole row, which is computed once, with its own tokenizer and maximum length, and M
    rotates it into the space of the model before training (``alignment``), so that the model has to change as little as
    possible. M is fitted to the first rows of the first epoch. The number of dimensions may differ.

    Similarities in a batch as the target (SEED; Fang et al. 2021, arXiv:2101.04731) gained less on TREC and customer
    reviews by a logistic regression and by neighbours; on tweets, less by neighbours and more by the former (one seed).
    """

    Options = TeacherOptions
    summary = "learns the embeddings of a better encoder (--teacher)"
    recordable = True
    encodes = True
    reads = frozenset({"anchor"})  # a positive may be of another row
    logged = ("cos_teacher",)

    def __init__(self, options: TeacherOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
        if not options.model:
            raise InputError("--loss-term teacher needs an encoder to learn from; use --teacher MODEL instead")
        if context.pairs is not None:
            raise InputError("--teacher: belongs to a corpus of single texts, not to --pairs; omit one of them")
        if encoder.head is not None and not encoder.keep_head:
            raise InputError(
                "--teacher would train the output of the MLP head, which is not saved; add --keep-head, or use a "
                "pooler without a head, such as --pooler avg"
            )
        teacher = context.open_encoder(options.model, "--teacher", prompt=options.prompt, pooler=options.pooler)
        prompt = f"prompt {teacher.prompt!r}" if teacher.prompt else "no prompt"
        self.about = f"{options.model}: pooling {teacher.pooling}; {prompt}"
        found = context.vectors_by(teacher, "--teacher")
        rows, vectors = map(torch.from_numpy, found)
        self.warning = check_vectors(vectors, options.model)
        first = torch.isin(rows, torch.from_numpy(context.first_rows(ROWS)))
        texts = context.corpus.take(found[0][first.numpy()])
        base = torch.from_numpy(encoder.encode(texts, truncate_dim=encoder.width))
        mapping = alignment(vectors[first], base)
        targets = torch.empty(len(rows), mapping.shape[1])
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            targets[part] = normalize(vectors[part].double() @ mapping, dim=-1).float()
        # Frozen, so that checkpoints leave them out: a resumed run takes the vectors from the cache.
        self.table = Frozen(Targets(rows, targets).to(context.device))

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns the weighted sum over the anchors, and their number."""
        targets = self.table(step.rows)
        z = views["anchor"]
        z = z.to(torch.promote_types(z.dtype, torch.float32))  # bfloat16 would round cosines to 1 %
        cosines = (normalize(z, dim=-1) * targets).sum(-1)
        valid = views.valid("anchor") & targets.any(-1)  # the teacher has no vector for some rows
        total, count = torch.where(valid, cosines, 0.0).sum(), valid.sum().to(cosines.dtype)
        # Without the graph: its nodes, of the stream of this step, would outlive it, and no later step be recorded.
        self.metrics = {"cos_teacher": (total.detach(), count)}
        return self.options.weight * (count - total), count

"""Checks for whoever writes a method: ``check_term`` tests what the training loop relies on in a loss term."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .context import ModelContext, TextContext
from .losses.base import BatchTerm, LossTerm, RowTerm
from .views import BatchStep, RowStep, Views

ROWS, WIDTH, SEED = 12, 8, 0
TOLERANCE = 1e-6
"""Largest difference of values and gradients, relative to the largest one, that counts as rounding."""


def check_term(
    term: type[LossTerm],
    options: Any = None,
    context: ModelContext | None = None,
    *,
    names: Sequence[str] = ("anchor", "positive"),
    step: Callable[[Tensor], dict[str, Any]] = lambda rows: {},
) -> None:
    """Checks a loss term on random embeddings; raises ``AssertionError`` with what is wrong.

    - The value is a finite scalar (of a row term: a sum and a number of items) with a gradient.
    - Rows that are masked have no part in it: other embeddings of these rows change neither the value nor the gradient
      of the others, and they have none themselves.
    - Two calls with the same batch give the same value, as in two processes, which both call a batch term.
    - The totals of a row term do not depend on how the rows are divided, into chunks or over processes.

    Args:
        term: The class.
        options: An instance of ``term.Options``. Default: its defaults.
        context: The resources of the run, if the constructor needs them, such as an encoder.
        names: Names of the views that the term gets, each ``(12, 8)``.
        step: Returns further attributes of the step, given the row numbers ``(n,)``, such as ``tokens`` of a row term
            or ``contrastive`` of a batch term.

    >>> from cse.losses.contrastive import Contrastive
    >>> check_term(Contrastive)
    """
    given: Any = context or TextContext()
    made = term(term.Options() if options is None else options, given)
    generator = torch.Generator().manual_seed(SEED)
    embeddings = {name: torch.randn(ROWS, WIDTH, generator=generator) for name in names}
    mask = torch.arange(ROWS) % 4 != 1

    def value(
        changed: dict[str, Tensor], masked: bool, part: slice = slice(0, ROWS)
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the value, ``(1,)`` or ``(2,)``, and the gradient of each view, for some of the rows."""
        leaves = {name: z[part].clone().requires_grad_() for name, z in changed.items()}
        rows = torch.arange(ROWS)[part]
        views = Views(dict(leaves), masks={name: mask[part] for name in names} if masked else {})
        result = _called(made, views, rows, step)
        grads = torch.autograd.grad(result[0], list(leaves.values()), allow_unused=True, retain_graph=True)
        found = {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(leaves.items(), grads, strict=True)
        }
        return result.detach(), found

    def same(one: Tensor, other: Tensor, what: str) -> None:
        scale = max(1.0, float(one.abs().max()))
        if not torch.allclose(one, other, rtol=0, atol=TOLERANCE * scale):
            raise AssertionError(f"{term.__name__}: {what}: {one.tolist()} and {other.tolist()}")

    whole, grads = value(embeddings, masked=False)
    if not whole.isfinite().all():
        raise AssertionError(f"{term.__name__}: its value is not finite: {whole.tolist()}")
    if not any(grad.any() for grad in grads.values()):
        raise AssertionError(f"{term.__name__}: no view has a gradient")
    same(whole, value(embeddings, masked=False)[0], "two calls with the same batch give different values")
    partial, before = value(embeddings, masked=True)
    other = {name: torch.where(mask[:, None], z, z.flip(0) * 3 + 1) for name, z in embeddings.items()}
    changed, after = value(other, masked=True)
    same(partial, changed, "rows that are masked change the value; use views.valid(...)")
    for name in names:
        if before[name][~mask].any():
            raise AssertionError(
                f"{term.__name__}: rows of {name} that are masked have a gradient; use views.valid(...)"
            )
        same(before[name][mask], after[name][mask], f"rows that are masked change the gradient of {name}")
    if isinstance(made, RowTerm):
        for cut in (1, 5, ROWS - 1):
            parts = [value(embeddings, True, part)[0] for part in (slice(0, cut), slice(cut, ROWS))]
            same(partial, parts[0] + parts[1], f"the totals of rows 0 to {cut} and of the others do not add up")


def _called(term: LossTerm, views: Views, rows: Tensor, step: Callable[[Tensor], dict[str, Any]]) -> Tensor:
    """Returns the value of a term as a vector; raises ``AssertionError`` for another form."""

    def uniform(purpose: str, count: int) -> Tensor:
        drawn = np.random.default_rng([SEED, *purpose.encode()]).random((ROWS, count), dtype=np.float32)
        return torch.from_numpy(drawn)[rows]

    facts = {"number": 3, "steps": 10, "epoch": 0, "seed": SEED, "rows": rows, "uniform": uniform, **step(rows)}
    if isinstance(term, BatchTerm):
        result: Any = term(views, BatchStep(**facts))
        if not isinstance(result, Tensor) or result.ndim:
            raise AssertionError(f"{type(term).__name__}: a batch term returns a scalar tensor, got {result!r}")
        return result[None]
    result = term(views, RowStep(**facts))
    if not (isinstance(result, tuple) and len(result) == 2 and not any(torch.as_tensor(each).ndim for each in result)):
        raise AssertionError(f"{type(term).__name__}: a row term returns a sum and a number of items, got {result!r}")
    return torch.stack([torch.as_tensor(each, dtype=torch.float32) for each in result])

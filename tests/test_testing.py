"""Tests of ``cse.testing.check_term``, and of the examples in the docstrings of losses."""

import doctest
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import normalize

from cse import testing
from cse.losses import auxiliary, base, contrastive, options
from cse.losses.base import BatchTerm, RowTerm
from cse.losses.contrastive import Contrastive
from cse.losses.options import ContrastiveOptions
from cse.testing import check_term


class Alignment(BatchTerm):
    """The example of docs/extending.md, with the usual fault if ``whole`` is set."""

    @dataclass(frozen=True)
    class Options:
        whole: bool = False

    def forward(self, views, step):
        anchors, positives = (normalize(views[name], dim=-1) for name in ("anchor", "positive"))
        distances = (anchors - positives).square().sum(-1)
        valid = views.valid("anchor", "positive")
        return distances.mean() if self.options.whole else (distances * valid).sum() / valid.sum()


class Drifting(Alignment):
    """Its value grows with each call."""

    def forward(self, views, step):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(views, step) * self.calls


class Items(RowTerm):
    """A row term that divides by the number of its rows if ``mean`` is set."""

    @dataclass(frozen=True)
    class Options:
        mean: bool = False

    def forward(self, views, step):
        valid = views.valid("anchor")
        total = (views["anchor"].square().sum(-1) * valid).sum()
        return (total / valid.sum(), torch.tensor(1.0)) if self.options.mean else (total, valid.sum())


def test_a_term_is_checked_as_the_loop_will_call_it():
    check_term(Alignment)
    check_term(Items)
    check_term(Contrastive)
    for term, given, fault in (
        (Alignment, Alignment.Options(whole=True), "rows that are masked change the value"),
        (Drifting, Alignment.Options(), "two calls with the same batch give different values"),
        (Items, Items.Options(mean=True), "do not add up"),
    ):
        with pytest.raises(AssertionError, match=fault):
            check_term(term, given)


@pytest.mark.parametrize("logits", ["cosine", "focal"])
@pytest.mark.parametrize("objective", ["infonce", "nt-xent"])
def test_the_contrastive_loss_passes_the_check_of_terms(logits, objective):
    check_term(Contrastive, ContrastiveOptions(logits=logits, objective=objective, temperature=0.1))


def test_the_examples_in_the_docstrings_of_losses_and_checks_run():
    found = 0
    for module in (testing, contrastive, base, auxiliary, options):
        result = doctest.testmod(module)
        assert result.failed == 0
        found += result.attempted
    assert found >= 5

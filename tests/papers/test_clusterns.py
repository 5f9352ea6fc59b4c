"""ClusterNS equals loops in float64 that follow its released code, over several steps."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from cse import InputError
from cse.context import ModelContext, TextContext
from cse.losses.contrastive import Contrastive
from cse.losses.options import ContrastiveOptions
from cse.rng import Draws
from cse.views import BatchStep, Views
from cse_papers.clusterns import ClusterNS, ClusterNSOptions, moved_centroids
from runs import drawn

TAU = 0.1


def cosines(x, y):
    return cosine_similarity(x[:, None], y[None], dim=-1)


def term_of(width, **options):
    encoder = SimpleNamespace(embedding_dim=width)
    return ClusterNS(ClusterNSOptions(**options), ModelContext(encoder=encoder)).double()


def step_of(rows, number=0, seed=3, **loss):
    uniform = lambda purpose, count: torch.from_numpy(Draws(seed, 0).uniform(rows, purpose, count))  # noqa: E731
    step = BatchStep(number, 10, 0, seed, torch.from_numpy(rows), uniform)
    main = Contrastive(ContrastiveOptions(temperature=TAU, **loss), TextContext())
    object.__setattr__(step, "contrastive", partial(main.evaluate, step=step))
    return step


class Release:
    """The twin: the clusters and the loss of the released code, on rows without masks."""

    def __init__(self, options):
        self.options, self.centroids = options, None

    def nearest(self, z):
        """Centroids of each row, the nearest first."""
        return [
            sorted(range(len(self.centroids)), key=lambda c: -row[c]) for row in cosines(z, self.centroids).tolist()
        ]

    def loss(self, z1, z2, first):
        o, n = self.options, len(z1)
        s = cosines(z1, z2)
        if self.centroids is None:
            if s.mean() <= o.threshold and n >= o.clusters:
                chosen = [first]
                while len(chosen) < o.clusters:
                    left = [j for j in range(n) if j not in chosen]
                    chosen.append(min(left, key=lambda j: s[chosen[-1], j].item()))
                self.centroids = z1[chosen].detach()
            return cross_entropy(s / TAU, torch.arange(n))
        groups = [order[0] for order in self.nearest(z1)]
        new = self.centroids.clone()
        for c in range(o.clusters):
            rows = [z1[i].detach() for i in range(n) if groups[i] == c]
            if rows:
                total = sum(rows) / (len(rows) if o.variant == "paper" else 1)
                new[c] = o.rate * total + (1 - o.rate) * new[c]
        self.centroids = new
        orders = self.nearest(z1)
        logits = s / TAU
        if o.hard_negatives:
            z3 = self.centroids[[order[1] for order in orders]]
            logits = torch.cat([logits, cosines(z1, z3) / TAU], dim=1)
        margin = 0.0
        for i in range(n):
            for j in range(n):
                false = i != j and orders[i][0] == orders[j][0]
                d = (s[i, j] - s[i, i]) if false else torch.zeros((), dtype=torch.float64)
                margin = margin + (d + o.alpha).clamp(min=0) + (-d - o.beta).clamp(min=0)
        # The released code averages over all pairs; those that are no false negatives add the loss of d = 0.
        number = sum(orders[i][0] == orders[j][0] for i in range(n) for j in range(n)) - n
        margin = margin - (n * n - number) * (max(o.alpha, 0) + max(-o.beta, 0))
        return cross_entropy(logits, torch.arange(n)) + o.weight * margin / n**2


@pytest.mark.parametrize("variant", ["paper", "release"])
@pytest.mark.parametrize("hard_negatives", [True, False])
def test_values_gradients_and_centroids_equal_those_of_a_loop_over_several_steps(variant, hard_negatives):
    options = {"clusters": 3, "rate": 0.2, "threshold": 0.3, "weight": 0.7, "alpha": 0.1, "beta": 0.3}
    options |= {"variant": variant, "hard_negatives": hard_negatives}
    term = term_of(6, **options)
    twin = Release(term.options)
    begun, terms = [], []
    for number in range(6):
        shift = 3.0 if number < 2 else 0.0  # similar embeddings, so that clustering begins at the third step
        z = [(drawn(8, 6, seed=2 * number + k) + shift).requires_grad_() for k in range(2)]
        z[1] = (z[0] + 0.5 * z[1]).detach().requires_grad_()
        rows = np.arange(8) + 8 * number
        step, views = step_of(rows, number), Views({"anchor": z[0], "positive": z[1]})
        value = term(views, step)
        found = step.contrastive(views) + value
        expected = twin.loss(*z, int(step.uniform("clusterns first", 1)[:, 0].argmin()))
        assert found.item() == pytest.approx(expected.item(), rel=1e-9)
        for ours, theirs in zip(torch.autograd.grad(found, z), torch.autograd.grad(expected, z), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        begun.append(bool(term.begun))
        assert float(term.metrics["clustering"]) == begun[-1]
        terms.append(value.item())
        if begun[-1]:
            assert torch.allclose(term.centroids, twin.centroids, rtol=0, atol=1e-12)
        # A resumed run continues from the buffers.
        state = {key: values.clone() for key, values in term.state_dict().items()}
        assert state.keys() == {"centroids", "begun"}
        term = term_of(6, **options)
        term.load_state_dict(state)
    assert begun == [False, False, True, True, True, True]
    assert terms[:3] == [0.0, 0.0, 0.0]
    assert all(terms[3:])


def test_each_anchor_is_compared_with_the_second_centroids_of_all_rows():
    """Also with focal logits; the centroids have no gradient."""
    term = term_of(5, clusters=2, rate=0.5, threshold=1.0, weight=0.0)
    views = lambda seed: Views({"anchor": drawn(4, 5, seed=seed), "positive": drawn(4, 5, seed=seed + 9)})  # noqa: E731
    rows = np.arange(4)
    term(views(0), step_of(rows, logits="focal"))
    assert term.begun
    more = views(1)
    anchor = more["anchor"].requires_grad_()
    step = step_of(rows, 1, logits="focal", margin=0.3)
    value = term(more, step) + step.contrastive(more)
    c = term.centroids
    assert not c.requires_grad
    s, t = cosines(anchor, more["positive"]), cosines(anchor, c)
    second = t.argmin(1)  # of two centroids
    assert 0 < second.sum() < 4
    losses = []
    for i in range(4):
        own = s[i, i] ** 2 / TAU
        others = [s[i, j] * (s[i, j] + 0.3) / TAU for j in range(4) if j != i]
        others += [t[i, k] * (t[i, k] + 0.3) / TAU for k in second]
        losses.append(torch.logsumexp(torch.stack([own, *others]), 0) - own)
    expected = sum(losses) / 4
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    (found,), (gradient,) = (torch.autograd.grad(loss, anchor) for loss in (value, expected))
    assert torch.allclose(found, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("masked", ["anchor", "positive"])
def test_rows_without_a_pair_are_left_out_of_everything(masked):
    options = {"clusters": 3, "rate": 0.2, "threshold": 0.9, "weight": 0.7, "alpha": 0.1}
    term, short = term_of(6, **options), term_of(6, **options)
    valid = torch.tensor([True, False, True, True, True, False, True, True])
    for number in range(3):
        rows = np.arange(8) + 8 * number
        z = {name: drawn(8, 6, seed=2 * number + k) for k, name in enumerate(("anchor", "positive"))}
        masks = {"anchor": valid, "positive": valid} if masked == "anchor" else {"positive": valid}
        whole, step = Views(z, masks=masks), step_of(rows, number)
        part, other = Views({name: x[valid] for name, x in z.items()}), step_of(rows[valid.numpy()], number)
        value = short(part, other).item()
        assert term(whole, step).item() == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert torch.allclose(term.centroids, short.centroids, rtol=0, atol=1e-12)
        assert (value != 0) == (number > 0)


def test_identical_sentences_are_no_false_negatives_if_the_run_masks_them():
    options = {"clusters": 2, "threshold": 1.0, "weight": 1.0, "alpha": 0.2, "hard_negatives": False}
    z = {"anchor": drawn(6, 4), "positive": drawn(6, 4, seed=1)}
    term, rows = term_of(4, **options), np.arange(6)
    term(Views(z), step_of(rows))
    groups = cosines(z["anchor"], moved_centroids(term.centroids, z["anchor"], torch.ones(6).bool(), 1e-3)).argmax(1)
    i, j = next((i, j) for i in range(6) for j in range(i) if groups[i] == groups[j])
    key = torch.arange(6)
    key[i] = j
    values, state = [], {key: value.clone() for key, value in term.state_dict().items()}
    for keys in ({}, dict.fromkeys(z, key[:, None])):
        term.load_state_dict(state)
        values.append(term(Views(z, keys=keys), step_of(rows, 1)).item())
    s = cosines(z["anchor"], z["positive"])
    change = sum(max(s[a, b] - s[a, a] + 0.2, 0) + max(s[a, a] - s[a, b] - 0.3, 0) for a, b in ((i, j), (j, i)))
    assert change > 0
    assert values[0] - values[1] == pytest.approx(float(change) / 36, rel=1e-9)


def test_clustering_begins_only_with_enough_rows():
    term = term_of(4, clusters=3, threshold=1.0)
    z = {"anchor": drawn(6, 4), "positive": drawn(6, 4, seed=1)}
    with pytest.raises(InputError, match=r"clusterns\.clusters: 3 is more than the 2 rows of a batch"):
        term(Views({name: x[:2] for name, x in z.items()}), step_of(np.arange(2)))
    few = {"positive": torch.tensor([True, True, False, False, False, False])}
    assert term(Views(z, masks=few), step_of(np.arange(6))).item() == 0
    assert not term.begun
    assert not term.centroids.any()
    # The last batch of an epoch may have fewer rows than there are clusters.
    short = Views({name: x[:2] for name, x in z.items()})
    assert term(short, step_of(np.arange(2), 1)).item() == 0
    assert not term.begun
    term(Views(z), step_of(np.arange(6), 2))
    assert term.begun
    before = term.centroids.clone()
    assert math.isfinite(term(short, step_of(np.arange(2), 3)).item())
    assert not torch.equal(term.centroids, before)


def test_clustering_begins_when_the_mean_cosine_of_valid_rows_is_at_most_the_threshold():
    z = torch.cat([torch.eye(3), torch.ones(3, 3)]).double()  # mean cosine of the first three rows: 1/3
    views = Views({"anchor": z, "positive": z}, masks={"positive": torch.tensor([True] * 3 + [False] * 3)})
    for threshold, begins in ((0.34, True), (0.32, False)):
        term = term_of(3, clusters=3, threshold=threshold)
        term(views, step_of(np.arange(6)))
        assert bool(term.begun) == begins
        assert float(term.metrics["mean_cosine"]) == pytest.approx(1 / 3)


def test_the_term_needs_a_contrastive_loss_only_for_hard_negatives():
    z = {"anchor": drawn(6, 4), "positive": drawn(6, 4, seed=1)}
    step = step_of(np.arange(6))
    object.__setattr__(step, "contrastive", None)
    with pytest.raises(InputError, match="--loss-term clusterns needs --loss standard, focal or mixed"):
        term_of(4, clusters=3)(Views(z), step)
    term = term_of(4, clusters=3, threshold=1.0, hard_negatives=False, alpha=0.5, weight=1.0)
    assert term(Views(z), step).item() == 0
    assert term(Views(z), step).item() > 0


def test_the_first_centroid_is_drawn_uniformly_from_the_rows():
    counts = np.zeros(5)
    z = torch.eye(5, dtype=torch.float64)
    for seed in range(500):
        term = term_of(5, clusters=2, threshold=1.0)
        term(Views({"anchor": z, "positive": z}), step_of(np.arange(5), seed=seed))
        counts[term.centroids[0].argmax()] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 18.5  # chi-squared with 4 degrees of freedom, p = 0.001

"""Each loss against a double loop in float64 that follows the formula term by term, and gradcheck."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from cse.losses.contrastive import contrastive_loss, partner_count, similarity_summary
from cse.rng import partners

B, D, TAU, M, LAM = 5, 7, 0.05, 0.3, 0.2


def embeddings(views, seed=0, batch=B):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(views, batch, D, dtype=torch.float64, generator=generator)


def cos(x, y):
    return (x @ y / (x.norm() * y.norm())).item()


def shape(loss, s, positive):
    if loss == "focal":
        return (s * s if positive else s * (s + M)) / TAU
    return s / TAU


def mixture(own_positive, other):
    h = LAM * normalize(own_positive, dim=0) + (1 - LAM) * normalize(other, dim=0)
    return normalize(h, dim=0)


def brute_force(z, loss, structure, partner=None):
    """Mean over anchors of -log(e^positive / sum over the denominator), one term after the other."""
    views, batch, _ = z.shape
    losses = []
    if structure == "all":
        places = [(v, i) for v in range(views) for i in range(batch)]
        for number, (v, i) in enumerate(places):
            twin = (v ^ 1, i)
            terms = [shape(loss, cos(z[v, i], z[twin]), True)]
            terms += [shape(loss, cos(z[v, i], z[p]), False) for p in places if p not in ((v, i), twin)]
            if loss == "mixed":
                w, j = divmod(int(partner[number]), batch)
                assert j != i
                terms.append(cos(z[v, i], mixture(z[twin], z[w, j])) / TAU)
            losses.append(log_sum(terms) - terms[0])
    else:
        sides = [(0, 1), (2, 3)] if views == 4 else [(0, 1)]
        candidates = [(c, j) for _, c in sides for j in range(batch)]
        columns = [(2, j) for j in range(batch)] if views == 3 else []
        number = 0
        for a, c in sides:
            for i in range(batch):
                terms = [shape(loss, cos(z[a, i], z[c, i]), True)]
                others = [p for p in candidates if p != (c, i)] + columns
                terms += [shape(loss, cos(z[a, i], z[p]), False) for p in others]
                if loss == "mixed":
                    place = candidates[int(partner[number])]
                    assert place[1] != i
                    terms.append(cos(z[a, i], mixture(z[c, i], z[place])) / TAU)
                losses.append(log_sum(terms) - terms[0])
                number += 1
    return sum(losses) / len(losses)


def log_sum(terms):
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms))


def some_partners(views, structure):
    anchors, candidates = partner_count(views, structure)
    return torch.from_numpy(partners(torch.arange(B).numpy(), 1, 0, anchors, candidates))


COMBINATIONS = [
    (loss, structure, views)
    for loss in ("standard", "focal", "mixed")
    for structure, views in [("cross", 2), ("cross", 3), ("cross", 4), ("all", 2), ("all", 4)]
]


@pytest.mark.parametrize(("loss", "structure", "views"), COMBINATIONS)
def test_loss_equals_the_double_loop(loss, structure, views):
    z = embeddings(views)
    partner = some_partners(views, structure) if loss == "mixed" else None
    ours = contrastive_loss(
        z, loss=loss, structure=structure, temperature=TAU, margin=M, mix_lambda=LAM, partners=partner
    )
    assert ours.item() == pytest.approx(brute_force(z, loss, structure, partner), rel=1e-12)


# Mixtures are constants, which a numerical derivative cannot know: see test_mixture_passes_no_gradient.
@pytest.mark.parametrize(("loss", "structure", "views"), [c for c in COMBINATIONS if c[0] != "mixed"])
def test_gradients_are_right(loss, structure, views):
    z = embeddings(views).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: contrastive_loss(x, loss=loss, structure=structure, temperature=0.5, margin=M), (z,)
    )


@pytest.mark.parametrize(("structure", "views"), [("cross", 2), ("cross", 3), ("cross", 4), ("all", 2), ("all", 4)])
def test_mixture_passes_no_gradient(structure, views):
    """The gradient of `mixed` is that of the same sum with the mixtures as constants."""
    z = embeddings(views).requires_grad_()
    partner = some_partners(views, structure)
    given = contrastive_loss(z, loss="mixed", structure=structure, temperature=0.5, partners=partner)
    (gradient,) = torch.autograd.grad(given, z)

    frozen = z.detach().clone()
    if structure == "all":
        order = [(v, i) for v in range(views) for i in range(B)]
        twins = [(v ^ 1, i) for v, i in order]
        pool = order
    else:
        sides = [0, 2] if views == 4 else [0]
        order = [(v, i) for v in sides for i in range(B)]
        twins = [(v + 1, i) for v, i in order]
        pool = twins
    constants = torch.stack([mixture(frozen[t], frozen[pool[int(p)]]) for t, p in zip(twins, partner, strict=True)])

    def with_constants(x):
        anchors = torch.stack([x[p] for p in order])
        candidates = torch.stack([x[p] for p in pool])
        if views == 3:
            candidates = torch.cat([candidates, x[2]])
        s = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T / 0.5
        if structure == "all":
            s = s.masked_fill(torch.eye(len(s), dtype=torch.bool), -math.inf)
        extra = (normalize(anchors, dim=-1) * constants).sum(-1, keepdim=True) / 0.5
        target = torch.tensor([pool.index(t) for t in twins])
        return torch.nn.functional.cross_entropy(torch.cat([s, extra], 1), target)

    assert torch.autograd.gradcheck(with_constants, (z,))
    (expected,) = torch.autograd.grad(with_constants(z), z)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("views", [2, 3])
def test_released_mixtures_equal_the_double_loop(views):
    z = embeddings(views)
    losses = []
    for i in range(B):
        terms = [cos(z[0, i], z[1, j]) / TAU for j in range(B)]
        if views == 3:
            terms += [cos(z[0, i], z[2, j]) / TAU for j in range(B)]
        for k in range(B):
            mixed = LAM * z[1, k] + (1 - LAM) * z[1, (k + 1) % B]  # not normalised first
            terms.append(0.0 if k == (i - 1) % B else cos(z[0, i], mixed) / TAU)
        mixed = LAM * z[0, i] + (1 - LAM) * z[0, (i + 1) % B]
        for j in range(B):
            terms.append(0.0 if j == (i + 1) % B else cos(mixed, z[1, j]) / TAU)
        losses.append(log_sum(terms) - terms[i])
    ours = contrastive_loss(z, loss="mixed", mix_variant="release", temperature=TAU, mix_lambda=LAM)
    assert ours.item() == pytest.approx(sum(losses) / B, rel=1e-12)


def test_released_mixtures_are_detached_but_z2_against_them_is_not():
    z = embeddings(2).requires_grad_()
    loss = contrastive_loss(z, loss="mixed", mix_variant="release", temperature=0.5, mix_lambda=LAM)
    (gradient,) = torch.autograd.grad(loss, z)
    frozen = z.detach().clone()

    def with_constants(x):
        z1, z2 = normalize(x[0], dim=-1), normalize(x[1], dim=-1)
        z3 = normalize(LAM * frozen[1] + (1 - LAM) * frozen[1].roll(-1, 0), dim=-1)
        z4 = normalize(LAM * frozen[0] + (1 - LAM) * frozen[0].roll(-1, 0), dim=-1)
        eye = torch.eye(B, dtype=torch.bool)
        third, fourth = z1 @ z3.T, z4 @ z2.T
        third = third.masked_fill(eye.roll(1, 0), 0.0)
        fourth = fourth.masked_fill(eye.roll(1, 1), 0.0)
        return torch.nn.functional.cross_entropy(torch.cat([z1 @ z2.T, third, fourth], 1) / 0.5, torch.arange(B))

    assert torch.autograd.gradcheck(with_constants, (z,))
    (expected,) = torch.autograd.grad(with_constants(z), z)
    torch.testing.assert_close(gradient, expected)


def test_hard_weight_adds_its_logarithm_to_the_own_column():
    z = embeddings(3)
    alpha = 2.5
    losses = []
    for i in range(B):
        terms = [cos(z[0, i], z[1, j]) / TAU for j in range(B)]
        terms += [cos(z[0, i], z[2, j]) / TAU + (math.log(alpha) if i == j else 0.0) for j in range(B)]
        losses.append(log_sum(terms) - terms[i])
    ours = contrastive_loss(z, temperature=TAU, hard_weight=alpha)
    assert ours.item() == pytest.approx(sum(losses) / B, rel=1e-12)


def test_partners_are_uniform_over_views_of_other_rows():
    rows = torch.arange(6).numpy() * 17
    seen = torch.zeros(6, 12)
    for epoch in range(3000):
        found = partners(rows, 3, epoch, 1, 2)
        seen[torch.arange(6), torch.from_numpy(found)] += 1
    own = torch.arange(6)
    assert seen[own, own].sum() == 0
    assert seen[own, own + 6].sum() == 0
    expected = 3000 / 10
    chi = ((seen - expected) ** 2 / expected)[seen > 0].sum().item()
    assert chi < 90  # 6 * 9 degrees of freedom: beyond this once in a thousand


def test_an_odd_number_of_views_has_no_pairs():
    with pytest.raises(ValueError, match="pairs"):
        contrastive_loss(embeddings(3), structure="all")


def test_summary_is_the_mean_cosine_of_each_kind():
    z = embeddings(4)
    summary = similarity_summary(z)
    assert summary["cos_pos"] == pytest.approx(sum(cos(z[0, i], z[1, i]) for i in range(B)) / B, abs=1e-6)
    negatives = [cos(z[0, i], z[1, j]) for i in range(B) for j in range(B) if i != j]
    assert summary["cos_neg"] == pytest.approx(sum(negatives) / len(negatives), abs=1e-6)
    assert summary["cos_syn"] == pytest.approx(sum(cos(z[0, i], z[2, i]) for i in range(B)) / B, abs=1e-6)

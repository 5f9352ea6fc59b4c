"""Tests of the contrastive loss: for each valid combination of options, it equals a double loop over the formulas."""

import math
from dataclasses import fields
from inspect import signature
from itertools import product
from statistics import mean

import pytest
import torch
from torch.nn.functional import normalize

from cse.context import TextContext
from cse.losses.contrastive import Contrastive, arrange, contrastive_loss, similarity_summary
from cse.losses.options import ContrastiveOptions, incompatibility
from cse.rng import partners
from cse.training.setup import prepare
from cse.views import entry_keys, roles_by_name
from runs import first_batches

B, D, TAU, M, LAM, ALPHA = 5, 7, 0.05, 0.3, 0.2, 2.5
PAIRS = [("anchor", "positive"), ("synthetic", "synthetic_positive")]
SOURCES = {
    "none": (),
    "triples": ("hard_negative",),
    "una pairs": ("synthetic", "synthetic_positive"),
    "una hard negatives": ("synthetic",),
    "triples, una pairs": ("hard_negative", "synthetic", "synthetic_positive"),
    "triples, una hard negatives": ("hard_negative", "synthetic"),
}
WEIGHTS = ("none", "alpha", "row masks", "duplicates", "row masks, duplicates")


def views_of(source):
    generator = torch.Generator().manual_seed(0)
    names = ("anchor", "positive", *SOURCES[source])
    return {name: torch.randn(B, D, dtype=torch.float64, generator=generator) for name in names}


def masks_of(source):
    """Returns masks that exclude one row of each view except the anchors; both synthetic views exclude the same row."""
    left_out = {"positive": 1, "hard_negative": 0, "synthetic": 3, "synthetic_positive": 3}
    return {name: torch.arange(B) != left_out[name] for name in ("positive", *SOURCES[source])}


def texts_of(source):
    """Returns a number by view and row, the same number for equal texts, within a view and across views."""
    names = ("anchor", "positive", *SOURCES[source])
    texts = {name: [100 * number + row for row in range(B)] for number, name in enumerate(names)}
    texts["anchor"][3], texts["positive"][0] = texts["anchor"][2], texts["anchor"][4]
    if "hard_negative" in texts:
        texts["hard_negative"][:3] = texts["positive"][1], texts["anchor"][1], texts["positive"][2]
    if "synthetic" in texts:
        texts["synthetic"][1] = texts["positive"][2]
        texts["synthetic"][4] = texts.get("hard_negative", texts["positive"])[3]
    if "synthetic_positive" in texts:
        texts["synthetic_positive"] = list(texts["synthetic"])
    return texts


def cos(x, y):
    return (x @ y / (x.norm() * y.norm())).item()


def logit(kind, s, positive):
    if kind == "focal":
        return (s * s if positive else s * (s + M)) / TAU
    return s / TAU


def mixture(own_positive, other):
    h = LAM * normalize(own_positive, dim=0) + (1 - LAM) * normalize(other, dim=0)
    return normalize(h, dim=0)


def log_sum(terms):
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms))


def some_partners(views, objective, masks=None):
    term = Contrastive(ContrastiveOptions(objective=objective, mixed_negatives=True), TextContext())
    anchors, names = term.partner_views(roles_by_name(views))
    assert names == arrange(views, objective).candidates
    everything = torch.ones(B, dtype=torch.bool)
    valid = torch.stack([(masks or {}).get(name, everything) for name in names]).numpy() if masks else None
    return torch.from_numpy(partners(torch.arange(B).numpy(), 1, 0, anchors, len(names), valid))


def double_loop(views, *, objective, logits, mixed, alpha=1.0, masks=None, texts=None, partner=None):
    """Returns -log(e^positive / sum of e^logit) of each anchor, with each logit computed separately."""
    masks = masks or {}
    pairs = [pair for pair in PAIRS if pair[1] in views]
    columns = [name for name in ("hard_negative", "synthetic") if name in views and name not in dict(pairs)]
    twin = {**dict(pairs), **{second: first for first, second in pairs}}
    if objective == "nt-xent":
        anchors = candidates = [name for pair in pairs for name in pair]
    else:
        anchors, candidates = [first for first, _ in pairs], [second for _, second in pairs]

    def holds(name, row):
        return name not in masks or bool(masks[name][row])

    def known(name, row):
        return {texts[view][row] for view in (name, twin.get(name, name))}

    def equal(a, i, c, j):
        # Through any row that shares a text with row i, and has the text of (c, j) as its anchor or positive.
        rows = [known(first, row) for first, _ in pairs for row in range(B)] if texts else []
        return any(known(a, i) & row and texts[c][j] in row for row in rows)

    losses, number = [], 0
    for a in anchors:
        for i in range(B):
            place, number = number, number + 1
            if not (holds(a, i) and holds(twin[a], i)):
                continue
            positive = logit(logits, cos(views[a][i], views[twin[a]][i]), True)
            terms = [positive]
            for c in [*candidates, *columns]:
                for j in range(B):
                    if (c, j) in ((twin[a], i), (a, i)) or not holds(c, j) or equal(a, i, c, j):
                        continue
                    term = logit(logits, cos(views[a][i], views[c][j]), False)
                    if a == "anchor" and c == "hard_negative" and i == j:
                        term += math.log(alpha)
                    terms.append(term)
            if mixed == "paper":
                view, j = divmod(int(partner[place]), B)
                assert j != i
                assert holds(candidates[view], j)
                other = views[candidates[view]][j]
                if not equal(a, i, candidates[view], j):
                    terms.append(logit(logits, cos(views[a][i], mixture(views[twin[a]][i], other)), False))
            if mixed == "release":
                terms += release_terms(views["anchor"], views["positive"], i, holds, equal)
            losses.append(log_sum(terms) - positive)
    return losses


def release_terms(z1, z2, i, holds, equal):
    """Returns the logits of row i with mixtures of adjacent rows; two of them are 0, as in MixCSE's released code."""
    terms = []
    for k in range(B):
        alike = equal("anchor", k, "positive", (k + 1) % B)
        if holds("positive", k) and holds("positive", (k + 1) % B) and not alike:
            mixed = LAM * z2[k] + (1 - LAM) * z2[(k + 1) % B]
            terms.append(0.0 if k == (i - 1) % B else cos(z1[i], mixed) / TAU)
    if holds("anchor", i) and holds("anchor", (i + 1) % B) and not equal("anchor", i, "positive", (i + 1) % B):
        mixed = LAM * z1[i] + (1 - LAM) * z1[(i + 1) % B]
        for j in range(B):
            if holds("positive", j):
                terms.append(0.0 if j == (i + 1) % B else cos(mixed, z2[j]) / TAU)
    return terms


ALL = [
    parts
    for parts in product(("infonce", "nt-xent"), ("cosine", "focal"), SOURCES, (None, "paper", "release"), WEIGHTS)
    if parts[4] != "alpha" or "hard_negative" in SOURCES[parts[2]]
]


def problem(objective, logits, source, mixed, weights):
    pairs = "synthetic_positive" in SOURCES[source]
    return incompatibility(objective=objective, logits=logits, mixed=mixed, synthetic_pairs=pairs)


LEGAL = [parts for parts in ALL if problem(*parts) is None]
DERIVED = [parts for parts in LEGAL if parts[4] in ("none", "row masks, duplicates")]
ILLEGAL = [parts for parts in ALL if problem(*parts) is not None]


def arguments_of(objective, logits, source, mixed, weights):
    views = views_of(source)
    masks = masks_of(source) if "row masks" in weights else None
    texts = texts_of(source) if "duplicates" in weights else None
    keys = texts and entry_keys({name: torch.tensor(numbers) for name, numbers in texts.items()}, roles_by_name(views))
    partner = some_partners(views, objective, masks) if mixed == "paper" else None
    alpha = ALPHA if weights == "alpha" else 1.0
    ours = {"objective": objective, "logits": logits, "temperature": TAU, "margin": M, "mixed": mixed, "keys": keys}
    ours |= {"mix_lambda": LAM, "partners": partner, "hard_negative_weight": alpha, "masks": masks}
    return views, ours, {"alpha": alpha, "masks": masks, "texts": texts, "partner": partner}


@pytest.mark.parametrize("parts", LEGAL, ids=lambda parts: "-".join(str(part) for part in parts))
def test_the_loss_with_legal_options_equals_a_double_loop(parts):
    views, ours, theirs = arguments_of(*parts)
    objective, logits, _, mixed, _ = parts
    expected = double_loop(views, objective=objective, logits=logits, mixed=mixed, **theirs)
    assert contrastive_loss(views, **ours).item() == pytest.approx(mean(expected), rel=1e-12)


@pytest.mark.parametrize("parts", ILLEGAL, ids=lambda parts: "-".join(str(part) for part in parts))
def test_illegal_options_are_refused_with_a_message_of_one_sentence(parts):
    views, ours, _ = arguments_of(*parts)
    with pytest.raises(ValueError, match=r"^--[a-z-]+ [^\n]+$"):
        contrastive_loss(views, **ours)


# Mixed negatives have a gradient here, which a numerical derivative includes.
@pytest.mark.parametrize("parts", DERIVED, ids=lambda parts: "-".join(str(part) for part in parts))
def test_gradients_equal_numerical_derivatives(parts):
    views, ours, _ = arguments_of(*parts)
    names = list(views)
    ours |= {"temperature": 0.5, "stop_gradient": False}

    def loss(*tensors):
        return contrastive_loss(dict(zip(names, tensors, strict=True)), **ours)

    assert torch.autograd.gradcheck(loss, [views[name].requires_grad_() for name in names], fast_mode=True)


@pytest.mark.parametrize(("objective", "source"), list(product(("infonce", "nt-xent"), SOURCES)))
def test_no_gradient_flows_through_mixed_negatives(objective, source):
    """The gradient equals that of the same loss with the mixtures as constants."""
    views = {name: z.requires_grad_() for name, z in views_of(source).items()}
    partner = some_partners(views, objective)
    given = contrastive_loss(views, objective=objective, mixed="paper", temperature=0.5, partners=partner)
    gradients = torch.autograd.grad(given, list(views.values()))

    layout = arrange(views, objective)
    frozen = torch.cat([views[name].detach() for name in layout.candidates])
    constants = torch.stack([mixture(frozen[t], frozen[p]) for t, p in zip(layout.target, partner, strict=True)])
    anchors = torch.cat([views[name] for name in layout.anchors])
    candidates = torch.cat([views[name] for name in layout.candidates + layout.columns])
    s = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T / 0.5
    if objective == "nt-xent":
        s = s.masked_fill(torch.eye(*s.shape, dtype=torch.bool), -math.inf)
    extra = (normalize(anchors, dim=-1) * constants).sum(-1, keepdim=True) / 0.5
    expected = torch.nn.functional.cross_entropy(torch.cat([s, extra], 1), layout.target)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected, list(views.values())), strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_release_variant_detaches_only_the_mixtures():
    views = {name: z.requires_grad_() for name, z in views_of("none").items()}
    loss = contrastive_loss(views, mixed="release", temperature=0.5, mix_lambda=LAM)
    frozen = [views["anchor"].detach().clone(), views["positive"].detach().clone()]
    z1, z2 = (normalize(views[name], dim=-1) for name in ("anchor", "positive"))
    z4, z3 = (normalize(LAM * z + (1 - LAM) * z.roll(-1, 0), dim=-1) for z in frozen)
    eye = torch.eye(B, dtype=torch.bool)
    third, fourth = (z1 @ z3.T).masked_fill(eye.roll(1, 0), 0.0), (z4 @ z2.T).masked_fill(eye.roll(1, 1), 0.0)
    logits = torch.cat([z1 @ z2.T, third, fourth], 1) / 0.5
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(B))
    both = (torch.autograd.grad(each, list(views.values())) for each in (loss, expected))
    for gradient, wanted in zip(*both, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("weights", ["none", "row masks"])
def test_the_metric_p_pos_is_the_mean_softmax_probability_of_the_positive(weights):
    views, ours, theirs = arguments_of("infonce", "focal", "una pairs", None, weights)
    metrics = {}
    contrastive_loss(views, metrics=metrics, **ours)
    losses = double_loop(views, objective="infonce", logits="focal", mixed=None, **theirs)
    assert metrics["p_pos"].item() == pytest.approx(mean(math.exp(-loss) for loss in losses), rel=1e-10)


def test_a_batch_without_valid_anchors_has_a_loss_of_zero():
    views = {name: z.requires_grad_() for name, z in views_of("none").items()}
    loss = contrastive_loss(views, masks={"positive": torch.zeros(B, dtype=torch.bool)})
    loss.backward()
    assert loss.item() == 0
    assert not views["anchor"].grad.any()


@pytest.mark.parametrize("left_out", [False, True])
def test_mixing_partners_are_drawn_uniformly_from_valid_views_of_other_rows(left_out):
    rows = torch.arange(6).numpy() * 17
    valid = torch.ones(2, 6, dtype=torch.bool).numpy()
    if left_out:
        valid[1, 4] = valid[0, 0] = False
    seen = torch.zeros(6, 12)
    for epoch in range(3000):
        found = partners(rows, 3, epoch, 1, 2, valid)
        seen[torch.arange(6), torch.from_numpy(found)] += 1
    own = torch.arange(6)
    allowed = torch.from_numpy(valid).reshape(-1).expand(6, -1).clone()
    allowed[own, own] = allowed[own, own + 6] = False
    assert seen[~allowed].sum() == 0
    expected = 3000 / allowed.sum(1, keepdim=True)
    chi = ((seen - expected) ** 2 / expected)[allowed].sum().item()
    assert chi < 90  # at most 6 * 9 degrees of freedom; exceeded by chance in fewer than 2 of 1,000 cases


def test_similarity_summary_has_mean_cosines_and_the_fraction_of_synthetic_negatives_harder_than_others():
    views = views_of("triples, una pairs")
    summary = {key: value.item() for key, value in similarity_summary(views).items()}
    anchor, positive = views["anchor"], views["positive"]
    across = {(i, j): cos(anchor[i], positive[j]) for i in range(B) for j in range(B)}
    hard, synthetic = ([cos(anchor[i], views[name][i]) for i in range(B)] for name in ("hard_negative", "synthetic"))
    expected = {
        "cos_pos": mean(across[i, i] for i in range(B)),
        "cos_neg": mean(s for (i, j), s in across.items() if i != j),
        "cos_hard": mean(hard),
        "cos_syn": mean(synthetic),
        "syn_harder": mean(synthetic[i] > max(across[i, j] for j in range(B) if i != j) for i in range(B)),
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    masked = similarity_summary(views, {"synthetic": torch.arange(B) != 2})["cos_syn"].item()
    assert masked == pytest.approx((sum(synthetic) - synthetic[2]) / (B - 1), abs=1e-6)


def test_the_fraction_of_harder_synthetic_negatives_is_nan_without_in_batch_negatives():
    views = views_of("una hard negatives")
    nothing = torch.zeros(B, dtype=torch.bool)
    for masks in ({"positive": nothing}, {"positive": nothing, "synthetic": nothing}, {"synthetic": nothing}):
        assert math.isnan(similarity_summary(views, masks)["syn_harder"].item())
    # Only row 2 has a positive, which is the in-batch negative of the other rows.
    summary = similarity_summary(views, {"positive": torch.arange(B) == 2})
    one = views["positive"][2]
    harder = [cos(views["anchor"][i], views["synthetic"][i]) > cos(views["anchor"][i], one) for i in (0, 1, 3, 4)]
    assert summary["syn_harder"].item() == pytest.approx(sum(harder) / 4)


def test_contrastive_loss_and_its_options_have_the_same_defaults():
    defaults = {name: each.default for name, each in signature(contrastive_loss).parameters.items()}
    assert ContrastiveOptions().mixed is defaults["mixed"] is None
    for field in fields(ContrastiveOptions):
        if field.name not in ("mixed_negatives", "mix_variant"):  # the argument `mixed` combines them
            assert defaults[field.name] == field.default, field.name


def test_mixed_negatives_are_not_mixed_from_identical_sentences(run_config, tmp_path, sample_rows):
    long = [row for row in sample_rows if len(row.split()) > 8]
    (tmp_path / "some.txt").write_text("\n".join([long[0]] * 6 + long[1:4]), encoding="utf8")
    run = prepare(run_config.replace(corpus=tmp_path / "some.txt", loss="mixed", batch_size=8, max_steps=None))
    batch = first_batches(run)[0]
    texts = batch.blocks["anchor"].texts
    partners = torch.from_numpy(batch.partners)
    alike = torch.tensor([texts[own] == texts[partner % 8] for own, partner in enumerate(partners)])
    assert alike.any()
    z = dict(zip(("anchor", "positive"), torch.randn(2, 8, 4, dtype=torch.float64), strict=True))
    settings = {"mixed": "paper", "partners": partners, "keys": dict.fromkeys(z, batch.keys["anchor"][:, None])}
    left, right = {}, {}
    # An anchor whose partner has the same sentence has no mixed negative, as one whose partner is of its own row.
    found = contrastive_loss(z, **settings, metrics=left)
    settings["partners"] = torch.where(alike, torch.arange(8), partners)
    assert float(found) == float(contrastive_loss(z, **settings, metrics=right))
    assert left["cos_mix"] == right["cos_mix"]

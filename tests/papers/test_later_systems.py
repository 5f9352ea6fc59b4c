"""RankCSE, SimCSE++, SSCL, WhitenedCSE, InfoCSE and SNCSE equal loops in float64, and what their papers say of them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import losses as library

from cse import InputError
from cse.context import ModelContext, TextContext
from cse.losses.contrastive import contrastive_loss
from cse.training.setup import prepare
from cse.views import BatchStep, Views, WithoutDropout
from cse_papers.gist import GIST, GISTOptions
from cse_papers.hardness import Hardness, HardnessOptions
from cse_papers.infocse import InfoCSE
from cse_papers.orthogonality import Orthogonality, OrthogonalityOptions
from cse_papers.rankcse import RankCSE, RankCSEOptions
from cse_papers.simcse_plus import dimension_contrast
from cse_papers.sncse import Negation, NegationOptions, SoftNegative, SoftNegativeOptions, negate_parsed, negate_words
from cse_papers.sscl import InnerStates
from cse_papers.whitenedcse import GroupWhitening, GroupWhiteningOptions, InverseRoot, group_whitening
from runs import after_head, drawn


def cosine(x, y):
    return (x @ y / x.norm() / y.norm()).item()


@pytest.mark.parametrize("logits", ["cosine", "focal"])
@pytest.mark.parametrize("objective", ["infonce", "nt-xent"])
def test_negatives_are_compared_without_dropout(logits, objective):
    """SimCSE++: the denominator of anchor i holds cos(n_i, n_j) for j != i, and cos(z1_i, z2_i)."""
    z1, z2, n1, n2, hard = (drawn(4, 3, seed=seed) for seed in range(5))
    found = contrastive_loss(
        {"anchor": z1, "positive": z2, "hard_negative": hard},
        objective=objective,
        logits=logits,
        temperature=0.2,
        margin=0.3,
        compared={"anchor": n1, "positive": n2},
    )

    def logit(s, positive):
        return s / 0.2 if logits == "cosine" else s * (s + (0 if positive else 0.3)) / 0.2

    z, n, losses = torch.cat([z1, z2]), torch.cat([n1, n2]), []
    for i in range(4 if objective == "infonce" else 8):
        own = (i + 4) % 8
        others = [j for j in range(4 if objective == "infonce" else 0, 8) if j != own] if objective == "infonce" else []
        if objective == "nt-xent":
            others = [j for j in range(8) if j not in (i, own)]
        c = logit(cosine(z[i], z[own]), True)
        terms = [logit(cosine(n[i], n[j]), False) for j in others] + [logit(cosine(n[i], h), False) for h in hard]
        losses.append(math.log(sum(map(math.exp, [c, *terms]))) - c)
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-9)


def test_a_pass_without_dropout_has_gradients_and_leaves_the_mode(run_config):
    encoder = prepare(run_config).state.encoder.train()
    tokens = {key: value for key, value in encoder.tokenizer(["a b c"], return_tensors="pt").items()}
    plain = WithoutDropout(encoder)
    first, second = plain.embed(tokens), plain.embed(tokens)
    assert torch.equal(first, second)
    assert first.requires_grad
    assert encoder.backbone.training
    assert not torch.equal(encoder.embed(tokens), encoder.embed(tokens))


def test_the_contrast_of_dimensions_equals_its_loop():
    z1, z2 = drawn(6, 4), drawn(6, 4, seed=1)
    valid = torch.tensor([True, True, False, True, True, True])
    rows = [0, 1, 3, 4, 5]
    a, b = ((z[rows].numpy() - z[rows].numpy().mean(0)) for z in (z1, z2))
    a, b = (x / np.sqrt((x**2).mean(0) + 1e-5) for x in (a, b))
    losses = []
    for d in range(4):
        c = [sum(a[i, d] * b[i, e] for i in range(5)) / 5 / 5.0 for e in range(4)]
        losses.append(-c[d] + math.log(sum(map(math.exp, c))))
    assert dimension_contrast(z1, z2, valid, 5.0).item() == pytest.approx(np.mean(losses), rel=1e-9)


@pytest.mark.parametrize("pooler", ["cls", "avg"])
def test_inner_states_are_those_of_the_layers_before_the_last(run_config, pooler):
    encoder = prepare(run_config.replace(pooler=pooler)).state.encoder.double()
    encoder.train()[0].eval()  # the head is applied, and there is no dropout
    tokens = dict(encoder.tokenizer(["a b c", "d e"], padding=True, return_tensors="pt"))
    found = InnerStates(encoder, 1).embed(tokens)
    states = encoder.backbone(**tokens, output_hidden_states=True).hidden_states[-2]
    mask = tokens["attention_mask"][..., None]
    expected = after_head(encoder, states[:, 0]) if pooler == "cls" else (states * mask).sum(1) / mask.sum(1)
    assert torch.allclose(found, expected, atol=1e-12)


def test_sscl_is_the_mean_of_the_loss_with_and_without_inner_states(run_config):
    from cse_papers.sscl import SSCL, SSCLOptions

    state = prepare(run_config).state
    term = SSCL(SSCLOptions(layers=1), ModelContext(encoder=state.encoder))
    z = {name: drawn(5, 4, seed=seed) for seed, name in enumerate(("anchor", "positive"))}
    inner = {"anchor": drawn(5, 4, seed=7), "positive": drawn(5, 4, seed=8)}
    loss = lambda views: contrastive_loss(views.embeddings, roles=views.roles, temperature=0.1)  # noqa: E731
    step = SimpleNamespace(encode=lambda name, encoder: inner[name], contrastive=loss)
    found = loss(Views(z)) + term(Views(z), step)
    losses = []
    for i in range(5):
        s = [cosine(z["anchor"][i], z["positive"][j]) / 0.1 for j in range(5)]
        more = [cosine(z["anchor"][i], n) / 0.1 for n in (*inner["anchor"], *inner["positive"])]
        losses += [math.log(sum(map(math.exp, terms))) - s[i] for terms in (s, s + more)]
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-9)


def test_whitened_groups_have_the_covariance_of_the_identity_and_zca_keeps_the_directions():
    z, order = drawn(50, 12), torch.randperm(12, generator=torch.Generator().manual_seed(3))
    white = group_whitening(z, order, 3, 1e-12)
    assert white.mean(0).abs().max() < 1e-9
    for start in range(0, 12, 3):
        dims = order[start : start + 3]
        assert torch.allclose(white[:, dims].T @ white[:, dims] / 50, torch.eye(3).double(), atol=1e-6)
        centred = (z - z.mean(0))[:, dims]
        root = white[:, dims].T @ centred / 50  # of ZCA, symmetric and positive definite
        assert torch.allclose(root, root.T, atol=1e-6)
        assert torch.linalg.eigvalsh(root).min() > 0


def test_the_gradient_of_the_inverse_root_is_right_and_finite_for_equal_eigenvalues():
    a = drawn(2, 3, 3)
    matrices = (a @ a.mT + torch.eye(3)).requires_grad_()
    symmetric = lambda m: InverseRoot.apply((m + m.mT) / 2)  # noqa: E731
    assert torch.autograd.gradcheck(symmetric, (matrices,), atol=1e-6)
    equal = torch.eye(3).double()[None].requires_grad_()
    symmetric(equal).sum().backward()
    assert torch.allclose(equal.grad, -0.5 * torch.ones(1, 3, 3).double())


def test_the_loss_of_whitenedcse_is_the_mean_over_its_positives(run_config):
    state = prepare(run_config.replace(pooler="cls_before_pooler")).state
    width = state.encoder.embedding_dim
    method = GroupWhitening(GroupWhiteningOptions(size=4), ModelContext(encoder=state.encoder)).double()
    z1, z2, z3 = (drawn(6, width, seed=seed) for seed in range(3))
    uniform = lambda purpose, n: drawn(6, n, seed=len(purpose)).sigmoid()  # noqa: E731
    duplicates = torch.zeros(6, 6, dtype=torch.bool)
    duplicates[1, 4] = duplicates[4, 1] = True
    step = BatchStep(0, 10, 0, 0, torch.arange(6), uniform, encode=lambda name: z3)
    keys = dict.fromkeys(("anchor", "positive"), torch.tensor([0, 1, 2, 3, 1, 5])[:, None])
    views = method(Views({"anchor": z1, "positive": z2}, keys=keys), step)
    settings = {"roles": views.roles, "log_weights": views.log_weights, "keys": views.keys}
    found = contrastive_loss(views.embeddings, temperature=0.1, **settings)
    names = ("anchor", "positive", "positive 2")
    orders = [uniform(f"group whitening {name}", width)[0].argsort() for name in names]
    a, *others = (
        method.layers(group_whitening(z, order, 4, 1e-5)) for z, order in zip((z1, z2, z3), orders, strict=True)
    )
    losses = []
    for b in others:
        for i in range(6):
            s = [cosine(a[i], b[j]) / 0.1 for j in range(6) if not duplicates[i, j]]
            losses.append(math.log(sum(map(math.exp, s))) - cosine(a[i], b[i]) / 0.1)
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-9)
    with pytest.raises(InputError, match=r"group-whitening\.size must divide"):
        GroupWhitening(GroupWhiteningOptions(size=7), ModelContext(encoder=state.encoder))


def test_infocse_reads_the_embedding_before_the_projector_and_trains_the_encoder_by_it(run_config, masked_model):
    few = {"frozen_layers": 1, "head_layers": 1}
    run = prepare(run_config.replace(model=str(masked_model), loss_terms=("infocse",), infocse=few))
    assert run.settings.methods.feature_augmentations == ("state-projector",)
    term = run.state.terms["infocse"].double()
    assert isinstance(term, InfoCSE)
    names = set(run.state.weights())
    assert not any("frozen" in name for name in names)
    assert any(name.startswith("terms.infocse.decoder") for name in names)
    tokens = {"input_ids": torch.tensor([[2, 9, 10, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    z = drawn(1, run.state.encoder.embedding_dim).requires_grad_()
    logits = term.eval().logits(tokens, z)
    assert logits.shape == (1, 4, len(run.state.encoder.tokenizer))
    (gradient,) = torch.autograd.grad(logits[0, 2].logsumexp(0), z)
    assert gradient.abs().sum() > 0
    # Without the embedding, the decoder would see the frozen state at position 0; the other positions are frozen.
    states = term.frozen(**tokens).last_hidden_state
    assert torch.allclose(term.logits(tokens, states[:, 0]), term.head(term.decoded(states, tokens)))
    with pytest.raises(InputError, match="must be at most"):
        prepare(run_config.replace(model=str(masked_model), loss_terms=("infocse",), infocse={"head_layers": 99}))


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("He is not here .", "He is here ."),
        ("She can swim .", "She can not swim ."),
        ("They don't know .", "They do know ."),
        ("It won't rain .", "It will rain ."),
        ("He walked home .", "Not He walked home ."),
        ("WAS it you", "WAS not it you"),
    ],
)
def test_a_sentence_is_negated_by_a_list_of_words(text, negated):
    assert negate_words(text) == negated


@pytest.mark.parametrize(
    ("tokens", "negated"),
    [
        ("He/nsubj/PRP/he walked/ROOT/VBD/walk home/advmod/RB/home", "He did not walk home"),
        ("He/nsubj/PRP/he has/aux/VBZ/have gone/ROOT/VBN/go", "He has not gone"),
        ("She/nsubj/PRP/she is/ROOT/VBZ/be old/acomp/JJ/old", "She is not old"),
        ("Do/aux/VB/do not/neg/RB/not go/ROOT/VB/go", "Do go"),
        ("Go/ROOT/VB/go", "Not Go"),
        ("They/nsubj/PRP/they run/ROOT/VBP/run", "They do not run"),
    ],
)
def test_a_parsed_sentence_is_negated_as_in_the_released_code(tokens, negated):
    class Token(str):
        def __new__(cls, text, dep, tag, lemma):
            self = super().__new__(cls, text)
            self.dep_, self.tag_, self.lemma_ = dep, tag, lemma
            return self

    assert negate_parsed([Token(*token.split("/")) for token in tokens.split()]) == negated


def test_the_margin_of_soft_negatives_equals_its_loop_and_needs_negations():
    z1, z2, z3 = (drawn(5, 3, seed=seed) for seed in range(3))
    mask = torch.tensor([True, False, True, True, True])
    views = Views({"anchor": z1, "positive": z2, "edited": z3}, masks={"edited": mask})
    term = SoftNegative(SoftNegativeOptions(weight=0.5), TextContext())
    expected = 0.0
    for i in (0, 2, 3, 4):
        d = cosine(z1[i], z3[i]) - cosine(z1[i], z2[i])
        expected += max(d + 0.1, 0) + max(-d - 0.3, 0)
    assert term(views, None).item() == pytest.approx(0.5 * expected / 4, rel=1e-9)
    with pytest.raises(InputError, match="use --positive negation"):
        term(Views({"anchor": z1, "positive": z2}), None)
    with pytest.raises(InputError, match=r"negation\.parser: no_such_pipeline cannot be loaded"):
        Negation(NegationOptions(parser="no_such_pipeline"), TextContext())


@pytest.mark.parametrize(
    ("negatives", "mode"), [("all", "all_negatives"), ("in-batch", "in_batch_negatives"), ("hard", "hard_negatives")]
)
def test_hardness_weights_equal_those_of_sentence_transformers(negatives, mode):
    z = [drawn(5, 4, seed=seed).requires_grad_() for seed in range(3)]
    views = Hardness(HardnessOptions(2.0, negatives), TextContext())(
        Views(dict(zip(("anchor", "positive", "hard_negative"), z, strict=True))), None
    )
    found = contrastive_loss(views.embeddings, log_weights=views.log_weights, temperature=0.05)
    theirs = library.MultipleNegativesRankingLoss(None, scale=20.0, hardness_mode=mode, hardness_strength=2.0)
    expected = theirs.compute_loss_from_embeddings(z, None)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    ours, other = (torch.autograd.grad(loss, z, retain_graph=True) for loss in (found, expected))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, other, strict=True))


@pytest.mark.parametrize(("margin", "strategy"), [(0.0, "absolute"), (0.2, "absolute"), (0.3, "relative")])
def test_gist_leaves_out_what_the_guide_finds_similar(margin, strategy, run_config):
    encoder = prepare(run_config).state.encoder
    z = {name: drawn(6, 4, seed=seed) for seed, name in enumerate(("anchor", "positive", "hard_negative"))}
    guided = {name: drawn(6, 3, seed=seed + 5) for seed, name in enumerate(z)}
    method = GIST(GISTOptions(margin=margin, strategy=strategy), ModelContext(encoder=encoder))
    step = SimpleNamespace(encode=lambda name, guide: guided[name])
    views = method(Views(z), step)
    found = contrastive_loss(views.embeddings, log_weights=views.log_weights, temperature=0.1)
    losses, left_out = [], 0
    for i in range(6):
        own = cosine(guided["anchor"][i], guided["positive"][i])
        limit = own - margin * (abs(own) if strategy == "relative" else 1)
        terms = [cosine(z["anchor"][i], z["positive"][i]) / 0.1]
        for name in ("positive", "hard_negative"):
            for j in range(6):
                if name == "positive" and i == j:
                    continue
                if cosine(guided["anchor"][i], guided[name][j]) > limit:
                    left_out += 1
                else:
                    terms.append(cosine(z["anchor"][i], z[name][j]) / 0.1)
        losses.append(math.log(sum(map(math.exp, terms))) - terms[0])
    assert left_out > 0
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-9)


def test_orthogonality_equals_that_of_sentence_transformers():
    z = [drawn(5, 4, seed=seed) for seed in range(2)]
    found = Orthogonality(OrthogonalityOptions(0.3, 0.7), TextContext())(
        Views({"anchor": z[0], "positive": z[1]}), None
    )
    theirs = library.GlobalOrthogonalRegularizationLoss(None, mean_weight=0.3, second_moment_weight=0.7)
    assert found.item() == pytest.approx(sum(theirs.compute_loss_from_embeddings(z).values()).item(), rel=1e-12)


def cosines(a, b):
    return np.array([[cosine(x, y) for y in b] for x in a])


@pytest.mark.parametrize("ranking", ["listnet", "listmle"])
@pytest.mark.parametrize("valid", [[True] * 5, [True, True, False, True, True]])
def test_rankcse_equals_its_double_loop(monkeypatch, ranking, valid):
    z1, z2, *taught = (drawn(5, 4, seed=n) for n in range(6))
    teachers = {"a": taught[:2], "b": taught[2:]}

    def load(self, name, flag, same_tokens):
        teacher = torch.nn.Module()
        teacher.name = name
        return teacher

    monkeypatch.setattr(ModelContext, "load_model", load)
    options = RankCSEOptions(("a", "b"), 0.3, ranking, 0.7, 0.4, temperature=0.2, teacher_temperature=0.1)
    term = RankCSE(options, ModelContext(encoder=None))
    step = SimpleNamespace(encode=lambda view, model: teachers[model.name][view == "positive"])
    views = Views({"anchor": z1, "positive": z2}, masks={"positive": torch.tensor(valid)})
    s = cosines(z1, z2) / 0.2
    t = sum(w * cosines(*teachers[name]) for w, name in ((0.3, "a"), (0.7, "b"))) / 0.1
    rows = [i for i in range(5) if valid[i]]
    rank, js = 0.0, 0.0
    for i in rows:
        if ranking == "listnet":
            others = [j for j in rows if j != i]
            for j in others:
                p = math.exp(t[i, j]) / sum(math.exp(t[i, k]) for k in others)
                rank -= p * math.log(math.exp(s[i, j]) / sum(math.exp(s[i, k]) for k in others))
        else:
            order = sorted(rows, key=lambda j: -t[i, j])
            for k, j in enumerate(order):
                rank += math.log(sum(math.exp(s[i, m]) for m in order[k:])) - s[i, j]
        for j in rows:
            p = math.exp(s[i, j]) / sum(math.exp(s[i, k]) for k in rows)
            q = math.exp(s[j, i]) / sum(math.exp(s[k, i]) for k in rows)
            js += (p * math.log(2 * p / (p + q)) + q * math.log(2 * q / (p + q))) / 2
    assert term(views, step).item() == pytest.approx((0.7 * rank + 0.4 * js) / len(rows), rel=1e-9)

"""Tests of SCD, the momentum queue, EMA, AugCSE and word substitution against reference implementations."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cse.context import TextContext
from cse.losses.contrastive import contrastive_loss
from cse.rng import Draws
from cse.views import Views
from cse_papers.ema import EMA, EMAOptions
from cse_papers.esimcse import Momentum, MomentumOptions
from cse_papers.scd import SCD, SCDOptions, decorrelation
from cse_papers.simcse_ablations import Crop, CropOptions, Substitution, SubstitutionOptions, whole_words
from runs import drawn


def standardised(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def projected(x, layers):
    first, second, third = layers
    return np.maximum(standardised(np.maximum(standardised(x @ first.T), 0) @ second.T), 0) @ third.T


def test_scd_equals_its_formula():
    torch.manual_seed(0)
    options = SCDOptions(alpha=0.7, beta=0.03, off_diagonal=0.2, temperature=0.1, width=6)
    term = SCD(options, SimpleNamespace(encoder=SimpleNamespace(embedding_dim=4))).double().train()
    z1, z2 = drawn(9, 4), drawn(9, 4, seed=1)
    found = term(Views({"anchor": z1, "positive": z2}), None).item()
    layers = [each.weight.detach().numpy() for each in term.projector if isinstance(each, nn.Linear)]
    first, second = (standardised(projected(z.numpy(), layers)) for z in (z1, z2))
    spread = 0.0
    for k in range(6):
        for m in range(6):
            c = np.mean(first[:, k] * second[:, m])
            spread += (c - 1) ** 2 if k == m else 0.2 * c**2
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(z1.numpy(), z2.numpy(), strict=True)]
    assert found == pytest.approx(0.7 * np.mean(cosines) / 0.1 + 0.03 * spread, rel=1e-9)
    assert decorrelation(torch.eye(3).double() * 3**0.5, torch.eye(3).double() * 3**0.5, 1.0).item() == pytest.approx(0)


class Linear(nn.Linear):
    """A linear layer without bias, used as an encoder of vectors."""

    def __init__(self):
        super().__init__(3, 4, bias=False)
        self.embedding_dim = 4


def test_the_momentum_queue_equals_its_definition():
    torch.manual_seed(1)
    trained = Linear().double()
    method = Momentum(MomentumOptions(size=5, decay=0.9), SimpleNamespace(encoder=trained)).double()
    average, queue, texts = trained.weight.detach().numpy().copy(), np.zeros((0, 4)), []
    for number in range(4):
        x = drawn(3, 3, seed=number)
        step = SimpleNamespace(encode=lambda block, encoder, x=x: encoder(x))
        own = torch.arange(3)[:, None] + (0 if number == 3 else 3 * number)  # the last texts are the first ones again
        keys = dict.fromkeys(("anchor", "positive"), own)
        views = method(Views({"anchor": trained(x), "positive": trained(x)}, keys=keys, repeats=False), step)
        assert views.repeats
        assert views.equal("anchor", "queue")[:, views.masks["queue"]].tolist() == [
            [text == other for other in texts] for text in own[:, 0].tolist()
        ]
        texts = [*own[:, 0].tolist(), *texts][:5]
        valid = views.masks["queue"].numpy()
        assert valid.sum() == min(3 * number, 5)
        assert np.allclose(views["queue"].detach().numpy()[valid], queue[: valid.sum()], atol=1e-12)
        # The loss uses the embeddings in the queue as negatives of every anchor.
        found = contrastive_loss(
            dict(views.embeddings), temperature=0.2, objective="infonce", masks=views.masks, roles=views.roles
        )
        a, p = (views[name].detach().numpy() for name in ("anchor", "positive"))
        columns = np.concatenate([p, queue[: valid.sum()]])
        cosines = (
            (a / np.linalg.norm(a, axis=1)[:, None]) @ (columns / np.linalg.norm(columns, axis=1)[:, None]).T / 0.2
        )
        expected = np.mean([np.log(np.exp(row).sum()) - row[n] for n, row in enumerate(cosines)])
        assert found.item() == pytest.approx(expected, rel=1e-9)
        queue = np.concatenate([x.numpy() @ average.T, queue])[:5]
        with torch.no_grad():
            trained.weight += drawn(4, 3, seed=10 + number)
        method.after_step()
        average = 0.9 * average + 0.1 * trained.weight.detach().numpy()
        assert np.allclose(method.encoder.weight.detach().numpy(), average, atol=1e-12)


@pytest.mark.parametrize("variant", ["paper", "release"])
def test_the_momentum_encoder_has_an_averaged_head_or_the_current_one(variant):
    torch.manual_seed(1)
    trained = Linear().double()
    trained.head = nn.Sequential(nn.Linear(4, 4).double(), nn.Tanh())
    method = Momentum(MomentumOptions(size=3, decay=0.9, variant=variant), SimpleNamespace(encoder=trained)).double()
    body, head = trained.weight.detach().numpy().copy(), trained.head[0].weight.detach().numpy().copy()
    bias = trained.head[0].bias.detach().numpy().copy()
    for number in range(4):
        x = drawn(3, 3, seed=number)
        encode = lambda block, encoder, x=x: encoder.head(x @ encoder.weight.T)  # noqa: E731
        method(Views({"anchor": drawn(3, 4)}), SimpleNamespace(encode=encode))
        assert np.allclose(method.queue.numpy(), np.tanh(x.numpy() @ body.T @ head.T + bias), atol=1e-12)
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter += drawn(*parameter.shape, seed=10 + number)
        method.after_step()
        body = 0.9 * body + 0.1 * trained.weight.detach().numpy()
        kept = 0.9 if variant == "paper" else 0.0
        head = kept * head + (1 - kept) * trained.head[0].weight.detach().numpy()
        bias = kept * bias + (1 - kept) * trained.head[0].bias.detach().numpy()


@pytest.mark.parametrize("warmup", [False, True])
def test_ema_equals_its_recursion_and_is_used_only_in_evaluation(warmup):
    trained = Linear().double()
    method = EMA(EMAOptions(decay=0.8, warmup=warmup), SimpleNamespace(encoder=trained)).double()
    average = trained.weight.detach().numpy().copy()
    for number in range(1, 30):
        with torch.no_grad():
            trained.weight += drawn(4, 3, seed=number)
        method.after_step()
        kept = min(0.8, (1 + number) / (10 + number)) if warmup else 0.8
        average = kept * average + (1 - kept) * trained.weight.detach().numpy()
        before = trained.weight.detach().clone()
        with method.for_evaluation():
            assert np.allclose(trained.weight.detach().numpy(), average, atol=1e-6)
        assert torch.equal(trained.weight, before)


@pytest.mark.parametrize(("variant", "side"), [("cross-entropy", "left"), ("release", "right")])
def test_augcse_classifies_edits_and_reverses_the_encoder_gradient(variant, side):
    from cse_papers.augcse import AugCSE, AugCSEOptions, OneOf, OneOfOptions, choices

    context = TextContext()
    method = OneOf(OneOfOptions(edits=("crop", "aeda")), context)
    rows, draws = np.arange(200), Draws(1, 2)
    texts = ["one two three four five"] * 200
    found = method(texts, rows, draws)
    uniform = draws.uniform(rows, context.shared["edits"][1])[:, 0]
    edits = choices(uniform, 2)
    assert [len(text.split()) > 5 for text in found] == (edits == 1).tolist()  # aeda inserts punctuation marks as words
    assert 70 < edits.sum() < 130

    torch.manual_seed(0)
    trained = Linear()
    trained.tokenizer = SimpleNamespace(padding_side=side)
    term = AugCSE(
        AugCSEOptions(weight=0.5, reversal=2.0, variant=variant),
        SimpleNamespace(encoder=trained, shared=context.shared),
    ).double()
    term.eval()  # without dropout
    anchor, positive = drawn(200, 4).requires_grad_(), drawn(200, 4, seed=1).requires_grad_()
    # Row i has i % 5 + 1 tokens. A third of the rows is unchanged; the others are longer or have another first token.
    ids = np.arange(200)
    before = [[1 + (i + j) % 7 for j in range(i % 5 + 1)] for i in ids]
    after = [row if i % 3 == 0 else [row[0] + 1, *row[1:]] if i % 3 == 1 else [*row, 9] for i, row in enumerate(before)]
    step = SimpleNamespace(
        uniform=lambda purpose, n: torch.tensor(draws.uniform(rows, purpose, n).astype(np.float32)),
        tokens={"anchor": padded(before, side), "positive": padded(after, side)},
    )
    total, count = term(Views({"anchor": anchor, "positive": positive}), step)
    labels = [2 if i % 3 == 0 else edit for i, edit in enumerate(edits)]
    _, first, _, _, last = term.discriminator
    assert (first.weight.shape, last.weight.shape) == ((16, 8), (3, 16))
    logits = last(torch.tanh(first(torch.cat([anchor, positive], dim=1))))
    if variant == "release":
        p = torch.sigmoid(torch.tanh(logits))
        losses = [
            -sum(torch.log(p[i, k] if k == label else 1 - p[i, k]) for k in range(3)) / 3
            for i, label in enumerate(labels)
        ]
    else:
        losses = [torch.logsumexp(row, 0) - row[label] for row, label in zip(logits, labels, strict=True)]
    expected = 0.5 * sum(losses)
    assert (total.item(), count.item()) == (pytest.approx(expected.item(), rel=1e-9), 200)
    given = [anchor, positive, first.weight]
    plain = torch.autograd.grad(expected, given, retain_graph=True)
    turned = torch.autograd.grad(total, given)
    for one, other, factor in zip(plain, turned, (-2, -2, 1), strict=True):
        assert torch.allclose(other, factor * one, rtol=1e-9, atol=1e-12)


def padded(rows, side):
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]
    ids = [[*zeros, *row] if side == "left" else [*row, *zeros] for row, zeros in zip(rows, fill, strict=True)]
    return {"input_ids": torch.tensor(ids), "attention_mask": (torch.tensor(ids) > 0).long()}


def test_substituted_words_are_the_most_likely_whole_words(masked_model, sample_rows):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    method = Substitution(SubstitutionOptions(model=str(masked_model), share=0.2, length=60), TextContext())
    texts, rows = sample_rows[:12], np.arange(12)
    found = method(texts, rows, Draws(3, 1))
    assert found == method(texts, rows, Draws(3, 1))
    assert found[4:7] == method(texts[4:7], rows[4:7], Draws(3, 1))  # does not depend on the other rows
    tokenizer, model = (
        AutoTokenizer.from_pretrained(masked_model),
        AutoModelForMaskedLM.from_pretrained(masked_model).eval(),
    )
    usable = whole_words(tokenizer)
    for text, new in zip(texts, found, strict=True):
        old, words = text.split(), new.split()
        places = [n for n, (a, b) in enumerate(zip(old, words, strict=True)) if a != b]
        assert 0 < len(places) <= max(1, round(0.2 * len(old)))
        if len(places) != max(1, round(0.2 * len(old))):
            continue  # a masked word beyond the token limit is not replaced
        masked = " ".join("[MASK]" if n in places else word for n, word in enumerate(old))
        tokens = tokenizer(masked, return_tensors="pt", truncation=True, max_length=60)
        at = (tokens["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        with torch.no_grad():
            scores = model(**tokens).logits[0, at].masked_fill(~usable, -torch.inf)
        for place, row in zip(places, scores, strict=True):
            best = [tokenizer.decode([n]) for n in row.topk(2).indices.tolist()]
            assert words[place] == next(word for word in best if word.lower() != old[place].lower())


def test_every_word_is_substituted_equally_often(masked_model):
    method = Substitution(SubstitutionOptions(model=str(masked_model), share=0.25), TextContext())
    rows = np.arange(2000)
    counts = np.zeros(4)
    texts = ["alpha beta gamma delta"] * 2000
    for text in method(texts, rows, Draws(0, 0)):
        counts += [a != b for a, b in zip(text.split(), texts[0].split(), strict=True)]
    assert counts.sum() == 2000
    marked = ["alpha [MASK] beta gamma", "[MASK][MASK]"]
    assert method(marked, rows[:2], Draws(0, 0)) == marked
    assert (abs(counts - 500) < 4 * np.sqrt(2000 * 0.25 * 0.75)).all()


def test_words_are_substituted_in_what_a_crop_leaves(masked_model, sample_rows):
    options = {"model": str(masked_model), "share": 0.2}
    texts, rows, draws = sample_rows[:12], np.arange(12), Draws(3, 1)
    cropped = Crop(CropOptions(0.3), None)(texts, rows, draws)
    assert Substitution(SubstitutionOptions(**options, crop=0.3), TextContext())(texts, rows, draws) == Substitution(
        SubstitutionOptions(**options), TextContext()
    )(cropped, rows, draws)
    assert all(len(short.split()) < len(text.split()) for short, text in zip(cropped, texts, strict=True))

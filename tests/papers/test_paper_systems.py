"""The formulas of systems of papers; test_systems.py tests them in the training loop."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from cse import Encoder, InputError, train
from cse.augment.base import View
from cse.context import ModelContext, TextContext
from cse.encoder.resolve import find_model
from cse.encoder.trained import load_encoder
from cse.hooks.base import hooked
from cse.rng import Draws
from cse.training.batches.prepared import Prefetcher
from cse.training.setup import prepare
from cse.training.step import encode
from cse.training.step.encode import Inputs, encode_views, encoder_of, step_of_rows
from cse.views import BatchStep, RowStep, Views
from cse_papers.dclr import ascend
from cse_papers.efficientcl import PCAJitter, PCAJitterOptions, pca_jitter
from cse_papers.modals import Modals, ModalsOptions
from cse_papers.promptbert import PromptOptions, mask_template
from runs import after_head, drawn, first_batches, in_float64
from sentence_models import as_on_the_hub


def batch_step(rows, seed=3):
    uniform = lambda purpose, count: torch.from_numpy(Draws(seed, 0).uniform(rows, purpose, count))  # noqa: E731
    return BatchStep(number=0, steps=10, epoch=0, seed=seed, rows=torch.from_numpy(rows), uniform=uniform)


@pytest.mark.parametrize("kind", ["interpolation", "extrapolation", "linear", "noise"])
def test_the_method_modals_equals_its_formulas(kind):
    rows = np.arange(6) * 5
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    method = Modals(ModalsOptions(kind=kind, magnitude=0.3), TextContext())
    step = batch_step(rows)
    found = method(Views({"anchor": x, "positive": x}), step)
    assert torch.equal(found["anchor"], x)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        if kind == "interpolation":
            y = max(others, key=lambda j: float(normalize(x[i], dim=0) @ normalize(x[j], dim=0)))
            expected = x[i] + 0.3 * (x[y] - x[i])
        elif kind == "extrapolation":
            expected = x[i] + 0.3 * (x[i] - sum(x) / 6)
        elif kind == "noise":
            deviation = torch.stack([x[:, d].var(correction=0).sqrt() for d in range(4)])
            expected = x[i] + 0.3 * step.normal("modals noise", 4)[i] * deviation
        else:
            differences = [x[a] - x[b] for a in others for b in others if a != b]
            moved = (found["positive"][i] - x[i]) / 0.3
            assert min(float((moved - each).norm()) for each in differences) < 1e-12
            continue
        assert torch.allclose(found["positive"][i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["paper", "release"])
def test_pca_jitter_equals_its_formula(variant):
    states = drawn(3, 5, 4)
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    alpha = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    found = pca_jitter(states, mask, alpha, variant)
    for i, count in enumerate((5, 3, 2)):
        x = states[i, :count].numpy()
        norm = np.linalg.norm(x)
        values, vectors = np.linalg.eigh(np.cov((x / norm).T))
        largest = vectors[np.abs(vectors).argmax(0), np.arange(4)]
        shift = norm * (vectors * np.sign(largest)) @ (float(alpha[i]) * values)
        shift = np.full(4, shift.sum()) if variant == "release" else shift
        assert np.allclose(found[i, :count].numpy(), x + shift, rtol=0, atol=1e-9)
        assert torch.equal(found[i, count:], states[i, count:])


def test_the_curriculum_of_pca_jitter_grows_over_the_run(tiny_bert):
    def ratios(**options):
        context = ModelContext(encoder=load_encoder(find_model(tiny_bert), "cls"))
        method = PCAJitter(PCAJitterOptions(layers=(0,), **options), context)
        facts = {"epoch": 0, "seed": 0, "rows": torch.zeros(1), "uniform": None}
        return [method.ratio(RowStep(number=number, steps=20, **facts)) for number in range(20)]

    assert ratios(curriculum="discrete") == pytest.approx([0.01 * (1 + number // 2) for number in range(20)])
    assert ratios(curriculum="continuous") == pytest.approx([0.01 + 0.1 * number / 20 for number in range(20)])
    assert ratios(curriculum="none", ratio=0.05) == [0.05] * 20


@pytest.mark.parametrize("in_batch", [False, True])
def test_dclr_noise_follows_the_normalised_gradient_of_the_loss(in_batch):
    anchors, positives, noise = (drawn(4, 6, seed=seed) for seed in range(3))

    def loss(noise):
        a, p, n = (normalize(z, dim=-1) for z in (anchors, positives, noise))
        own = a @ p.T if in_batch else (a * p).sum(1, keepdim=True)
        target = torch.arange(4) if in_batch else torch.zeros(4, dtype=torch.long)
        return torch.nn.functional.cross_entropy(torch.cat([own, a @ n.T], 1) / 0.05, target)

    found = ascend(noise, anchors, positives, 1, 1e-2, 0.05, in_batch)
    copy = noise.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(copy), copy)
    assert torch.allclose(found, noise + 1e-2 * gradient / gradient.norm(dim=1, keepdim=True), rtol=0, atol=1e-12)
    assert loss(ascend(noise, anchors, positives, 4, 1e-2, 0.05, in_batch)) > loss(noise)


def test_dclr_removes_pairs_above_the_similarity_threshold(run_config, system):
    run = prepare(run_config.replace(**system("dclr")))
    in_float64(run)
    h, z = drawn(4, 8), drawn(4, 32)
    step = replace(batch_step(np.arange(4)), encode=lambda block, model: h)
    found = run.state.features["dclr"](Views({"anchor": z, "positive": z}), step)
    assert found["noise"].shape == (10, 32)
    assert found.roles["noise"] == "negative"
    assert torch.equal(found.log_weights["anchor", "positive"], removed_above(h, h, lambda s: s >= 0.5))


def removed_above(first, second, close):
    weights = torch.zeros(len(first), len(first), dtype=torch.float64)
    for i in range(len(first)):
        for j in range(len(first)):
            if i != j and close(float(normalize(first[i], dim=0) @ normalize(second[j], dim=0))):
                weights[i, j] = -torch.inf
    return weights


def test_the_second_encoder_of_dclr_release_applies_dropout_to_anchors_and_positives(run_config, system):
    run = prepare(run_config.replace(**system("dclr release")))
    in_float64(run)
    method = run.state.features["dclr"]
    (batch,) = first_batches(run)
    calls = []

    def encode(name, model):
        z = torch.stack([model.embed(dict(batch.tokens[name])) for _ in range(2)])
        calls.append((name, bool((z[0] != z[1]).any())))
        assert not model.model.backbone.training
        return z[0]

    views = {name: drawn(8, 32, seed=seed) for seed, name in enumerate(("anchor", "positive"))}
    step = replace(batch_step(batch.rows), encode=encode)
    for training in (False, True):
        method.train(training)
        torch.manual_seed(5)
        found = method(Views(dict(views)), step)
        assert calls == [("anchor", training), ("positive", training)]
        calls.clear()
        # The twin: cosines of anchors and positives of other rows, from the same dropout masks.
        torch.manual_seed(5)
        model = method.model.model
        model.backbone.train(training)
        h = []
        for name in views:
            h.append(model.embed(dict(batch.tokens[name])).detach())
            model.embed(dict(batch.tokens[name]))
        model.backbone.eval()
        weights = found.log_weights["anchor", "positive"]
        assert torch.equal(weights, removed_above(*h, lambda s: s > 0.5))
        assert torch.equal(found.log_weights["positive", "anchor"], weights.T)
    assert weights.isinf().any()
    assert not weights.isinf().all()
    # The noise was moved on the loss with in-batch negatives.
    parts = [step.normal(f"dclr noise {number}", 32) for number in range(2)]
    noise = ascend(torch.cat(parts)[:12].double(), views["anchor"], views["positive"], 4, 1e-3, 0.05, in_batch=True)
    assert torch.allclose(found["noise"], noise, rtol=0, atol=1e-12)


def test_diffcse_classifies_the_tokens_that_its_generator_replaced(run_config, system):
    run = prepare(run_config.replace(**system("diffcse")))
    in_float64(run)
    term = run.state.terms["diffcse"]
    stored = run.state.weights()  # of checkpoints; frozen models are left out
    assert not any("generator" in name for name in stored)
    assert any(name.startswith("terms.diffcse.discriminator") for name in stored)
    (batch,) = first_batches(run)
    tokens = batch.tokens["anchor"]
    uniform = lambda purpose, count: torch.from_numpy(Draws(0, 0).uniform(batch.rows, purpose, count))  # noqa: E731
    step = RowStep(0, 1, 0, 0, torch.from_numpy(batch.rows), uniform, tokens=batch.tokens)
    z = torch.randn(8, 32, dtype=torch.float64, requires_grad=True)
    total, count = term(Views({"anchor": z, "positive": z}), step)
    real = tokens["attention_mask"].bool()
    assert int(count) == 2 * int(real.sum())
    expected = 0.0
    for view in ("anchor", "positive"):
        filled, replaced = term.edited(tokens, step, view)
        assert torch.equal(filled[~real], tokens["input_ids"][~real])
        assert 0.1 < float((filled != tokens["input_ids"])[real].double().mean()) < 0.5
        scores = term.scores({**tokens, "input_ids": filled}, z)
        for i, t in zip(*torch.where(real), strict=True):
            expected -= float(torch.log_softmax(scores[i, t], 0)[int(replaced[i, t])])
    assert float(total) == pytest.approx(0.5 * expected, rel=1e-9)
    total.backward()
    assert z.grad.abs().sum(1).min() > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss_terms": ("diffcse",), "diffcse": {"generator": "TINY"}}, "diffcse.generator: .* no weights"),
        ({"positive_encoder": "nowhere/at/all"}, "no such folder"),
        ({"loss": "scd", "negatives": ("una",)}, "--loss scd uses no negatives, so --negative una has no effect"),
        ({"loss_terms": ("augcse",), "positive": "crop"}, "--loss-term augcse .*; use --positive one-of"),
        ({"positive": "one-of", "one-of": {"edits": ("crop", "odd")}}, "one-of.edits: 'odd' is unknown"),
        ({"positive": "one-of", "one-of": {"edits": ("crop", "dropout")}}, "one-of.edits: dropout is not"),
        ({"loss_terms": ("contrastive",)}, "--loss-term contrastive is part of"),
        ({"loss_terms": ("matryoshka",), "dims": "8"}, "--dims would train .* the MLP head, which is not saved"),
        ({"positive_hook": "pca", "pca": {"layers": (0, 99)}}, "pca.layers: 99 is not .*; give numbers from 0 to 2"),
        ({"positive_hook": "pca", "pca": {"layers": (3,)}}, "pca.layers: 3 is not a layer whose output goes into one"),
        ({"feature_augmentations": ("dclr",), "dclr": {"noise": 0}}, "dclr.noise: is 0, and without dclr.model"),
        ({"keep_head": True, "pooler": "avg"}, "--keep-head: --pooler avg has no MLP head to keep"),
        ({"min_df": 2}, "--min-df selects terms of the TF-IDF index, which the run does not use"),
        (
            {"positive": "dropout", "dropout": {"mask": "shared"}, "positive_hook": "pca"},
            "--positive dropout: its options share a dropout mask",
        ),
        ({"positive_hook": "second-template"}, "--positive-hook second-template belongs to --encoder-method prompt"),
        (
            {"loss_terms": ("rankcse",), "rankcse": {"teachers": ("a", "b", "c")}},
            "must be one or two .* got 3",
        ),
        ({"pooler": "mask"}, "--pooler mask: the tokenizer of .* adds no mask token"),
        ({"encoder_methods": ("prompt",), "prompt": {"template": "no place"}}, "must have one {} and then one"),
        (
            {"encoder_methods": ("prompt",), "prompt": {"positive_template": "a much longer text : {} means [MASK]."}},
            "prompt.positive_template: must have as many tokens",
        ),
    ],
)
def test_invalid_methods_and_options_are_refused(run_config, tiny_bert, values, message):
    values = json.loads(json.dumps(values).replace("TINY", str(tiny_bert)))
    with pytest.raises(InputError, match=message):
        train(run_config.replace(**values))


def repeated(ids, row, epoch, variant, rate=0.32, added=2):
    """The twin: repeats tokens as the paper and the released code of ESimCSE describe it, with the draws of cse."""
    draws, inner = Draws(0, epoch), len(ids) - added
    number = min(max(2, int(rate * inner)), inner) + 1
    if variant == "release":
        number = max(1, min(10, int(rate * len(ids))))
    count = int(draws.uniform([row], "repetition count")[0, 0] * number)
    keys = draws.uniform([row], "repetition", inner)[0]
    chosen = {1 + place for place in sorted(range(inner), key=lambda place: keys[place])[:count]}
    return [token for place, token in enumerate(ids) for _ in range(1 + (place in chosen))]


@pytest.mark.parametrize(
    ("kind", "variant", "mapped"), [("bert", "paper", True), ("roberta", "paper", False), ("bert", "release", False)]
)
def test_tokens_are_repeated_after_truncation(run_config, kind, variant, mapped, request, monkeypatch, tmp_path):
    if mapped:
        monkeypatch.setattr("cse.data.cache.IN_MEMORY_BYTES", 0)
    model = str(request.getfixturevalue(f"tiny_{kind}"))
    options = {"repetition": {"variant": variant}}
    config = run_config.replace(model=model, positive="repetition", options=options, max_length=24, batch_size=32)
    run = prepare(config.replace(cache=str(tmp_path / "cache"), max_steps=None, epochs=1))
    assert bool(run.tokens) == mapped
    tokenizer = run.state.encoder.tokenizer
    added = []
    with Prefetcher(run.batches, tokenizer, 24, stored=run.tokens) as prefetcher:
        for step in range(10):
            (batch,) = prefetcher.get(step)
            originals = tokenizer(run.batches.corpus.take(batch.rows), truncation=True, max_length=24)["input_ids"]
            tokens = batch.tokens["positive"]
            changed = 0
            for row, ids, new, mask in zip(
                batch.rows, originals, tokens["input_ids"], tokens["attention_mask"], strict=True
            ):
                found = new[mask.bool()].tolist()
                assert found == repeated(ids, row, 0, variant)
                changed += found != ids
                added += [len(found) - len(ids)] if len(ids) == 24 else []
            assert batch.unchanged == {"positive": 32 - changed}
            assert all(value.shape == tokens["input_ids"].shape for value in tokens.values())
            assert not tokens.get("token_type_ids", torch.zeros(1)).any()
    # In truncated sentences, 0 to 7 tokens are repeated, or in the released code 0 to 6; the sentence keeps its end.
    assert len(added) > 100
    assert set(added) == set(range(8 if variant == "paper" else 7))


def test_the_tokens_of_a_prompt_or_template_are_not_repeated(run_config, system):
    for values in (system("prompt"), {"prompt": "the word : "}):
        run = prepare(run_config.replace(**values, positive="repetition", options={"repetition": {"rate": 0.9}}))
        tokenizer = run.state.encoder.tokenizer
        (batch,) = first_batches(run)
        prefix = tokenizer(values.get("prompt") or "", add_special_tokens=True)["input_ids"]
        if "prompt" in values:
            prefix, suffix = prefix[:-1], prefix[-1:]
        else:  # the template without a text
            place = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"].index(0)
            prefix, suffix = prefix[:place], prefix[place:]
            assert len(prefix) > 2
            assert len(suffix) > 2
        assert sum(batch.unchanged.values()) < 8
        for name in ("anchor", "positive"):
            for ids, mask in zip(batch.tokens[name]["input_ids"], batch.tokens[name]["attention_mask"], strict=True):
                row = ids[mask.bool()].tolist()
                assert row[: len(prefix)] == prefix
                assert row[-len(suffix) :] == suffix
        for ids, new in zip(batch.tokens["anchor"]["input_ids"], batch.tokens["positive"]["input_ids"], strict=True):
            assert set(ids.tolist()) - {0} == set(new.tolist()) - {0}  # 0 is padding


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_every_loader_applies_the_saved_template_of_a_model_and_does_not_truncate_it(
    run_config, tmp_path, kind, sample_rows
):
    from sentence_transformers.sentence_transformer.modules import Transformer
    from transformers import AutoModel, AutoTokenizer

    model = as_on_the_hub(tmp_path / "model", kind, sample_rows[:1000])
    plain = AutoTokenizer.from_pretrained(model)
    assert type(plain).__name__ == {"bert": "BertTokenizer", "roberta": "RobertaTokenizer"}[kind]
    changes = {"encoder_methods": ("prompt",), "prompt": {"positive_template": ""}, "max_steps": 2, "max_length": 48}
    best = train(run_config.replace(model=str(model), **changes)).folder / "best"
    texts = ["A Short one.", *sample_rows[:3], " ".join(sample_rows[:20])]
    encoder, loaded = Encoder(best, device="cpu"), AutoTokenizer.from_pretrained(best)
    template = mask_template(PromptOptions().template, plain)
    room = 64 - len(template.prefix) - len(template.suffix)
    inner = [plain(text, add_special_tokens=False)["input_ids"][:room] for text in texts]
    wanted = [[*template.prefix, *ids, *template.suffix] for ids in inner]
    assert len(wanted[-1]) == 64
    first = Transformer.load(str(best)).tokenizer
    for name, tokenizer in {"AutoTokenizer": loaded, "Transformer": first, "cse": encoder.tokenizer}.items():
        assert tokenizer(texts, truncation=True, max_length=64)["input_ids"] == wanted, name
    assert ("token_type_ids" in loaded("a")) == (kind == "bert")
    tokens = loaded(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(best).eval()(**tokens).last_hidden_state
    mask = tokens["input_ids"] == loaded.mask_token_id
    assert np.allclose(encoder.encode(texts), states[mask].numpy(), atol=1e-5)


def test_template_denoising_subtracts_the_vector_of_the_template_without_the_sentence(run_config, system):
    run = prepare(run_config.replace(**system("prompt")))
    in_float64(run)
    encoder, method = run.state.encoder, run.state.methods["prompt"]
    (batch,) = first_batches(run)
    tokens = batch.tokens["anchor"]
    found = encoder[2][0].bias(tokens["input_ids"], tokens["attention_mask"])
    before, after = len(method.template.prefix), len(method.template.suffix)
    for i, mask in enumerate(tokens["attention_mask"]):
        length = int(mask.sum()) - before - after
        ids = torch.tensor([method.template.prefix + method.template.suffix])
        positions = torch.tensor([[*range(before), *range(before + length, before + length + after)]])
        states = encoder.backbone(input_ids=ids, position_ids=positions).last_hidden_state
        at = (method.template.prefix + method.template.suffix).index(encoder.tokenizer.mask_token_id)
        assert torch.allclose(found[i], states[0, at], rtol=0, atol=1e-12)
    encoder.train()
    for module in encoder.modules():
        if isinstance(getattr(module, "p", None), float):
            module.p = 0.0
    full = encoder.backbone(**tokens).last_hidden_state
    at = tokens["input_ids"] == encoder.tokenizer.mask_token_id
    assert torch.allclose(encoder.embed(dict(tokens)), after_head(encoder, full[at] - found), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_the_refused_combinations_in_the_documentation_are_those_of_the_printed_table(cse):
    docs = Path(__file__).parents[2] / "docs" / "systems.md"
    if not docs.exists():
        pytest.skip("there is no folder docs/ next to tests/")
    # The command runs in another process, because tests register methods in this process.
    printed = cse("methods", "--combinations").stdout.strip()
    table, _, notes = printed.partition("\n\n")
    assert docs.read_text(encoding="utf8").endswith(f"\n\n{notes}\n")
    assert set(re.findall(r"no \((\d+)\)", table)) == {reason.partition(".")[0] for reason in notes.splitlines()}


def test_modals_of_kind_linear_draws_its_two_rows_uniformly():
    modals = Modals(ModalsOptions(kind="linear"), TextContext())
    counts = np.zeros((5, 5))
    for seed in range(3000):
        # Row i is the unit vector e_i, so the change is positive at the first drawn row and negative at the second.
        change = modals.changed(torch.eye(5), batch_step(np.arange(5), seed))[0] - torch.eye(5)[0]
        counts[change.argmax(), change.argmin()] += 1
    allowed = ~np.eye(5, dtype=bool)
    allowed[0] = allowed[:, 0] = False
    assert counts[~allowed].sum() == 0
    assert ((counts[allowed] - 250) ** 2 / 250).sum() < 32  # chi-squared with 11 degrees of freedom, p = 0.001


def test_repeated_tokens_are_padded_to_a_fixed_length_of_their_own(run_config, monkeypatch):
    run = prepare(run_config.replace(positive="repetition", max_length=24, batch_size=32))
    padded = first_batches(run)[0].tokens
    monkeypatch.setattr("cse.training.batches.tokens.fixed_length", lambda device, compiled, longest: longest)
    fixed = first_batches(run)[0].tokens
    assert fixed["anchor"]["input_ids"].shape == (32, 24)
    assert fixed["positive"]["input_ids"].shape == (32, 31)  # floor(0.32 * 22) = 7 repeated tokens
    width = padded["positive"]["input_ids"].shape[1]
    assert torch.equal(fixed["positive"]["input_ids"][:, :width], padded["positive"]["input_ids"])
    assert fixed["positive"]["attention_mask"].sum() == padded["positive"]["attention_mask"].sum()


def test_the_second_encoder_of_dclr_release_has_the_dropout_of_the_view(run_config, system, monkeypatch):
    rates = []

    def count(backbone, probability, original=encode.dropout_of):
        rates.append((probability, backbone.training))
        return original(backbone, probability)

    monkeypatch.setattr(encode, "dropout_of", count)
    train(run_config.replace(**system("dclr release"), anchor_dropout=0.5, max_steps=1))
    # The anchors of the trained encoder, then those of the second one, which is in evaluation mode outside its passes.
    assert rates == [(0.5, True), (0.5, False)]


def test_repeated_tokens_do_not_exceed_the_length_of_the_model(run_config):
    config = run_config.replace(positive="repetition", max_length=64, batch_size=32)
    run = prepare(config)
    run.batches.corpus.take = lambda rows: ["word " * 100] * len(rows)
    (batch,) = first_batches(run)
    tokens = batch.tokens["positive"]["input_ids"]
    assert tokens.shape == (32, 64)
    assert (tokens[:, -1] == run.state.encoder.tokenizer.sep_token_id).all()


@pytest.mark.parametrize("hook", ["token-shuffle", "token-cutoff", "feature-cutoff", "pca"])
def test_the_same_hook_changes_the_two_views_of_a_row_differently(run_config, system, hook):
    found = {}
    for views in (("anchor",), ("positive",), ("anchor", "positive")):
        changes = {f"{view}_hook": hook for view in views}
        options = {"pca": {"layers": (0, 1, 2), "curriculum": "none"}} if hook == "pca" else {}
        run = prepare(run_config.replace(corpus=system("diffcse")["corpus"], options=options, **changes))
        in_float64(run)
        (batch,) = first_batches(run)
        found[views] = encode_views(run.state, Inputs(batch, "cpu"), run.forward)
    both = found["anchor", "positive"]
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(both["anchor"], both["positive"], strict=True))
    # If only one view has the hook, its random numbers do not depend on the view.
    assert torch.equal(both["anchor"], found["anchor",]["anchor"])
    assert torch.equal(found["anchor",]["anchor"], found["positive",]["positive"])


@pytest.mark.parametrize("length", [4, 7])
def test_hooks_do_not_change_the_pass_that_encodes_the_template_alone(run_config, system, length):
    """Compares with the formula: the head of the difference of the hooked state and the state of the bare template."""
    changes = {"prompt": {"positive_template": ""}, "positive_hook": "feature-cutoff", "max_length": 24}
    run = prepare(run_config.replace(**{**system("prompt"), **changes}))
    in_float64(run)
    encoder = run.state.encoder
    (batch,) = first_batches(run)
    # The template is encoded at length + 1 positions: for 7 tokens, as many rows as the batch has.
    short = encoder.tokenizer([" ".join(["a"] * length)] * len(batch.rows), return_tensors="pt")
    tokens = {key: short[key] for key in ("input_ids", "attention_mask")}
    step = step_of_rows(Inputs(batch, "cpu"), (), {}, run.state.steps)
    bare = encoder[2][0].bias(tokens["input_ids"], tokens["attention_mask"])
    with hooked(run.state.hooks["feature-cutoff"], encoder.backbone, tokens, step):
        states = encoder.backbone(**tokens).last_hidden_state
    at = tokens["input_ids"] == encoder.tokenizer.mask_token_id
    for module in (encoder, *encoder.modules()):
        if isinstance(getattr(module, "p", None), float):
            module.p = 0.0
    encoder.train()
    view = View("positive", "positive", hook="feature-cutoff")
    encode, inputs = encoder_of(view, encoder, run.state, tokens, lambda places: step)
    torch.testing.assert_close(encode(dict(inputs)), after_head(encoder, states[at] - bare), rtol=0, atol=1e-10)

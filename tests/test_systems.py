"""Systems of other papers as methods: chunks, ranks, resumed runs, and their formulas."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from cse import InputError, train
from cse.context import Context
from cse.features.dclr import ascend
from cse.features.modals import Modals, ModalsOptions
from cse.features.pca import PCAJitter, PCAJitterOptions, pca_jitter
from cse.rng import Draws
from cse.training.batches import Prefetcher
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from cse.views import BatchStep, RowStep, Views
from runs import gradients, same_run
from test_distributed import DISTRIBUTED, torchrun

# MASKED is replaced by a masked language model with the tokenizer of the tiny model, TINY by the tiny model.
SYSTEMS = {
    "diffcse": {"loss_terms": ("diffcse",), "options": {"diffcse": {"generator": "MASKED", "weight": 0.5}}},
    "diffcse release": {
        "loss": "focal",
        "loss_terms": ("diffcse",),
        "options": {"diffcse": {"generator": "MASKED", "variant": "release"}},
    },
    "dclr": {
        "feature_augmentations": ("dclr",),
        "una": {"every": 1},
        "negatives": ("una",),
        "options": {"dclr": {"model": "TINY", "threshold": 0.5, "noise": 2.5}},
    },
    "interpolation": {"feature_augmentations": ("modals",), "options": {"modals": {"kind": "interpolation"}}},
    "linear": {"feature_augmentations": ("modals",), "options": {"modals": {"kind": "linear", "detach": False}}},
    "pca jitter": {"positive_hook": "pca", "options": {"pca": {"layers": (0, 1, 2), "curriculum": "continuous"}}},
    "two encoders": {"positive_encoder": "copy"},
    "two dropout rates": {"anchor_dropout": 0.05, "positive_dropout": 0.155},
    "no dropout": {"positive": "delete", "anchor_dropout": 0.0, "positive_dropout": 0.0},
    "fixed mask": {"positive": "dropout", "options": {"dropout": {"mask": "shared"}}},
}


@pytest.fixture(scope="session")
def masked_model(tmp_path_factory, tiny_bert):
    """A masked language model of one small layer with random weights."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("masked")
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=2000, max_position_embeddings=64, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


@pytest.fixture
def system(masked_model, tiny_bert):
    """Returns a function from the name of a system to values of a configuration."""

    def values(name):
        text = json.dumps(SYSTEMS[name]).replace("MASKED", str(masked_model)).replace("TINY", str(tiny_bert))
        return json.loads(text)

    return values


def first_batch(run):
    with Prefetcher(run.batches, run.state.encoder.tokenizer, 32) as prefetcher:
        return prefetcher.get(0)


def in_float64(run, training=False):
    for module in run.state.modules().values():
        module.double().train(training)


@pytest.mark.parametrize("name", SYSTEMS)
def test_gradients_do_not_depend_on_chunks(run_config, system, name):
    found = []
    run = prepare(run_config.replace(**system(name)))
    in_float64(run)
    for chunk_size in (None, 3):
        found.append(gradients(run, run.config.replace(chunk_size=chunk_size), first_batch(run)))
    (whole, metrics), (chunks, others) = found
    assert whole.keys() == chunks.keys()
    for key, values in whole.items():
        assert torch.allclose(chunks[key], values, rtol=1e-9, atol=1e-11), key
    for key, value in metrics.items():
        assert float(others[key]) == pytest.approx(float(value), rel=1e-9, nan_ok=True), key


def test_two_processes_have_the_gradients_of_one(run_config, system, tmp_path):
    script = tmp_path / "gradients.py"
    script.write_text(DISTRIBUTED, encoding="utf8")
    given = run_config.model_dump(exclude_none=True, include=run_config.model_fields_set)
    cases = {name: {**given, **system(name)} for name in SYSTEMS}
    cases["chunks of three"] = {**cases["diffcse"], "chunk_size": 3, "batch_size": 7}
    found = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.pt"
        torchrun(processes, script, json.dumps({"base": {}, "cases": cases}), out)
        found.append(torch.load(out))
    one, two = found
    for name in cases:
        for key, value in one[name]["metrics"].items():
            assert two[name]["metrics"][key] == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), (name, key)
        for left, right in zip(one[name]["gradients"], two[name]["gradients"], strict=True):
            if left is None:
                assert right is None or not right.any()
            else:
                assert torch.allclose(left, right, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_resumed_run_is_the_run(run_config, system, name, tmp_path):
    config = run_config.replace(**system(name), max_steps=4, save_every=2, eval_every=0, keep_checkpoints=5)
    whole = train(config.replace(name="whole"))
    train(config.replace(name="part", max_steps=4))
    folder = Path(config.output) / "part"
    resumed = folder / "checkpoints" / "step-00000002"
    train(resumed_config(resumed), resume=resumed)
    same_run(whole.folder, folder)


def test_frozen_models_are_in_no_checkpoint(run_config, system):
    names = prepare(run_config.replace(**system("diffcse"))).state.weights()
    assert not any("generator" in name for name in names)
    assert any(name.startswith("terms.diffcse.discriminator") for name in names)
    assert any("running_mean" in name for name in names)


# The formulas.


def batch_step(rows, seed=3):
    uniform = lambda purpose, count: torch.from_numpy(Draws(seed, 0).uniform(rows, purpose, count))  # noqa: E731
    return BatchStep(number=0, steps=10, epoch=0, seed=seed, rows=torch.from_numpy(rows), uniform=uniform)


@pytest.mark.parametrize("kind", ["interpolation", "extrapolation", "linear", "noise"])
def test_modals_has_its_formulas(kind):
    rows = np.arange(6) * 5
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    method = Modals(ModalsOptions(kind=kind, magnitude=0.3), Context())
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


def test_two_rows_of_a_linear_step_are_uniform():
    counts = np.zeros((5, 5))
    for seed in range(3000):
        u = batch_step(np.arange(5), seed).uniform("modals rows", 2)
        first, second = (u[:, 0] * 4).long(), (u[:, 1] * 3).long()
        second = second + (second >= first)
        counts[(1 + first[0]) % 5, (1 + second[0]) % 5] += 1
    allowed = ~np.eye(5, dtype=bool)
    allowed[0] = allowed[:, 0] = False
    assert counts[~allowed].sum() == 0
    assert ((counts[allowed] - 250) ** 2 / 250).sum() < 32  # 11 degrees of freedom, one in a thousand


@pytest.mark.parametrize("variant", ["paper", "release"])
def test_pca_jitter_is_that_of_the_covariance(variant):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 5, 4, dtype=torch.float64, generator=generator)
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    alpha = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    found = pca_jitter(states, mask, alpha, variant)
    for i, count in enumerate((5, 3, 2)):
        x = states[i, :count].numpy()
        norm = np.linalg.norm(x)
        values, vectors = np.linalg.eigh(np.cov((x / norm).T))
        largest = vectors[np.abs(vectors).argmax(0), np.arange(4)]
        shift = norm * (vectors * np.sign(largest)) @ (float(alpha[i]) * values)
        if variant == "release":
            shift = np.full(4, shift.sum())
        assert np.allclose(found[i, :count].numpy(), x + shift, rtol=0, atol=1e-9)
        assert torch.equal(found[i, count:], states[i, count:])


def test_the_curriculum_of_pca_jitter_grows_over_the_run():
    def ratios(**options):
        method = PCAJitter(PCAJitterOptions(**options), Context())
        facts = {"epoch": 0, "seed": 0, "rows": torch.zeros(1), "uniform": None}
        return [method.ratio(RowStep(number=number, steps=20, **facts)) for number in range(20)]

    assert ratios(curriculum="discrete") == pytest.approx([0.01 * (1 + number // 2) for number in range(20)])
    assert ratios(curriculum="continuous") == pytest.approx([0.01 + 0.1 * number / 20 for number in range(20)])
    assert ratios(curriculum="none", ratio=0.05) == [0.05] * 20


def test_noise_ascends_the_loss_by_steps_of_one_length():
    generator = torch.Generator().manual_seed(0)
    anchors, positives, noise = (torch.randn(4, 6, dtype=torch.float64, generator=generator) for _ in range(3))

    def loss(noise):
        a, p, n = (normalize(z, dim=-1) for z in (anchors, positives, noise))
        terms = []
        for i in range(4):
            logits = [a[i] @ p[i] / 0.05, *(a[i] @ each / 0.05 for each in n)]
            terms.append(torch.logsumexp(torch.stack(logits), 0) - logits[0])
        return sum(terms) / 4

    found = ascend(noise, anchors, positives, 1, 1e-2, 0.05)
    copy = noise.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(copy), copy)
    assert torch.allclose(found, noise + 1e-2 * gradient / gradient.norm(dim=1, keepdim=True), rtol=0, atol=1e-12)
    assert loss(ascend(noise, anchors, positives, 4, 1e-2, 0.05)) > loss(noise)


def test_dclr_removes_the_pairs_that_its_model_finds_similar(run_config, system, tiny_bert):
    run = prepare(run_config.replace(**system("dclr")))
    in_float64(run)
    method = run.state.features["dclr"]
    rows = np.arange(4)
    h = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = batch_step(rows)
    step = BatchStep(**{**vars(step), "encode": lambda block, model: h})
    z = torch.randn(4, 32, dtype=torch.float64)
    found = method(Views({"anchor": z, "positive": z}), step)
    assert found["noise"].shape == (10, 32)
    assert found.roles["noise"] == "negative"
    weights = found.log_weights["anchor", "positive"]
    for i in range(4):
        for j in range(4):
            close = i != j and float(normalize(h[i], dim=0) @ normalize(h[j], dim=0)) >= 0.5
            assert weights[i, j] == (-torch.inf if close else 0)


def test_diffcse_classifies_the_tokens_that_its_generator_replaced(run_config, system):
    run = prepare(run_config.replace(**system("diffcse")))
    in_float64(run)
    term = run.state.terms["diffcse"]
    (batch,) = first_batch(run)
    tokens = batch.tokens["anchor"]
    uniform = lambda purpose, count: torch.from_numpy(Draws(0, 0).uniform(batch.rows, purpose, count))  # noqa: E731
    step = RowStep(
        number=0, steps=1, epoch=0, seed=0, rows=torch.from_numpy(batch.rows), uniform=uniform, tokens=batch.tokens
    )
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


def test_the_mask_of_a_shared_dropout_is_that_of_both_views(run_config, system):
    run = prepare(run_config.replace(**system("fixed mask")))
    _, metrics = gradients(run, run.config, first_batch(run))
    assert float(metrics["cos_pos"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"loss_terms": ("diffcse",), "options": {"diffcse": {"generator": "TINY"}}},
            "diffcse.generator: .* no weights",
        ),
        ({"positive_encoder": "nowhere/at/all"}, "no such folder"),
        ({"positive_hook": "odd"}, "--positive-hook: 'odd' is unknown"),
        ({"loss": "odd"}, "--loss: 'odd' is unknown; choose one of standard, focal, mixed, contrastive, diffcse, mlm"),
    ],
)
def test_what_cannot_be_had_is_refused(run_config, tiny_bert, values, message):
    values = json.loads(json.dumps(values).replace("TINY", str(tiny_bert)))
    with pytest.raises(InputError, match=message):
        train(run_config.replace(**values))

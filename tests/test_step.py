"""Tests of training steps: gradient caching, accumulation, schedules, bf16, masked language modelling, loggers."""

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cse import InputError, TrainConfig, train
from cse.encoder.fast.lengths import by_length, one_lookup
from cse.training.batches.prepared import Batch
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from cse.training.step.encode import Inputs, encode_views
from cse.training.step.step import propagate
from methods import STEPS
from runs import first_batches, gradients, in_float64


def test_learning_rates_follow_their_schedules_as_float32_numbers(run_config):
    def rates(**values):
        schedule = prepare(run_config.replace(**values)).schedule
        found = [schedule.at(step, 10) for step in range(10)]
        assert found == [float(np.float32(rate)) for rate in found]
        return [rate / schedule.lr for rate in found]

    assert rates(lr_scheduler="linear", warmup=0.2) == pytest.approx([1 / 3, 2 / 3, *(1 - i / 8 for i in range(8))])
    assert rates(lr_scheduler="constant", warmup=0.1) == pytest.approx([0.5, *[1] * 9])
    assert rates(lr_scheduler="cosine") == pytest.approx([(1 + np.cos(np.pi * i / 10)) / 2 for i in range(10)])


@pytest.mark.parametrize("side", ["right", "left"])
def test_encoding_in_groups_by_length_gives_the_same_embeddings(run_config, side):
    encoder = prepare(run_config.replace(pooler="avg")).state.encoder.double().eval()
    lengths = torch.tensor([3, 9, 4, 9, 2, 7, 5])
    columns = torch.arange(12)
    mask = columns < lengths[:, None] if side == "right" else columns >= 12 - lengths[:, None]
    ids = torch.randint(5, 2000, (7, 12), generator=torch.Generator().manual_seed(0)) * mask
    # Position ids are given, because default position ids would count padding on the left.
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "position_ids": positions}
    seen = []

    def encode(part):
        seen.append(tuple(part["input_ids"].shape))
        return encoder.embed(part)

    found = by_length(encode, inputs, 3)
    assert seen == [(3, 4), (3, 9), (1, 9)]
    assert torch.allclose(found, encoder.embed(inputs), rtol=0, atol=1e-12)


def test_one_embedding_lookup_gives_the_same_gradients_as_several(run_config):
    encoder = prepare(run_config.replace(pooler="avg")).state.encoder.double().eval()
    table = encoder.backbone.get_input_embeddings()
    ids = torch.randint(0, 2000, (9, 6), generator=torch.Generator().manual_seed(0))
    ids[:, -1] = table.padding_idx
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def gradient(known):
        encoder.zero_grad()
        with nullcontext() if known is None else one_lookup(encoder.backbone, [known]):
            by_length(encoder.embed, inputs, 3).logsumexp(1).sum().backward()
        return table.weight.grad.clone()

    plain = gradient(None)
    assert plain.count_nonzero()
    assert torch.equal(gradient(ids), plain)
    assert torch.allclose(gradient(ids[:6]), plain, rtol=0, atol=1e-12)  # some tokens are not in the lookup
    assert "forward" not in vars(table)


@pytest.mark.parametrize("name", STEPS)
def test_cached_gradients_equal_gradients_without_caching(run_config, name, monkeypatch):
    from cse.training.step import encode as chunks
    from cse.training.step import step

    run = prepare(run_config.replace(**STEPS[name]))
    batches = first_batches(run)
    in_float64(run, training=True)
    # Dropout masks are drawn per chunk, so the reference has the same chunks, without gradient checkpointing.
    torch.manual_seed(1)
    with monkeypatch.context() as patch:
        for module in (chunks, step):
            patch.setattr(module, "checkpoint", lambda function, chunk, use_reentrant: function(chunk))
        expected, _ = gradients(run, batches, chunk_size=3)
    torch.manual_seed(1)
    found, _ = gradients(run, batches, chunk_size=3)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert torch.allclose(found[key], values, rtol=1e-10, atol=1e-12), key


def test_accumulated_gradients_are_the_mean_over_batches(run_config):
    run = prepare(run_config.replace(accumulate=3))
    assert len(run.batches) == 8
    run.state.encoder.double().eval()
    batches = first_batches(run)
    assert len({row for batch in batches for row in batch.rows.tolist()}) == 24
    singles = [gradients(run, [batch])[0] for batch in batches]
    for batch in batches:
        propagate(run.state, batch, run.forward, share=1 / 3)
    for name, parameter in run.state.weights().items():
        if name.startswith("encoder") and name in singles[0]:
            mean = sum(single[name] for single in singles) / 3
            assert torch.allclose(parameter.grad, mean, rtol=1e-10, atol=1e-12)


def test_masked_tokens_follow_the_proportions_of_bert(run_config):
    from cse.losses.auxiliary import mask_tokens

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 2000, (400, 50), generator=generator)
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, 0] = True
    masked, labels = mask_tokens(ids, special, torch.rand(400, 150, generator=generator), 0.15, 4, 2000)
    chosen = labels != -100
    assert not chosen[:, 0].any()
    assert (labels[chosen] == ids[chosen]).all()
    assert (masked[~chosen] == ids[~chosen]).all()
    count = int(chosen.sum())
    assert count / (400 * 49) == pytest.approx(0.15, abs=0.008)
    assert float((masked[chosen] == 4).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((masked[chosen] == ids[chosen]).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_the_loss_term_mlm_is_close_to_the_loss_in_transformers(run_config):
    run = prepare(run_config.replace(loss_terms=("mlm",), options={"mlm": {"weight": 0.3, "share": 0.5}}))
    run.state.encoder.eval()
    term = run.state.terms["mlm"].eval()
    (batch,) = first_batches(run)
    seen = {}
    forward = term.model.forward
    term.model.forward = lambda **inputs: seen.update(inputs) or forward(**inputs)
    metrics = propagate(run.state, batch, run.forward)
    ids = batch.tokens["anchor"]["input_ids"]
    changed = seen["input_ids"] != ids
    assert changed.any()
    # The reference is the loss over the changed tokens, about 90 % of those whose labels the term uses.
    labels = torch.where(changed, ids, -100)
    expected = term.model(input_ids=seen["input_ids"], attention_mask=seen["attention_mask"], labels=labels).loss
    assert float(metrics["loss/mlm"]) == pytest.approx(0.3 * float(expected.detach()), rel=0.1)


def test_a_trained_mlm_head_is_saved_and_loaded_again(run_config, one_finished_run):
    from transformers import AutoModel, AutoModelForMaskedLM

    def warning(prepared):
        return "has no head for masked language modelling, so one is trained" in prepared.facts.get("warning", "")

    config = run_config.replace(loss_terms=("mlm",), max_steps=2)
    assert warning(prepare(config))
    last = train(config).folder / "last"
    head = load_file(last / "mlm_head" / "model.safetensors")
    assert "cls.predictions.transform.dense.weight" in head
    assert not any("word_embeddings" in name or "decoder.weight" in name for name in head)
    again = prepare(config.replace(model=str(last)))
    assert not warning(again)
    found = dict(again.state.terms["mlm"].model.named_parameters())
    assert all(torch.equal(found[name], values) for name, values in head.items())
    _, report = AutoModel.from_pretrained(last, output_loading_info=True)
    assert not report["unexpected_keys"]
    # A checkpoint that includes an MLM head causes no warning.
    own = last.with_name("own")
    AutoModelForMaskedLM.from_pretrained(last).save_pretrained(own)
    again.state.encoder.tokenizer.save_pretrained(own)
    assert not warning(prepare(config.replace(model=str(own))))
    # Without the loss term mlm, no head is saved.
    assert not (one_finished_run / "last" / "mlm_head").exists()


def test_tensorboard_logs_of_a_run_in_bf16_hold_finite_losses_and_scores(run_config):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(run_config.replace(max_steps=4, loggers=("tensorboard",), precision="bf16"))
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    assert {"train/loss", "train/alignment", "train/uniformity", "eval/mrr"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert np.isfinite([event.value for event in events.Scalars("train/loss")]).all()


def test_patience_ends_a_run_early(run_config, scored_pairs):
    config = run_config.replace(dev=scored_pairs, eval_every=1, max_steps=60, patience=2, lr=1e-8)
    result = train(config)
    assert result.steps - result.best_step == 2
    again = train(resumed_config(result.folder), resume=result.folder)
    assert (again.steps, again.best_step) == (result.steps, result.best_step)
    longer = train(resumed_config(result.folder, {"patience": 3}), resume=result.folder)
    assert longer.steps == result.steps + 1
    with pytest.raises(InputError, match="--patience needs --dev"):
        TrainConfig(patience=2)


def test_uniform_numbers_are_below_one_after_rounding_to_float32(monkeypatch):
    monkeypatch.setattr("cse.rng.Draws.uniform", lambda *_: np.full((1, 1), 1 - 2**-53))
    assert 0.999 < Inputs(Batch(0, 0, np.arange(1), {}), "cpu").uniform()("purpose", 1).item() < 1


def test_chunk_size_reduces_the_number_of_stored_activations(run_config):
    """With ``chunk_size``, the forward pass through the encoder stores only the inputs of the chunks."""
    kept = Counter()
    for sizes in ((8, None), (32, None), (32, 4)):
        run = prepare(run_config.replace(batch_size=sizes[0], chunk_size=sizes[1]))
        (batch,) = first_batches(run)
        run.state.train()

        def pack(tensor, sizes=sizes):
            kept[sizes] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encode_views(run.state, Inputs(batch, "cpu"), run.forward)
    assert kept[32, None] > 3 * kept[8, None]
    assert kept[32, 4] < 0.05 * kept[32, None]

"""The loss term ``keep-similarities``: the divergence of in-batch similarities from those of the base model."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from cse.losses.auxiliary import similarity_divergence
from cse.training.setup import prepare
from cse.training.step.encode import Inputs
from cse.training.step.ranks import World
from cse.training.step.step import batch_step, propagate
from runs import first_batches

TAU = 0.1


def slow(base, z, valid):
    """Returns the mean over valid rows of KL(p || q), computed with loops.

    p (from ``base``) and q (from ``z``) are the softmax of cosine / TAU between a row and the other valid rows.
    """
    rows, total = [i for i in range(len(z)) if valid[i]], 0.0
    for i in rows:
        shares = []
        for vectors in (base, z):
            powers = [math.exp(float(cosine_similarity(vectors[i], vectors[j], dim=0)) / TAU) for j in rows if j != i]
            shares.append([power / sum(powers) for power in powers])
        total += sum(p * math.log(p / q) for p, q in zip(*shares, strict=True))
    return total / max(len(rows), 1)


@pytest.mark.parametrize("masked", [(), (1,), (0, 3, 4), (0, 1, 2, 3), (0, 1, 2, 3, 4)])
def test_similarity_divergence_equals_its_definition(masked):
    generator = torch.Generator().manual_seed(1)
    base, z = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    valid = torch.tensor([i not in masked for i in range(5)])
    z.requires_grad_(True)
    found = similarity_divergence(base, z, TAU, valid)
    assert float(found.detach()) == pytest.approx(slow(base, z.detach(), valid), rel=1e-12, abs=1e-14)
    found.backward()
    assert torch.isfinite(z.grad).all()
    assert not z.grad[list(masked)].any()
    assert float(similarity_divergence(base, 3 * base, TAU)) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("positive", ["dropout", "spans"])
def test_keep_similarities_is_the_mean_divergence_of_anchors_and_positives(run_config, positive):
    values = {"loss_terms": ("keep-similarities",), "positive": positive}
    run = prepare(run_config.replace(**values, options={"keep-similarities": {"weight": 0.5, "temperature": TAU}}))
    state = run.state
    for module in state.modules().values():
        module.double().eval()
    term = state.terms["keep-similarities"]
    with torch.no_grad():
        for parameter in state.encoder.parameters():  # the encoder must differ from the base model
            parameter.add_(0.01 * torch.randn_like(parameter))
    (batch,) = first_batches(run)
    metrics = propagate(state, batch, run.forward)
    step = batch_step(state, Inputs(batch, "cpu"), run.forward, World())
    names = ("anchor", "positive")
    base = {name: step.encode(name, term.base) for name in names}
    with torch.no_grad():
        new = {name: step.encode(name) for name in names}
    valid = [True] * len(batch.rows)
    expected = sum(slow(base[name], new[name], valid) for name in names) / 2
    assert float(metrics["kept"]) == pytest.approx(expected, rel=1e-9)
    assert float(metrics["loss/keep-similarities"]) == pytest.approx(expected / 2, rel=1e-9)
    assert expected > 0
    before = prepare(run_config)
    before.state.encoder.double().eval()
    same = batch_step(before.state, Inputs(batch, "cpu"), before.forward, World())
    assert torch.allclose(same.encode("anchor"), base["anchor"], rtol=1e-9)


def test_the_base_model_encodes_views_with_equal_tokens_once_per_step(run_config):
    run = prepare(run_config.replace(loss_terms=("keep-similarities",)))
    base = run.state.terms["keep-similarities"].base
    calls = []
    handle = base.model[1].register_forward_hook(lambda *_: calls.append(1))
    (batch,) = first_batches(run)
    step = batch_step(run.state, Inputs(batch, "cpu"), run.forward, World())
    first = step.encode("anchor", base)
    assert step.encode("anchor", base) is first
    assert step.encode("positive", base) is first  # with --positive dropout, both views have the same tokens
    assert calls == [1]
    handle.remove()

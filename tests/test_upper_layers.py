"""Tests of --upper-layers: which weights are trained, what has dropout, and that frozen layers change nothing else."""

import pytest
import torch
from safetensors.torch import load_file

from commands import refuses
from cse import train
from cse.training.setup import prepare
from cse.views import parts_of, rates_of


@pytest.fixture
def config(run_config, tmp_path, sample_rows):
    (tmp_path / "few.txt").write_text("\n".join(sample_rows[:60]) + "\n", encoding="utf8")
    return run_config.replace(corpus=str(tmp_path / "few.txt"), pooler="avg", max_steps=3, eval_every=0)


def test_only_the_upper_layers_are_trained(config, tiny_bert):
    folder = train(config.replace(upper_layers=1)).folder
    before, after = (load_file(f"{path}/model.safetensors") for path in (tiny_bert, folder / "last"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(".layer.2." in name for name in changed)  # the last of three
    assert len(changed) == sum(".layer.2." in name for name in before)


def test_frozen_layers_have_no_dropout_and_the_gradients_of_the_others_do_not_change(config):
    def gradients(**values):
        encoder = prepare(config.replace(**values)).state.encoder.eval()
        ids = torch.tensor([[2, 30, 31, 32, 3]])
        encoder.embed({"input_ids": ids, "attention_mask": torch.ones_like(ids)})[:, 0].sum().backward()
        return encoder, {name: each.grad for name, each in encoder.named_parameters() if each.grad is not None}

    encoder, found = gradients(upper_layers=2)
    _, every = gradients()
    assert found.keys() == {name for name in every if ".layer.1." in name or ".layer.2." in name}
    assert all(torch.equal(found[name], every[name]) for name in found)
    embedding, blocks = parts_of(encoder.backbone)
    assert {rate for part in (embedding, blocks[0]) for *_, rate in rates_of(part)} == {0.0}
    assert {rate for part in blocks[1:] for *_, rate in rates_of(part)} == {0.1}


@pytest.mark.parametrize("count", [3, 9])
def test_with_all_layers_nothing_is_frozen(config, count):
    names = [
        [name for name, each in prepare(given).state.encoder.named_parameters() if each.requires_grad]
        for given in (config, config.replace(upper_layers=count))
    ]
    assert names[0] == names[1]


def test_invalid_counts_are_refused(config):
    refuses("--upper-layers", config.replace, upper_layers=-1)
    assert config.replace(upper_layers=0).encoder_methods == ()

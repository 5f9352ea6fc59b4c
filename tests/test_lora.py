"""Tests of LoRA: trained and stored weights, merged models, saved adapters, averaging with the base model, errors."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from commands import refuses
from cse import Encoder, train
from cse.encoder.layout import kind_of, read_modules
from cse.encoder.saving import merged_adapters
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from sentence_models import TEXTS, agree, dense, normalize, pooling, sentence_model

pytest.importorskip("peft", reason="peft is not installed: pip install 'cse[lora]'")


@pytest.fixture
def config(run_config, tmp_path, sample_rows):
    (tmp_path / "few.txt").write_text("\n".join(sample_rows[:60]) + "\n", encoding="utf8")
    values = {"corpus": str(tmp_path / "few.txt"), "pooler": "avg", "max_steps": 4, "eval_every": 0}
    return run_config.replace(encoder_methods=("lora",), lora=4, **values)


def base_weights(folder):
    return load_file(folder / "model.safetensors")


def test_only_adapter_weights_are_trained_and_stored_in_checkpoints_with_defaults_of_lora(config):
    run = prepare(config)
    optimized = {id(each) for group in run.state.optimizer.param_groups for each in group["params"]}
    names = {name for name, each in run.state.encoder.named_parameters() if id(each) in optimized}
    assert len(optimized) == len(names)
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert {f"encoder.{name}" for name in names} == set(run.state.weights())
    # 3 transformer layers x 6 linear layers x 2 matrices (A and B); the unused pooler has no adapter.
    assert len(names) == 3 * 6 * 2
    assert run.settings.optimisation.lr == 1e-3  # the given value
    run = prepare(type(config)(**{name: value for name, value in config.values().items() if name != "lr"}))
    layer = run.state.encoder.backbone.encoder.layer[0].attention.self.query
    # the defaults: a learning rate of 1e-4 and a scale of 2
    assert (run.settings.optimisation.lr, layer.r["default"], layer.scaling["default"]) == (1e-4, 4, 2.0)
    # With the pooler cls, the MLP head is trained too.
    assert prepare(config.replace(pooler="cls")).state.weights().keys() > set(run.state.weights())


def test_merging_the_adapters_into_the_saved_model_keeps_the_embeddings(config, tiny_bert):
    folder = train(config).folder
    weights, before = base_weights(folder / "last"), base_weights(tiny_bert)
    changed = {name for name in before if not torch.equal(weights[name], before[name])}
    assert len(changed) == 3 * 6
    assert not any("pooler" in name or "embeddings" in name for name in changed)
    state = prepare(config).state
    (checkpoint,) = (folder / "checkpoints").iterdir()
    stored = load_file(checkpoint / "weights.safetensors")
    assert stored.keys() == state.weights().keys()
    with torch.no_grad():
        for name, values in state.weights().items():
            values.copy_(stored[name])
    saved = agree(folder / "last")
    np.testing.assert_allclose(saved, state.encoder.eval().encode(TEXTS), atol=1e-5)
    assert np.abs(saved - Encoder(tiny_bert, pooler="avg", device="cpu").encode(TEXTS)).max() > 1e-3


def test_an_adapter_saved_by_sentence_transformers_is_loaded_and_trained(config, tmp_path, tiny_bert):
    import peft

    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16), normalize])
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=400, target_modules=["value"], init_lora_weights=False))
    model.save(str(tmp_path / "adapter"))
    kept = tmp_path / "adapter"
    assert (kept / "adapter_model.safetensors").exists()
    assert not (kept / "config.json").exists()
    expected = model.eval().encode(TEXTS)
    np.testing.assert_allclose(Encoder(kept, device="cpu").encode(TEXTS), expected, atol=1e-5)
    assert np.abs(Encoder(tmp_path / "model", device="cpu").encode(TEXTS) - expected).max() > 1e-3
    assert "Dense" in [kind_of(entry) for entry in read_modules(kept)]
    values = {"model": str(kept), "pooler": None, "merge_with_base": 0.0}
    assert (train(config.replace(**values, name="again")).folder / "last" / "model.safetensors").exists()


def test_invalid_lora_settings_are_refused(config, monkeypatch):
    refuses(r"lora\.targets: nothing", prepare, config.replace(options={"lora": {"targets": ("nothing",)}}))
    refuses("--lora", config.replace, lora=-1)
    assert config.replace(lora=0).encoder_methods == ()
    monkeypatch.setitem(sys.modules, "peft", None)
    refuses(r"--lora 4 needs peft, which is not installed; run pip install 'cse\[lora\]'", prepare, config)


def test_ema_averages_adapter_weights_and_must_be_listed_after_lora(config):
    run = prepare(config.replace(encoder_methods=("lora", "ema")))
    averages = run.state.methods["ema"].names
    assert len(averages) == 3 * 6 * 2
    assert all(".lora_" in name for name in averages)
    refuses("give ema last", train, config.replace(encoder_methods=("ema", "lora")))


def test_a_temporary_merge_leaves_the_trained_weights_unchanged(config):
    backbone = prepare(config).state.encoder.backbone
    for name, parameter in backbone.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter)
    before = {name: values.clone() for name, values in backbone.state_dict().items()}
    with merged_adapters(backbone, "default"):
        assert not any("lora" in name for name in backbone.state_dict())
    after = backbone.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_merge_with_base_averages_base_and_trained_weights(config, tiny_bert):
    whole, merged = (base_weights(train(config.replace(merge_with_base=w)).folder / "last") for w in (0.0, 0.5))
    for name, before in base_weights(tiny_bert).items():
        torch.testing.assert_close(merged[name], (before + whole[name]) / 2, atol=1e-6, rtol=1e-5)


def test_a_run_is_not_resumed_with_a_changed_base_model(config, tmp_path, tiny_bert):
    model = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    folder = train(config.replace(model=model)).folder
    weights = base_weights(model)
    weights["embeddings.word_embeddings.weight"][5] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    refuses(r"model\.safetensors", train, resumed_config(folder, {"max_steps": 6}), resume=folder)

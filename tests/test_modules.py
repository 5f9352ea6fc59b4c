"""Tests of models made of sentence-transformers modules: training keeps them, and both libraries give equal vectors."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoTokenizer

from conftest import config_of_eight_steps
from cse import Encoder, InputError, train
from cse.encoder.passages import Cutter
from cse.encoder.resolve import find_model
from cse.encoder.saving import save_encoder
from cse.encoder.trained import load_encoder
from sentence_models import (
    TEXTS,
    TYPES,
    agree,
    as_on_the_hub,
    dense,
    layer_norm,
    normalize,
    pooling,
    sentence_model,
    transformer,
)  # fmt: skip


def trained_two_steps(folder, short_corpus, tmp_path, **settings):
    values = {"positive": "spans", "batch_size": 4, "max_length": 12, "max_steps": 2, "lr": 1e-2, **settings}
    config = config_of_eight_steps(short_corpus, folder, tmp_path / "runs", **values)
    return train(config).folder / "last"  # best/ may hold the model from before training


def kinds(folder):
    listed = json.loads((folder / "modules.json").read_text(encoding="utf8"))
    return [module["type"].rsplit(".", 1)[-1] for module in listed]


# Name: (architecture, padding side, modules after the transformer).
MODELS = {
    "bert": ("bert", "right", [pooling("cls"), dense(32, nn.Tanh()), normalize]),
    "modernbert": ("modernbert", "right", [pooling("mean"), normalize]),
    "mpnet": ("mpnet", "right", [pooling("mean", "max"), dense(16, nn.GELU(), bias=False)]),
    "deberta": ("deberta-v2", "right", [pooling("mean_sqrt_len_tokens"), layer_norm]),
    "xlm-r": ("xlm-roberta", "right", [pooling("cls"), dense(32, nn.Tanh())]),
    "qwen3": ("qwen3", "left", [pooling("lasttoken"), normalize]),
    "t5": ("t5", "right", [pooling("mean")]),
    "gemma3": ("gemma3_text", "right", [pooling("mean"), dense(64, bias=False), dense(32, bias=False), normalize]),
    "llama": ("llama", "left", [pooling("weightedmean"), normalize, dense(24, nn.ReLU(), use_residual=True)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_keeps_its_modules(tmp_path, tiny_bert, short_corpus, name):
    architecture, side, modules = MODELS[name]
    sentence_model(tmp_path / "model", tiny_bert, architecture, modules, side)
    before = agree(tmp_path / "model")
    trained = trained_two_steps(tmp_path / "model", short_corpus, tmp_path)
    assert np.abs(agree(trained) - before).max() > 1e-3
    assert kinds(trained) == kinds(tmp_path / "model")
    for part in (path.name for path in trained.glob("*_Dense")):
        ours, theirs = (
            json.loads((folder / part / "config.json").read_text()) for folder in (trained, tmp_path / "model")
        )
        assert {**theirs, **ours} == theirs
    assert Encoder(trained, device="cpu").embedding_dim == before.shape[1]


def test_training_keeps_the_order_of_pooling_modes_and_include_prompt(tmp_path, tiny_bert, short_corpus):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("lasttoken", "mean", include_prompt=False)])
    trained = trained_two_steps(tmp_path / "model", short_corpus, tmp_path)
    agree(trained)
    settings = json.loads((trained / "1_Pooling" / "config.json").read_text())
    assert (settings["pooling_mode"], settings["include_prompt"]) == (["lasttoken", "mean"], False)


def test_a_pooler_too_wide_for_the_dense_module_is_refused(tmp_path, tiny_bert):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16)])
    assert Encoder(tmp_path / "model", pooler="max", device="cpu").embedding_dim == 16
    with pytest.raises(
        InputError, match=r"the module Dense takes 32 dimensions, but gets 64; use the pooler of the model, avg"
    ):
        Encoder(tmp_path / "model", pooler="avg+max", device="cpu")


@pytest.mark.slow
def test_merging_with_the_base_model_averages_the_weights_of_dense_modules(tmp_path, tiny_bert, short_corpus):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16)])
    file = "2_Dense/model.safetensors"
    base = load_file(tmp_path / "model" / file)["linear.weight"]
    found = []
    for weight in (0.0, 0.5):
        trained = trained_two_steps(
            tmp_path / "model", short_corpus, tmp_path, merge_with_base=weight, name=f"run{weight}"
        )
        found.append(load_file(trained / file)["linear.weight"] - base)
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0] / 2, atol=1e-6, rtol=1e-4)


def test_folders_in_the_old_layout_of_sentence_transformers_can_be_loaded(tmp_path, tiny_bert):
    """Old folders hold the transformer in a subfolder, Dense weights as a pickle, and do_lower_case in a JSON file."""
    folder = tmp_path / "model"
    model = sentence_model(folder, tiny_bert, modules=[pooling("mean"), dense(16, nn.Sigmoid())])
    vectors = model.encode([text.lower() for text in TEXTS])
    (folder / "0_Transformer").mkdir()
    for path in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        if path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    torch.save(model[2].state_dict(), folder / "2_Dense" / "pytorch_model.bin")
    (folder / "2_Dense" / "model.safetensors").unlink()
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    tokenizer = json.loads((folder / "0_Transformer" / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (folder / "0_Transformer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"max_seq_length": 48, "do_lower_case": True}
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(settings))
    np.testing.assert_allclose(agree(folder), vectors, atol=1e-5)


def test_a_saved_model_keeps_the_conversion_to_lower_case_of_sentence_transformers(tmp_path, sample_rows):
    hub = as_on_the_hub(tmp_path / "hub", "bert", sample_rows[:500])
    folder = tmp_path / "model"
    save_encoder(load_encoder(find_model(str(hub)), "avg"), folder, "")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": True}))
    encoder = load_encoder(find_model(str(folder)), "avg")
    save_encoder(encoder, tmp_path / "saved", "")
    found = [encoder.tokenizer, AutoTokenizer.from_pretrained(tmp_path / "saved")]
    upper, lower = ([each(text)["input_ids"] for each in found] for text in ("A SHORT ONE", "a short one"))
    assert upper == lower == [lower[0]] * 2


def test_a_saved_model_declares_one_maximum_length(tmp_path, tiny_bert):
    """A tokenizer.json with stored truncation, as that of all-MiniLM-L6-v2, does not lower the maximum length."""
    base = shutil.copytree(tiny_bert, tmp_path / "base")
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    encoder = load_encoder(find_model(str(base)), "avg")
    save_encoder(encoder, tmp_path / "saved", "")
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == encoder.max_seq_length > 8
    assert "max_length" not in settings


def test_eight_threads_get_the_vectors_and_passages_of_one(tmp_path, tiny_bert, short_rows):
    prompts = {"query": "a question in several words : ", "document": "text : "}
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), normalize], prompts=prompts)
    encoder = Encoder(tmp_path / "model", device="cpu")
    cut = Cutter(encoder, 8)
    texts = [*short_rows[:20], " ".join(short_rows[:20]), "word"]

    def work(number):
        text = texts[number % len(texts)]
        kind = number % 4
        if kind == 0:
            return encoder.encode_query([text])
        if kind == 1:
            return encoder.encode_document([text])
        return encoder.encode([text, "word"]) if kind == 2 else cut([text])

    numbers = range(44 * 8)
    expected = {number: work(number) for number in range(44)}
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, numbers))
    for number, result in zip(numbers, results, strict=True):
        if number % 4 == 3:
            assert result == expected[number % 44]
        else:
            np.testing.assert_allclose(result, expected[number % 44], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_vectors_of_many_types_equal_those_of_sentence_transformers(tmp_path, tiny_bert, name):
    plain, folder = transformer(tmp_path / "plain", name, tiny_bert, length=60), tmp_path / "model"
    SentenceTransformer(str(plain), device="cpu").save(str(folder), create_model_card=False)
    for place in (folder, plain):
        ours, theirs = Encoder(place, device="cpu"), SentenceTransformer(str(place), device="cpu").float()
        for prompt in ("", "search for this : "):
            found, expected = ours.encode(TEXTS, prompt=prompt), theirs.encode(TEXTS, prompt=prompt)
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(found, expected, atol=1e-6 * max(1, np.abs(expected).max()))

"""Tests of loading models: unsupported, damaged and hostile folders, poolers, and arguments of ``Encoder.encode``.

A refused folder ends in one sentence, without running code.
"""

import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from conftest import refuses
from cse import Encoder, TrainConfig, train
from cse.encoder.layout import LENGTHS
from cse.encoder.onnx_export import export_onnx
from sentence_models import sentence_model, transformer
from test_modules import dense, normalize, pooling

SETTINGS, TRANSFORMER = "config_sentence_transformers.json", "sentence_transformers.models.Transformer"
SHARDS, MISSING = "model.safetensors.index.json", "is incomplete (weights or tokenizer files are missing)"
# The file, keys that are changed in it (or its content; None: it is removed), and a part of the message.
CASES = {
    "many layers": ("config.json", {"num_hidden_layers": 10**6}, "1,000,000, but its weights have only"),
    "long number": ("config.json", {"hidden_size": 10**50}, "cannot be loaded"),
    "hidden size of text": ("config.json", {"hidden_size": "many"}, "cannot be loaded"),
    "code of a transformer": ("config.json", {"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "x"}, "code"),
    "another tokenizer": ("sentence_bert_config.json", {"tokenizer_name_or_path": "/etc"}, "names another tokenizer"),
    "unknown kind": (SETTINGS, {"model_type": "x"}, "model_type in its config_sentence_transformers.json is 'x'"),
    "another shape": ("config.json", {"intermediate_size": 47}, "are missing or have another shape"),
    "more layers": ("config.json", {"num_hidden_layers": 3}, "are missing or have another shape"),
    "no layers": ("config.json", {"num_hidden_layers": 0}, "32 of its weights are of layers that"),
    "fewer layers": ("config.json", {"num_hidden_layers": 1}, "16 of its weights are of layers that its config.json"),
    "no room": ("tokenizer_config.json", {"model_max_length": 2}, "2 tokens, leaves no room for text"),
    **{
        f"{name} {value}": (file, {name: value}, f"{name} in its {file} must be an integer of at least 2, got ")
        for file, name in LENGTHS.items()
        for value in (0, 1, True, 2.5, -1, "many")
    },
    "dims of text": (SETTINGS, {"cse_dims": "32"}, "cse_dims: must be a list, got '32'"),
    "no padding": ("tokenizer_config.json", {"pad_token": None}, "has no padding token"),
    "no mask": ("tokenizer_config.json", {"model_input_names": ["input_ids"]}, "makes no attention mask"),
    "prompts": (SETTINGS, {"prompts": ["a"]}, "cannot be loaded"),
    "other activation": ("2_Dense/config.json", {"activation_function": "os.system"}, "is not a module of torch.nn"),
    "code of a module": ("modules.json", [{"path": "", "type": "evil.Model"}], "which is not part of"),
    "path above": ("modules.json", [{"path": "../x", "type": TRANSFORMER}], "which is not inside the folder"),
    "absolute path": ("modules.json", [{"path": "/etc", "type": TRANSFORMER}], "which is not inside the folder"),
    "no type": ("modules.json", [{"path": ""}], "1: type: is missing"),
    "no list": ("modules.json", {"a": 1}, "must be a list"),
    "number": ("config.json", 3, "must be an object"),
    "shard above": (SHARDS, {"weight_map": {"a": "../../x"}}, "not inside the folder"),
    "shard in a folder": (SHARDS, {"weight_map": {"a": "onnx/a.safetensors"}}, "'onnx/a.safetensors', which are no "),
    "weights of another kind": ("config.json", {"transformers_weights": "w.txt"}, "names the weights 'w.txt'"),
    "hidden module": ("modules.json", [{"path": ".x", "type": TRANSFORMER}], "not inside the folder, or hidden"),
    "text": ("1_Pooling/config.json", "text", "must be an object"),
    "no weights": ("model.safetensors", None, MISSING),
    "no tokenizer": ("tokenizer.json", None, MISSING),
}


@pytest.fixture
def folder(tmp_path, tiny_bert):
    """A model, in whose folder each Python file would create a file when it is run."""
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16), normalize])
    code = f"open({str(tmp_path / 'executed')!r}, 'w')\n"
    for name in ("evil.py", "modeling_bert.py", "__init__.py"):
        (tmp_path / "model" / name).write_text(code)
    yield tmp_path / "model"
    assert not (tmp_path / "executed").exists()


def refused(folder, part=""):
    message = refuses(re.escape(part), Encoder, folder, device="cpu")
    assert str(folder) in message
    assert not any(word in message for word in ("\n", "weights_only"))


def change(path, value):
    merged = isinstance(value, dict) and path.exists() and isinstance(json.loads(path.read_text()), dict)
    path.write_text(json.dumps({**json.loads(path.read_text()), **value} if merged else value))


@pytest.mark.parametrize("name", CASES)
def test_values_that_no_model_has_and_files_of_another_shape_are_refused(folder, name):
    file, value, part = CASES[name]
    if value is None:
        (folder / file).unlink()
    else:
        change(folder / file, value)
    refused(folder, part)


@pytest.mark.parametrize("file", ["config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"{}"])
def test_damaged_json_files_are_refused(folder, file, content):
    (folder / file).write_bytes(content)
    refused(folder)


NO_TENSOR = "was not loaded: it is damaged, or holds something that is not a tensor"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("2_Dense/pytorch_model.bin", "bare pickle", "could run any command"),
        ("pytorch_model.bin", "bare pickle", NO_TENSOR),
        ("pytorch_model.bin", "command", NO_TENSOR),
        ("pytorch_model.bin", "truncated", "cannot be loaded"),
        ("pytorch_model.bin", b"hello world\n", ""),
        ("pytorch_model.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
    ],
)
def test_an_invalid_pytorch_model_bin_is_refused_and_never_executed(folder, file, content, message):
    class Command:
        def __reduce__(self):
            return os.mkdir, (str(folder.parent / "executed"),)

    path = folder / file
    weights = path.with_name("model.safetensors")
    if content == "command":
        torch.save({"weight": Command()}, path)
    elif content == "truncated":
        torch.save(load_file(weights), path)
        path.write_bytes(path.read_bytes()[:10_000])
    else:
        path.write_bytes(pickle.dumps(Command()) if content == "bare pickle" else content)
    weights.unlink()
    refused(folder, message)


@pytest.mark.parametrize(
    ("damage", "message"),
    [("nan", "holds NaN or infinity; use another model"), ("vocabulary", "the tokenizer belongs to another model")],
)
def test_faulty_weights_are_refused(folder, damage, message):
    weights = load_file(folder / "model.safetensors")
    if damage == "nan":
        weights["encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
    else:
        name = "embeddings.word_embeddings.weight"
        weights[name] = weights[name][:1000].clone()
        change(folder / "config.json", {"vocab_size": 1000})
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(folder, message)


def test_a_folder_chooses_its_maximum_length_but_not_the_attention(folder):
    other = {"attn_implementation": "kernels-community/flash-attn"}
    change(folder / "config.json", {f"_{name}": value for name, value in other.items()} | other)
    change(folder / "sentence_bert_config.json", {"max_seq_length": "40", "model_args": other})
    encoder = Encoder(folder, device="cpu")
    assert encoder[0].config._attn_implementation == "sdpa"
    assert encoder.max_seq_length == 40


def adapter(folder, weights=True, **settings):
    """Makes a peft adapter of a copy of the transformer of a folder, which loses its modules."""
    (folder / "base").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / "base" / name).write_bytes((folder / name).read_bytes())
    for path in (folder / "config.json", folder / "model.safetensors", folder / "modules.json", folder / SETTINGS):
        path.unlink()
    values = {"peft_type": "LORA", "r": 2, "target_modules": ["query"], "base_model_name_or_path": "FOLDER/base"}
    (folder / "adapter_config.json").write_text(json.dumps({**values, **settings}).replace("FOLDER", str(folder)))
    shapes = {"A": (2, 32), "B": (32, 2)} if weights else {}
    names = [f"base_model.model.encoder.layer.{n}.attention.self.query.lora_" for n in range(2)]
    made = {f"{name}{end}.weight": torch.ones(shape) for name in names for end, shape in shapes.items()}
    save_file(made, folder / "adapter_model.safetensors")


def test_adapters_are_loaded_if_base_and_weights_are_those_they_declare(folder):
    adapter(folder, unknown="os")
    assert Encoder(folder, device="cpu").encode(["a word"]).shape == (1, 32)
    refuses("holds only an adapter; merge it into its base model with peft first", export_onnx, str(folder))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"peft_type": "XLORA"}, "a mixture of adapters"),
        ({"weights": False}, "missing adapter keys"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path: must be text, got null"),
        ({"base_model_name_or_path": "not/at/all"}, "is an adapter of not/at/all, which cannot be loaded"),
        ({"base_model_name_or_path": "FOLDER"}, "it is also an adapter"),
    ],
)
def test_other_adapters_are_refused(folder, changes, part):
    adapter(folder, **changes)
    refused(folder, part)


def trained(tmp_path, short_corpus, model, **values):
    values = {"batch_size": 8, "max_steps": 3, "eval_every": 0, "device": "cpu", **values}
    return train(TrainConfig(corpus=short_corpus, output=tmp_path / "runs", model=str(model), **values))


def test_a_decoder_is_refused_with_pooler_cls_and_accepted_with_pooler_avg(tmp_path, short_corpus, tiny_bert):
    model = transformer(tmp_path / "model", "gpt2", tiny_bert)
    refuses(r"--pooler cls: .* is a decoder, .*--pooler avg", trained, tmp_path, short_corpus, model)
    assert trained(tmp_path, short_corpus, model, pooler="avg").steps == 3


def test_a_trained_encoder_of_an_encoder_decoder_encodes_as_in_sentence_transformers(tmp_path, short_corpus, tiny_bert):
    model = transformer(tmp_path / "t5", "t5", tiny_bert)
    folder = trained(tmp_path, short_corpus, model, pooler="avg").folder / "last"
    texts = ["a short one", "word " * 100]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(Encoder(folder, device="cpu").encode(texts), expected, atol=1e-6)


def test_pooler_cls_applies_the_trained_pooler_if_the_checkpoint_has_one(tiny_bert, tiny_roberta):
    text = ["A sentence of some words."]
    model, tokenizer = AutoModel.from_pretrained(tiny_bert).eval(), AutoTokenizer.from_pretrained(tiny_bert)
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors="pt"))
    encoders = [Encoder(tiny_bert, pooler=pooler, device="cpu") for pooler in ("cls", "cls_before_pooler")]
    # a checkpoint without a pooler
    encoders += [Encoder(tiny_roberta, pooler=pooler, device="cpu") for pooler in ("cls", "cls_before_pooler")]
    assert "the trained pooler" in encoders[0].pooling
    assert "without a trained pooler" in encoders[2].pooling
    vectors = [encoder.encode(text) for encoder in encoders]
    np.testing.assert_allclose(vectors[0], out.pooler_output, atol=1e-6)
    np.testing.assert_allclose(vectors[1], out.last_hidden_state[:, 0], atol=1e-6)
    np.testing.assert_allclose(vectors[2], vectors[3], atol=1e-6)


def test_weights_of_heads_and_a_pooler_may_be_left_over(tiny_bert, tmp_path):
    """As in bert-base-uncased: its weights have the prefix ``bert.``, a head ``cls.`` and a pooler."""
    stored = load_file(tiny_bert / "model.safetensors")
    shutil.copytree(tiny_bert, tmp_path / "heads")
    heads = ("cls.predictions.bias", "lm_head.layers.7.weight", "classifier.0.weight", "bert.pooler.dense.bias")
    more = {name: torch.zeros(32) for name in heads} | {"pooler.more.0.weight": torch.zeros(32)}
    whole = {f"bert.{name}": values for name, values in stored.items()} | more
    save_file(whole, tmp_path / "heads" / "model.safetensors", {"format": "pt"})
    vectors = [Encoder(folder, device="cpu").encode(["a text"]) for folder in (tiny_bert, tmp_path / "heads")]
    assert np.array_equal(*vectors)

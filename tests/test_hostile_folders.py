"""Tests that damaged and hostile folders of models end in one sentence, without running code."""

import json
import os
import pickle

import numpy as np
import pytest
from safetensors.numpy import save_file

from cse import Encoder, InputError
from sentence_models import sentence_model
from test_modules import dense, normalize, pooling

SETTINGS, TRANSFORMER = "config_sentence_transformers.json", "sentence_transformers.models.Transformer"
# The file, keys that are changed in it (or its content), and a part of the message.
CASES = {
    "long number": ("config.json", {"hidden_size": 10**50}, "cannot be loaded"),
    "hidden size of text": ("config.json", {"hidden_size": "many"}, "cannot be loaded"),
    "code of a transformer": ("config.json", {"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "x"}, "code"),
    "another tokenizer": ("sentence_bert_config.json", {"tokenizer_name_or_path": "/etc"}, "names another tokenizer"),
    "unknown kind": (SETTINGS, {"model_type": "x"}, "is a x, which is not a SentenceTransformer"),
    "no mask": ("tokenizer_config.json", {"model_input_names": ["input_ids"]}, "makes no attention mask"),
    "prompts": (SETTINGS, {"prompts": ["a"]}, "cannot be loaded"),
    "other activation": ("2_Dense/config.json", {"activation_function": "os.system"}, "is not a module of torch.nn"),
    "code of a module": ("modules.json", [{"path": "", "type": "evil.Model"}], "third-party"),
    "path above": ("modules.json", [{"path": "../x", "type": TRANSFORMER}], "which is not inside the folder"),
    "absolute path": ("modules.json", [{"path": "/etc", "type": TRANSFORMER}], "which is not inside the folder"),
    "no type": ("modules.json", [{"path": ""}], "1: type: is missing"),
    "no list": ("modules.json", {"a": 1}, "must be a list"),
    "number": ("config.json", 3, "must be an object"),
    "shard above": (
        "model.safetensors.index.json",
        {"weight_map": {"a": "../../other.safetensors"}},
        "which is not inside the folder",
    ),
    "text": ("1_Pooling/config.json", "text", "must be an object"),
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
    with pytest.raises(InputError) as caught:
        Encoder(folder, device="cpu")
    message = str(caught.value)
    assert str(folder) in message
    assert part in message
    assert "\n" not in message


def change(path, value):
    merged = isinstance(value, dict) and path.exists() and isinstance(json.loads(path.read_text()), dict)
    path.write_text(json.dumps({**json.loads(path.read_text()), **value} if merged else value))


@pytest.mark.parametrize("name", CASES)
def test_values_that_no_model_has_and_files_of_another_shape_are_refused(folder, name):
    file, value, part = CASES[name]
    change(folder / file, value)
    refused(folder, part)


@pytest.mark.parametrize("file", ["config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"{}"])
def test_damaged_json_files_are_refused(folder, file, content):
    (folder / file).write_bytes(content)
    refused(folder)


def test_pickles_of_other_modules_are_refused_and_never_executed(folder, tmp_path):
    class Command:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    (folder / "2_Dense" / "model.safetensors").unlink()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Command()))
    refused(folder, "could run any command")


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
    values = {"peft_type": "LORA", "r": 2, "target_modules": ["query"], "base_model_name_or_path": str(folder / "base")}
    (folder / "adapter_config.json").write_text(json.dumps({**values, **settings}))
    shapes = {"A": (2, 32), "B": (32, 2)} if weights else {}
    names = [f"base_model.model.encoder.layer.{n}.attention.self.query.lora_" for n in range(2)]
    made = {f"{name}{end}.weight": np.ones(shape, "f4") for name in names for end, shape in shapes.items()}
    save_file(made, folder / "adapter_model.safetensors")


def test_adapters_are_loaded_if_base_and_weights_are_those_they_declare(folder):
    adapter(folder, unknown="os")
    assert Encoder(folder, device="cpu").encode(["a word"]).shape == (1, 32)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"peft_type": "XLORA"}, "a mixture of adapters"),
        ({"weights": False}, "missing adapter keys"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path: must be text, got null"),
        ({"base_model_name_or_path": "not/at/all"}, "is an adapter of not/at/all, which cannot be loaded"),
    ],
)
def test_other_adapters_are_refused(folder, changes, part):
    adapter(folder, **changes)
    refused(folder, part)


def test_an_adapter_of_an_adapter_is_refused(folder):
    adapter(folder)
    change(folder / "adapter_config.json", {"base_model_name_or_path": str(folder)})
    refused(folder, "it is also an adapter")

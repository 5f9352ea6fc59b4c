"""Tests that damaged and hostile folders of models end in one sentence, without cost in time or memory."""

import json
import time

import pytest

import hostile_folders
from cse import Encoder, InputError
from sentence_models import sentence_model
from test_modules import dense, normalize, pooling

CHANGES = {
    "no layers": ("config.json", {"num_hidden_layers": 0}, "num_hidden_layers in its config.json is 0"),
    "negative layers": ("config.json", {"num_hidden_layers": -1}, "num_hidden_layers in its config.json is -1"),
    "a million layers": ("config.json", {"num_hidden_layers": 10**6}, "1,000,000, but its weights have only"),
    "many digits of layers": ("config.json", {"num_hidden_layers": 10**30}, "but its weights have only"),
    "long number": ("config.json", {"hidden_size": 10**50}, "cannot be loaded"),
    "hidden size of text": ("config.json", {"hidden_size": "many"}, "cannot be loaded"),
    "no maximum length": ("sentence_bert_config.json", {"max_seq_length": 0}, "is 0; set a positive integer"),
    "half a token": ("sentence_bert_config.json", {"max_seq_length": 2.5}, "is 2.5; set a positive integer"),
    "another tokenizer": ("sentence_bert_config.json", {"tokenizer_name_or_path": "/etc"}, "names another tokenizer"),
    "many dimensions": ("config_sentence_transformers.json", {"truncate_dim": 10**9}, "truncate_dim"),
    "too many dimensions": ("config_sentence_transformers.json", {"truncate_dim": 33}, "embeddings have 16 dimensions"),
    "unknown kind": ("config_sentence_transformers.json", {"model_type": "x"}, "model_type in its config_sentence"),
    "no mask": ("tokenizer_config.json", {"model_input_names": ["input_ids"]}, "makes no attention mask"),
    "prompts": ("config_sentence_transformers.json", {"prompts": ["a"]}, "cannot be loaded"),
    "other width": ("1_Pooling/config.json", {"embedding_dimension": 31}, "takes 31 dimensions, but gets 32"),
    "other code": ("2_Dense/config.json", {"activation_function": "os.system"}, "is not a module of torch.nn"),
}
WHOLE = {
    "path above": (
        "modules.json",
        [{"idx": 0, "name": "0", "path": "../x", "type": "sentence_transformers.models.A"}],
        "which is not inside the folder",
    ),
    "absolute path": (
        "modules.json",
        [{"path": "/etc", "type": "sentence_transformers.models.Transformer"}],
        "which is not inside the folder",
    ),
    "no type": ("modules.json", [{"path": ""}], "objects with a type and a path"),
    "no list": ("modules.json", {"a": 1}, "must be a list"),
    "empty list": ("modules.json", [], "lists no modules"),
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
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16), normalize])
    return tmp_path / "model"


def refused(folder, part=""):
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        Encoder(folder, device="cpu")
    message = str(caught.value)
    assert str(folder) in message
    assert part in message
    assert "\n" not in message
    assert time.process_time() - started < 10


@pytest.mark.parametrize("name", [*CHANGES, *WHOLE])
def test_values_that_no_model_has_and_files_of_another_shape_are_refused(folder, name):
    file, value, part = (CHANGES | WHOLE)[name]
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **value} if name in CHANGES else value))
    refused(folder, part)


@pytest.mark.parametrize("file", ["config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"{}"])
def test_damaged_json_files_are_refused(folder, file, content):
    (folder / file).write_bytes(content)
    refused(folder)


@pytest.mark.parametrize("length", ["48", 48.0])
def test_a_maximum_length_may_be_written_as_text(folder, length):
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_seq_length": length}))
    assert Encoder(folder, device="cpu").max_seq_length == 48


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_a_folder_does_not_choose_the_attention(folder, name):
    for file, change in (
        ("config.json", {name: "kernels-community/flash-attn"}),
        ("sentence_bert_config.json", {"model_args": {"attn_implementation": "kernels-community/flash-attn"}}),
    ):
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert Encoder(folder, device="cpu")[0].config._attn_implementation == "sdpa"


def test_an_adapter_of_a_local_folder_is_loaded_if_its_weights_are_those_it_declares(tmp_path):
    found = list(hostile_folders.trials(tmp_path, only="^adapter (unknown os|peft_type (LOHA|XLORA))"))
    assert [(ended, wrong) for _, ended, wrong, _ in found] == [("refused", ""), ("refused", ""), ("loaded", "")]

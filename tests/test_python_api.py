"""Tests of cse.evaluate and cse.compare, and of arguments of encoders and of the search API that are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

import cse
from commands import refuses
from cse import Encoder, SearchIndex
from cse.cli import cli
from cse.encoder.device import set_threads
from cse.encoder.light import LightEncoder
from cse.encoder.onnx_export import export_onnx
from cse.encoder.passages import Cutter
from cse.encoder.resolve import find_folder, model_digest
from cse.encoder.taught import taught_of
from cse.evaluation.ranking import System
from random_texts import some_texts
from sentence_models import TEXTS, pooling, sentence_model


def call(*arguments):
    done = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def other(tmp_path_factory, tiny_bert):
    """The folder of a copy of tiny_bert with noise added to its weights."""
    folder = Path(shutil.copytree(tiny_bert, tmp_path_factory.mktemp("other") / "model"))
    generator = torch.Generator().manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    weights = {k: v + 0.02 * torch.randn(v.shape, generator=generator) for k, v in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_evaluate_returns_what_cse_eval_prints(tiny_bert, scored_pairs, tmp_path):
    steps = []
    found = cse.evaluate(tiny_bert, ["sts", "geometry"], scored_pairs, progress=lambda *step: steps.append(step))
    printed = call("eval", tiny_bert, "--suite", "sts", "--suite", "geometry", "--data", scored_pairs, "--json")
    assert json.loads(json.dumps(found.to_dict())) == printed
    assert found.reports["sts"].rows[0]["pairs"] == 40
    assert -100 <= found.reports["sts"].rows[0]["spearman"] <= 100
    assert steps[0] == (0, steps[-1][1])
    assert steps[-1][0] == steps[-1][1] > 60
    run = tmp_path / "run"
    shutil.copytree(tiny_bert, run / "best")
    assert cse.evaluate(str(run), data=str(scored_pairs)).model == str(run / "best")


def test_evaluate_accepts_suite_options_and_encoder_objects(tiny_bert, scored_pairs, sample_rows, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sample_rows[:200]) + "\n", encoding="utf8")
    encoder, options = Encoder(tiny_bert, pooler="avg", device="cpu"), {"halves": {"limit": 20}}
    found, again = (cse.evaluate(each, "halves", corpus, options=options) for each in (tiny_bert, encoder))
    assert again.reports["halves"].rows == found.reports["halves"].rows
    assert (found.reports["halves"].rows[0]["sentences"], again.precision) == (20, "fp32")

    class Other:
        def encode(self, texts, *, batch_size=64, progress=None):
            return encoder.encode(texts, batch_size=batch_size, progress=progress)

    plain = cse.evaluate(Other(), data=scored_pairs)
    assert (plain.model, plain.pooling, plain.notes) == ("Other", "", [])
    assert plain.reports["sts"].rows == cse.evaluate(encoder, data=scored_pairs).reports["sts"].rows
    wrong = ((encoder, "precision", "bf16"), (encoder, "device", "cuda"), (Other(), "device", "cpu"))
    for model, argument, value in wrong:
        refuses(
            f"{argument}: that of an encoder in memory", cse.evaluate, model, data=scored_pairs, **{argument: value}
        )
    assert cse.evaluate(encoder, data=scored_pairs, device="cpu", precision="fp32").precision == "fp32"


def test_no_threads_are_those_before_the_first_call():
    before = torch.get_num_threads()
    for threads in (before + 1, 0):
        set_threads(threads)
        assert torch.get_num_threads() == (threads or before)


def test_what_taught_an_encoder_is_known_in_another_working_folder(finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(finished_run)
    encoder = Encoder("best", device="cpu")
    monkeypatch.chdir(tmp_path)
    found = taught_of(encoder)
    assert len(found.own)
    assert np.array_equal(found.own, taught_of(finished_run / "best").own)


def test_compare_returns_what_cse_compare_prints(tiny_bert, other, scored_pairs):
    found = cse.compare(tiny_bert, other, data=scored_pairs)
    printed = call("compare", tiny_bert, other, "--data", scored_pairs, "--json")
    assert json.loads(json.dumps(found.tasks)) == printed["comparisons"][0]["tasks"]
    (task,) = found.tasks
    assert (found.a, found.b, found.seeds) == (str(tiny_bert), str(other), False)
    assert task["low"] <= task["mean"] <= task["high"]
    assert task["mean"] == pytest.approx(task["b"] - task["a"])
    assert task["verdict"] in ("better", "worse", "cannot tell")
    scores = [cse.evaluate(model, data=scored_pairs).reports["sts"].rows[0]["spearman"] for model in (tiny_bert, other)]
    assert [task["a"], task["b"]] == pytest.approx(scores)
    same = cse.compare(tiny_bert, str(tiny_bert), "geometry", scored_pairs)  # the same model on both sides
    assert {record["mean"] for record in same.tasks} == {0.0}
    assert "p" not in same.tasks[0]


def test_compare_takes_one_checkpoint_per_seed_on_each_side(tiny_bert, other, scored_pairs):
    a, b = Encoder(tiny_bert, device="cpu"), Encoder(other, device="cpu")
    found = cse.compare([a, b], [b, a], data=scored_pairs)
    sides = (f"{tiny_bert},{other}", f"{other},{tiny_bert}")
    printed = call("compare", *sides, "--seeds", "--data", scored_pairs, "--json")
    assert found.seeds
    expected = printed["comparisons"][0]["tasks"]
    assert found.tasks[0]["mean"] == pytest.approx(expected[0]["mean"], abs=1e-9)
    assert found.tasks[0]["p_holm"] == pytest.approx(expected[0]["p_holm"], abs=1e-6)
    for sides in (([a, b], [b]), ([a], [b]), ([a, b], b)):
        refuses("same number of checkpoints", cse.compare, *sides, data=scored_pairs)


def test_evaluate_refuses_invalid_arguments(tiny_bert, scored_pairs, tmp_path):
    for arguments, more, message in (
        ((tiny_bert, "stss"), {}, "--suite: 'stss' is unknown"),
        ((tiny_bert, "halves"), {"options": {"halves": {"limits": 3}}}, "no such option"),
        ((tiny_bert, "sts"), {"options": {"halves": {"limit": 3}}}, "not among the suites"),
        ((3,), {}, "must be a folder, a name, or an encoder"),
        ((Encoder(tiny_bert, device="cpu"),), {"pooler": "cls"}, "has been loaded with its own values"),
        ((tmp_path / "none",), {}, "no such folder"),
    ):
        refuses(message, cse.evaluate, *arguments, data=scored_pairs, **more)


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
    refuses("was built with an encoder that was not in files; save it", SearchIndex.open, tmp_path / "index")


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
    assert static.tokenizer is static[0].tokenizer is tokenizer


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

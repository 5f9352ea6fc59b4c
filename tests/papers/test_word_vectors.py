"""Word vectors and whitened embeddings, with which published tables compare."""

import json

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Pooling

from cse import Encoder, InputError
from cse_papers.whitening import fit_whitening
from sentence_models import sentence_model
from test_kinds import VECTORS


def test_word_vectors_are_averaged_over_known_words(tmp_path):
    (tmp_path / "v.txt").write_text(VECTORS, encoding="utf8")
    (tmp_path / "w.txt").write_text("4 3\n" + VECTORS, encoding="utf8")
    for name in ("v", "w"):
        encoder = Encoder(f"glove:{tmp_path}/{name}.txt")
        found = encoder.encode(["The cat.", "unheard of", "a dog, the dog"])
        expected = [np.mean([[1, 0, 0], [0, 1, 0], [0, 0, 2]], axis=0), np.zeros(3)]
        expected.append(np.mean([[0, 0.5, 0.5], [1, 0, 0], [0, 0.5, 0.5]], axis=0))
        assert np.allclose(found, expected)


def test_words_in_a_file_of_vectors_may_contain_spaces(tmp_path):
    rows = ". . . 3 3 3\n" + VECTORS + "at name@domain.com 5 5 5\n. . 4 4 4\nthe 9 9 9\n"
    (tmp_path / "v.txt").write_text(rows, encoding="utf8")
    encoder = Encoder(f"glove:{tmp_path}/v.txt")
    assert encoder.embedding_dim == 3
    assert np.allclose(encoder.encode(["the cat"]), [[0.5, 0.5, 0]])


def test_the_covariance_of_whitened_vectors_is_the_identity_matrix(tmp_path, tiny_bert, sample_rows):
    x = np.random.default_rng(0).normal(size=(50, 6)) @ np.random.default_rng(1).normal(size=(6, 6)) + 3
    mean, matrix = fit_whitening(x)
    assert np.allclose(np.cov(((x - mean) @ matrix).T), np.eye(6), atol=1e-9)
    assert fit_whitening(x[:4])[1].shape == (6, 3)
    (tmp_path / "fit.txt").write_text("\n".join(sample_rows[:200]), encoding="utf8")
    encoder = Encoder(f"whitening:{tiny_bert}@{tmp_path}/fit.txt@8", device="cpu")
    vectors = encoder.encode(sample_rows[:200])
    assert vectors.shape == (200, 8)
    assert np.allclose(np.cov(vectors.T), np.eye(8), atol=1e-3)


def test_whitening_uses_the_prompt_and_the_dimensions_that_the_model_declares(tmp_path, tiny_bert, sample_rows):
    modules = (lambda width: Pooling(width),)
    sentence_model(tmp_path / "model", tiny_bert, modules=modules, prompts={"q": "find: "}, default_prompt_name="q")
    path = tmp_path / "model" / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": 6}), encoding="utf8")
    (tmp_path / "fit.txt").write_text("\n".join(sample_rows[:50]), encoding="utf8")
    encoder = Encoder(f"whitening:{tmp_path}/model@{tmp_path}/fit.txt", device="cpu")
    vectors = encoder.encode(sample_rows[:50])
    assert vectors.shape == (50, 6)
    assert np.allclose(vectors.mean(0), 0, atol=1e-3)
    assert np.allclose(np.cov(vectors.T), np.eye(6), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glove:nowhere.txt", "nowhere.txt"),
        ("glove:torn.txt", "line 3 does not consist of a word and 2 numbers"),
        ("glove:longer.txt", "line 2 does not consist of a word and 2 numbers"),
        ("whitening:minilm", "the form is whitening:MODEL@FILE"),
        ("whitening:minilm@nowhere.txt", "nowhere.txt: no such file"),
    ],
)
def test_invalid_encoders_are_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn.txt").write_text("a 1 2\nb 3 4\nc 5\n", encoding="utf8")
    (tmp_path / "longer.txt").write_text("a 1 2\nb 1 2 3\n", encoding="utf8")
    with pytest.raises((InputError, OSError), match=message):
        Encoder(name)

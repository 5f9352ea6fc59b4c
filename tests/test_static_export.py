"""``cse export``: static encoders in model2vec, sentence-transformers and cse; copies and their model cards."""

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import HfApi, ModelCard
from scipy.sparse import csr_matrix
from sentence_transformers import SentenceTransformer

from conftest import refuses
from cse import Encoder
from cse.data.corpus import Corpus
from cse.encoder import static_export
from cse.encoder.base import unit
from cse.encoder.saving import write_card
from test_cli import ran, refused

TEXTS = ["One.", "Another sentence, rather longer than the first.", "word " * 700, "Ünïcode, 12 x", " "]


@pytest.fixture(scope="module")
def model2vec():
    return pytest.importorskip("model2vec", reason="not installed: pip install 'cse[static]'")


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tiny_bert, short_corpus, cse_here, model2vec):
    """The folder of a static encoder, and the JSON that the export prints."""
    folder = tmp_path_factory.mktemp("static") / "made"
    done = cse_here("export", tiny_bert, "--static", "--corpus", short_corpus, "-o", folder, "--threads", 1, "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_model2vec_sentence_transformers_and_cse_compute_the_same_embeddings(exported, tiny_bert, tmp_path, model2vec):
    folder, printed = exported
    ours = Encoder(folder, device="cpu").encode(TEXTS)
    assert ours.shape == (len(TEXTS), 32) == (len(TEXTS), printed["embedding_dim"])
    np.testing.assert_allclose(np.linalg.norm(ours[:4], axis=1), 1, atol=1e-6)
    # The others compute in float16, in which the vectors are stored.
    np.testing.assert_allclose(model2vec.StaticModel.from_pretrained(folder).encode(TEXTS), ours, atol=4e-3)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:4])
    np.testing.assert_allclose(theirs, ours[:4], atol=4e-3)
    SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "copy"), create_model_card=False)
    np.testing.assert_allclose(Encoder(tmp_path / "copy", device="cpu").encode(TEXTS), ours, atol=4e-3)
    assert printed["rows"] == 600
    assert printed["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert not any(str(tiny_bert).encode() in path.read_bytes() for path in folder.iterdir())
    assert "license:" not in (folder / "README.md").read_text(encoding="utf8")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {(folder / "README.md").stat().st_mode & 0o777}


def test_fits_bring_vectors_nearer_and_dims_keeps_the_first(tiny_bert, sample_rows, tmp_path, monkeypatch, model2vec):
    encoder, corpus = Encoder(tiny_bert, device="cpu"), Corpus.from_texts(sample_rows[:300])
    made = {"fitted": static_export.export_static(encoder, corpus, str(tmp_path / "fitted"))}
    made["few"] = static_export.export_static(encoder, corpus, str(tmp_path / "few"), dims=5)
    monkeypatch.setattr(static_export, "RIDGE", 1e12)
    made["plain"] = static_export.export_static(encoder, corpus, str(tmp_path / "plain"))
    assert made["fitted"].cosine > made["plain"].cosine + 0.05
    # Also for pairs of rows that took no part in the fit, measured from the files.
    known, new = (encoder.encode(rows) for rows in (sample_rows[:300], sample_rows[300:600]))
    found = {name: Encoder(tmp_path / name, device="cpu").encode(sample_rows[300:600]) for name in made}
    found["wanted"] = unit(unit(new) - unit(known).mean(axis=0))
    products = {name: np.ravel(vectors @ vectors.T) for name, vectors in found.items()}
    near, far = (np.corrcoef(products[name], products["wanted"])[0, 1] for name in ("fitted", "plain"))
    assert near > far
    squares = (Encoder(tmp_path / "fitted", device="cpu").encode(sample_rows[:300]).astype(np.float64) ** 2).sum(0)
    assert (squares[:-1] > squares[1:] - 1e-2).all()  # a dimension explains more than a later one
    assert made["few"].embedding_dim == 5
    np.testing.assert_allclose(found["few"], unit(found["fitted"][:, :5]), atol=5e-3)


def test_the_fit_minimises_its_formula(monkeypatch):
    draw = np.random.default_rng(0)
    counts = draw.poisson(1, (12, 6)).astype(np.float32)
    counts[:, 5] = 0  # a token that does not occur
    counts[:, 0] += 1
    prior = draw.standard_normal((6, 3)).astype(np.float32)
    weights = draw.uniform(0.2, 1, 6).astype(np.float32)
    targets = draw.standard_normal((12, 3)).astype(np.float32)
    vectors, made, cosine = static_export.fit(prior, weights, csr_matrix(counts), targets)
    rows = (counts / np.linalg.norm(counts @ prior, axis=1)[:, None]).astype(np.float64)
    wanted = targets / np.linalg.norm(targets, axis=1)[:, None]
    wanted = wanted - wanted.mean(0)
    wanted /= np.linalg.norm(wanted, axis=1)[:, None]
    strength = static_export.RIDGE * (rows**2).sum(1).mean()
    penalty = strength * np.diag(1 / weights.astype(np.float64) ** 2)
    expected = np.linalg.solve(rows.T @ rows + penalty, rows.T @ wanted + penalty @ prior)
    np.testing.assert_allclose(vectors, expected, atol=2e-3)
    np.testing.assert_array_equal(vectors[5], prior[5])
    reached = counts @ expected / np.linalg.norm(counts @ expected, axis=1)[:, None]
    np.testing.assert_allclose(made, reached, atol=2e-3)
    assert cosine == pytest.approx((reached * wanted).sum(1).mean(), abs=2e-3)


def test_weights_follow_from_the_frequencies_of_the_corpus():
    alone = np.array([[1, 0], [0, 2], [0, 0], [3, 3]], dtype=np.float32)
    vectors, weights = static_export.first_vectors(
        alone, csr_matrix(np.array([[3, 0, 0, 1], [0, 0, 0, 0]], np.float32))
    )
    np.testing.assert_allclose(weights, 1e-3 / (1e-3 + np.array([0.75, 0, 0, 0.25])), rtol=1e-6)
    lengths = np.array([[1, 0], [0, 1], [0.5**0.5, 0.5**0.5]])
    np.testing.assert_allclose(vectors[[0, 1, 3]], (lengths - lengths.mean(0)) * weights[[0, 1, 3], None], atol=1e-6)
    assert not vectors[2].any()


def test_errors_in_the_options(tiny_bert, short_corpus, tmp_path, cse_here, model2vec):
    for flags, error in (
        ("--static", "--static needs texts to fit the vectors to; name them with --corpus FILE"),
        (f"--static --corpus {short_corpus}", "--static writes a new folder; name it with -o"),
        (f"--static --corpus {short_corpus} -o {tmp_path}", "exists; name a new folder"),
        (f"--static --corpus {short_corpus} -o new --dims 33", "--dims 33: the embeddings of this model have"),
        ("", "cse export: name a format, --onnx or --static, or a new folder for a copy of MODEL with -o"),
    ):
        refused(cse_here("export", tiny_bert, *flags.split(), cwd=tmp_path), error)
    assert not list(tmp_path.iterdir())


def test_encoders_without_a_transformer_and_corpora_without_tokens_are_refused(exported, tiny_bert, tmp_path):
    corpus = Corpus.from_texts(["the cat sat there", "a dog"])
    few, new = Corpus.from_texts(["one", " "]), str(tmp_path / "new")
    static, bert = (Encoder(folder, device="cpu") for folder in (exported[0], tiny_bert))
    refuses("no transformer with a fast tokenizer to distil", static_export.export_static, static, corpus, new)
    refuses("fewer than 2 of its rows have tokens", static_export.export_static, bert, few, new)
    assert not list(tmp_path.iterdir())


def test_a_roberta_is_distilled(tiny_roberta, sample_rows, tmp_path, model2vec):
    encoder = Encoder(tiny_roberta, device="cpu")
    assert static_export.export_static(encoder, Corpus.from_texts(sample_rows[:200]), tmp_path / "new").cosine > 0.5
    ours = Encoder(tmp_path / "new", device="cpu").encode(sample_rows[:20])
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "new").encode(sample_rows[:20])
    np.testing.assert_allclose(theirs, ours, atol=4e-3)


def test_the_error_for_a_missing_model2vec_names_the_command(tiny_bert, short_corpus, tmp_path, cse_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "model2vec", None)
    done = cse_here("export", tiny_bert, "--static", "--corpus", short_corpus, "-o", tmp_path / "new")
    refused(done, "cse export --static: model2vec is not installed; run pip install 'cse[static]'")
    assert not list(tmp_path.iterdir())


def test_encode_and_search_accept_a_static_encoder(exported, tmp_path, short_corpus, short_rows, cse_here):
    folder, _ = exported
    ran(cse_here("encode", folder, short_corpus, "-o", tmp_path / "x.npy", "--threads", 1))
    expected = Encoder(folder, device="cpu").encode(short_rows)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-6)
    flags = ("-o", tmp_path / "index", "--query", short_rows[7], "--top", 1)
    assert short_rows[7] in ran(cse_here("search", folder, short_corpus, *flags, "--json"))


def card_of(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ModelCard((folder / "README.md").read_text(encoding="utf8"))


@pytest.mark.slow
def test_a_copy_states_licence_and_language_and_is_uploaded_with_its_card(cse, one_finished_run, tmp_path, monkeypatch):
    run, copy, sent = one_finished_run, tmp_path / "mine", {}
    assert ran(cse("export", run, "-o", copy, "--license", "apache-2.0", "--language", "en")) == f"{copy}\n"
    card, before = card_of(copy), card_of(run / "best")
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en"])
    assert (card.text, card.data.tags) == (before.text, before.data.tags)
    assert before.data.license is None  # the folder of the run stays as it was
    for name in ("model.safetensors", "modules.json", "tokenizer.json"):
        assert (copy / name).read_bytes() == (run / "best" / name).read_bytes(), name

    def upload(self, repo_id, folder_path, **_):
        sent.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir() if path.is_file()})
        return SimpleNamespace(commit_url=repo_id)

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert Encoder(copy, device="cpu").push_to_hub("me/small", replace_model_card=True) == "me/small"
    uploaded = ModelCard(sent["README.md"].decode())
    assert (uploaded.data.license, uploaded.data.language) == ("apache-2.0", ["en"])
    assert 'SentenceTransformer("me/small")' in uploaded.text
    assert sent["tokenizer.json"] == (copy / "tokenizer.json").read_bytes()


def test_copies_that_cannot_be_written_are_refused(cse_here, one_finished_run, glove, tmp_path):
    refused(cse_here("export", one_finished_run, "-o", tmp_path), "exists; name a new folder")
    refused(cse_here("export", glove, "-o", tmp_path / "new"), "cannot be saved")
    assert not (tmp_path / "new").exists()


def test_a_folder_without_a_card_gets_one_and_empty_values_change_nothing(tmp_path):
    (tmp_path / "plain").mkdir()
    write_card(str(tmp_path / "plain"), {"license": None, "language": []})
    assert not list((tmp_path / "plain").iterdir())
    write_card(str(tmp_path / "plain"), {"license": "mit", "language": []})
    card = card_of(tmp_path / "plain")
    assert (card.data.license, card.data.language) == ("mit", None)
    for metadata in ("a: [", "- a"):
        (tmp_path / "plain" / "README.md").write_text(f"---\n{metadata}\n---\n", encoding="utf8")
        refuses(r"README\.md: its metadata cannot be read", write_card, str(tmp_path / "plain"), {"license": "mit"})

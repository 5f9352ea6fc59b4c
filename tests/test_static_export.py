"""``cse export --static``: the fit, the file in model2vec, sentence-transformers and cse, and errors."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from cse import Encoder, InputError
from cse.cli import cli
from cse.data.corpus import Corpus
from cse.encoder import static_export
from cse.encoder.base import unit

TEXTS = ["One.", "Another sentence, rather longer than the first.", "word " * 700, "Ünïcode, 12 x", " "]
needs_model2vec = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("model2vec") is None, reason="not installed: pip install 'cse[static]'"
)


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory, sample_rows):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join([*sample_rows[:300], ""]) + "\n", encoding="utf8")
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tiny_bert, corpus_file):
    """The folder of a static encoder, and the JSON that the export prints."""
    folder = tmp_path_factory.mktemp("static") / "made"
    done = invoke("export", tiny_bert, "--static", "--corpus", corpus_file, "-o", folder, "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)


@needs_model2vec
def test_model2vec_sentence_transformers_and_cse_compute_the_same_embeddings(exported, tiny_bert, tmp_path):
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    folder, printed = exported
    ours = Encoder(folder, device="cpu").encode(TEXTS)
    assert ours.shape == (len(TEXTS), 32) == (len(TEXTS), printed["embedding_dim"])
    np.testing.assert_allclose(np.linalg.norm(ours[:4], axis=1), 1, atol=1e-6)
    # The others compute in float16, in which the vectors are stored.
    np.testing.assert_allclose(StaticModel.from_pretrained(folder).encode(TEXTS), ours, atol=4e-3)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:4])
    np.testing.assert_allclose(theirs, ours[:4], atol=4e-3)
    SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "copy"), create_model_card=False)
    np.testing.assert_allclose(Encoder(tmp_path / "copy", device="cpu").encode(TEXTS), ours, atol=4e-3)
    assert printed["rows"] == 300
    assert printed["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert not any(
        str(tiny_bert) in path.read_text("utf8") for path in folder.iterdir() if path.suffix in (".json", ".md")
    )
    assert "license:" not in (folder / "README.md").read_text(encoding="utf8")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {(folder / "README.md").stat().st_mode & 0o777}


@needs_model2vec
def test_the_fit_brings_embeddings_nearer_and_dims_keeps_the_first(tiny_bert, sample_rows, tmp_path, monkeypatch):
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
    from scipy.sparse import csr_matrix

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
    from scipy.sparse import csr_matrix

    alone = np.array([[1, 0], [0, 2], [0, 0], [3, 3]], dtype=np.float32)
    vectors, weights = static_export.first_vectors(
        alone, csr_matrix(np.array([[3, 0, 0, 1], [0, 0, 0, 0]], np.float32))
    )
    np.testing.assert_allclose(weights, 1e-3 / (1e-3 + np.array([0.75, 0, 0, 0.25])), rtol=1e-6)
    lengths = np.array([[1, 0], [0, 1], [0.5**0.5, 0.5**0.5]])
    np.testing.assert_allclose(vectors[[0, 1, 3]], (lengths - lengths.mean(0)) * weights[[0, 1, 3], None], atol=1e-6)
    assert not vectors[2].any()


@needs_model2vec
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--static",), "--static needs texts to fit the vectors to; name them with --corpus FILE"),
        (("--static", "--corpus", "FILE"), "--static writes a new folder; name it with -o"),
        (("--static", "--corpus", "FILE", "-o", "HERE"), "exists; name a new folder"),
        (
            ("--static", "--corpus", "FILE", "-o", "new", "--dims", 33),
            "--dims 33: the embeddings of this model have 32",
        ),
        ((), "cse export: name a format, --onnx or --static, or a new folder for a copy of MODEL with -o"),
        (("--static", "--int8"), "--int8 has no effect without --onnx; add that, or omit --int8"),
    ],
)
def test_errors_in_the_options(tiny_bert, corpus_file, tmp_path, monkeypatch, arguments, error):
    monkeypatch.chdir(tmp_path)
    places = {"FILE": corpus_file, "HERE": tmp_path}
    done = invoke("export", tiny_bert, *(places.get(each, each) for each in arguments))
    assert isinstance(done.exception, InputError), done.output
    assert error in str(done.exception)
    assert not list(tmp_path.iterdir())


@needs_model2vec
def test_encoders_without_a_transformer_and_corpora_without_tokens_are_refused(exported, tiny_bert, tmp_path):
    corpus = Corpus.from_texts(["the cat sat there", "a dog"])
    with pytest.raises(InputError, match="has no transformer with a fast tokenizer to distil"):
        static_export.export_static(Encoder(exported[0], device="cpu"), corpus, str(tmp_path / "new"))
    few = Corpus.from_texts(["one", " "])
    with pytest.raises(InputError, match="fewer than 2 of its rows have tokens"):
        static_export.export_static(Encoder(tiny_bert, device="cpu"), few, str(tmp_path / "new"))
    assert not list(tmp_path.iterdir())


@needs_model2vec
def test_a_roberta_is_distilled(tiny_roberta, sample_rows, tmp_path):
    from model2vec import StaticModel

    encoder = Encoder(tiny_roberta, device="cpu")
    assert static_export.export_static(encoder, Corpus.from_texts(sample_rows[:200]), tmp_path / "new").cosine > 0.5
    ours = Encoder(tmp_path / "new", device="cpu").encode(sample_rows[:20])
    theirs = StaticModel.from_pretrained(tmp_path / "new").encode(sample_rows[:20])
    np.testing.assert_allclose(theirs, ours, atol=4e-3)


def test_a_missing_model2vec_is_an_error_that_names_the_command(tiny_bert, corpus_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "model2vec", None)
    done = invoke("export", tiny_bert, "--static", "--corpus", corpus_file, "-o", tmp_path / "new")
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "cse export --static: model2vec is not installed; run pip install 'cse[static]'"
    assert not list(tmp_path.iterdir())


@needs_model2vec
def test_encode_and_search_accept_a_static_encoder(exported, tmp_path, corpus_file, sample_rows):
    folder, _ = exported
    done = invoke("encode", folder, corpus_file, "-o", tmp_path / "x.npy", "--threads", 1)
    assert done.exit_code == 0, done.output
    expected = Encoder(folder, device="cpu").encode(sample_rows[:300])
    np.testing.assert_allclose(np.load(tmp_path / "x.npy")[:300], expected, atol=1e-6)
    done = invoke(
        "search", folder, corpus_file, "-o", tmp_path / "index", "--query", sample_rows[7], "--top", 1, "--json"
    )
    assert done.exit_code == 0, done.output
    assert sample_rows[7] in done.stdout

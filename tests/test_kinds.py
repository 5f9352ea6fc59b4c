"""Special models of sentence-transformers: a StaticEmbedding can encode; others are refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from transformers import AutoTokenizer

from cse import Encoder, InputError, train
from cse.encoder.resolve import find_model
from cse.encoder.trained import load_encoder
from test_modules import TEXTS


@pytest.fixture
def static(tmp_path, tiny_bert):
    """The folder and object of a SentenceTransformer with StaticEmbedding, Dense, Normalize and a query prompt."""
    torch.manual_seed(0)
    first = StaticEmbedding(AutoTokenizer.from_pretrained(tiny_bert), embedding_dim=16)
    modules = [first, Dense(16, 12, activation_function=torch.nn.Tanh()), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "find this : "})
    model.save(str(tmp_path / "static"), create_model_card=False)
    return tmp_path / "static", model


def test_a_static_embedding_encodes_as_in_sentence_transformers(static):
    folder, theirs = static
    ours = Encoder(folder, device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(ours.encode_query(TEXTS), theirs.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(ours.encode(TEXTS, batch_size=1), ours.encode(TEXTS), atol=1e-6)
    assert ours.embedding_dim == 12
    with pytest.raises(InputError, match="has no pooling to choose"):
        Encoder(folder, pooler="avg", device="cpu")


def test_mapping_and_weights_of_model2vec_are_applied(static, tmp_path):
    folder, _ = static
    rows, mapping, weights = torch.randn(7, 16), torch.randint(0, 7, (2000,)), torch.rand(2000)
    part = next(folder.glob("0_*"), folder)
    save_file({"embeddings": rows, "mapping": mapping, "weights": weights}, part / "model.safetensors")
    theirs = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(Encoder(folder, device="cpu").encode(TEXTS), theirs.encode(TEXTS), atol=1e-6)


def test_training_and_onnx_export_of_a_static_encoder_are_refused(static, cse, run_config):
    folder, _ = static
    with pytest.raises(InputError, match="is a static encoder, which has no transformer to train or to export"):
        train(run_config.replace(model=str(folder)))
    done = cse("export", folder, "--onnx", "-o", "onnx")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "is a static encoder" in done.stderr


def test_a_router_encodes_queries_and_documents_as_in_sentence_transformers(tmp_path, tiny_bert):
    from sentence_transformers.base.modules import Router

    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    torch.manual_seed(0)
    router = Router.for_query_document(
        query_modules=[StaticEmbedding(tokenizer, embedding_dim=4)],
        document_modules=[StaticEmbedding(tokenizer, embedding_dim=4)],
    )
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "model"), create_model_card=False)
    ours, theirs = Encoder(tmp_path / "model", device="cpu"), SentenceTransformer(str(tmp_path / "model"), device="cpu")
    queries = ours.encode_query(TEXTS)
    np.testing.assert_allclose(queries, theirs.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(ours.encode_document(TEXTS), theirs.encode_document(TEXTS), atol=1e-6)
    assert np.abs(queries - ours.encode_document(TEXTS)).max() > 1e-2
    with pytest.raises(InputError, match="consists of Router; training needs a Transformer"):
        load_encoder(find_model(str(tmp_path / "model")), "avg")


def test_a_cross_encoder_and_a_sparse_encoder_are_refused(tmp_path, tiny_bert):
    from sentence_transformers import CrossEncoder, SparseEncoder

    CrossEncoder(str(tiny_bert), device="cpu", num_labels=1).save(str(tmp_path / "cross"))
    with pytest.raises(InputError, match=r"is a CrossEncoder.*pass a SentenceTransformer to cse"):
        find_model(str(tmp_path / "cross"))
    # Older releases of sentence-transformers save a CrossEncoder in these forms.
    for name in ("config_sentence_transformers.json", "modules.json"):
        (tmp_path / "cross" / name).unlink(missing_ok=True)
    config = json.loads((tmp_path / "cross" / "config.json").read_text())
    for labels, more in (({"0": "a"}, {}), ({"0": "a", "1": "b"}, {"sentence_transformers": {"version": "4.1.0"}})):
        (tmp_path / "cross" / "config.json").write_text(json.dumps({**config, "id2label": labels, **more}))
        with pytest.raises(InputError, match="is a CrossEncoder"):
            find_model(str(tmp_path / "cross"))
    SparseEncoder(str(tiny_bert), device="cpu").save(str(tmp_path / "sparse"))
    with pytest.raises(InputError, match=r"is a SparseEncoder, which has vectors with a dimension for each token"):
        find_model(str(tmp_path / "sparse"))


def test_encode_and_eval_accept_a_static_embedding(static, tmp_path, cse):
    folder, theirs = static
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    done = cse("encode", folder, "some.txt", "-o", "x.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), theirs.encode(["the cat", "a dog"]), atol=1e-6)
    (tmp_path / "pairs.tsv").write_text("5\tthe cat\tthe cat .\n1\tthe cat\tdog .\n3\tdog\tcat\n", encoding="utf8")
    done = cse("eval", folder, "--data", "pairs.tsv", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pooling"].startswith("mean of the vectors of the tokens")

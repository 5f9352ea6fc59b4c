"""Encoders other than transformers: static embeddings, ONNX files, word vectors, routers, and models that are refused.

Encoders that work without torch and transformers (``LightEncoder``) are compared with ``cse.Encoder``.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from transformers import AutoTokenizer

from conftest import refuses
from cse import Encoder, InputError, train
from cse.encoder.light import LightEncoder
from cse.encoder.onnx_export import export_onnx
from cse.encoder.opening import open_encoder
from cse.encoder.resolve import find_model, model_digest
from cse.encoder.trained import load_encoder
from sentence_models import TEXTS, agree, dense, layer_norm, normalize, pooling, sentence_model
from test_cli import ran, run_and_list_imports

PROMPTS = {"query": "find this : ", "document": "text : "}
VECTORS = "the 1 0 0\ncat 0 1 0\ndog 0 0.5 0.5\n. 0 0 2\n"


def save_static(folder, tokenizer, *modules):
    """Saves a SentenceTransformer with StaticEmbedding, prompts, and further modules."""
    torch.manual_seed(0)
    first = StaticEmbedding(AutoTokenizer.from_pretrained(tokenizer), embedding_dim=16)
    model = SentenceTransformer(modules=[first, *modules], device="cpu", prompts=PROMPTS)
    model.save(str(folder), create_model_card=False)


@pytest.fixture
def static(tmp_path, tiny_bert):
    save_static(tmp_path / "static", tiny_bert, Dense(16, 12, activation_function=torch.nn.Tanh()), Normalize())
    return tmp_path / "static"


@pytest.fixture(scope="module")
def light(tmp_path_factory, tiny_bert):
    """The folder of a static embedding that a LightEncoder can open."""
    folder = tmp_path_factory.mktemp("light") / "static"
    save_static(folder, tiny_bert, Normalize())
    return folder


def test_a_static_embedding_encodes_as_in_sentence_transformers(static):
    vectors, ours = agree(static, "encode_query"), Encoder(static, device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS, batch_size=1), vectors, atol=1e-6)
    assert ours.embedding_dim == vectors.shape[1] == 12
    refuses("has no pooling to choose", Encoder, static, pooler="avg", device="cpu")


def test_mapping_and_weights_of_model2vec_are_applied(static, tmp_path):
    rows, mapping, weights = torch.randn(7, 16), torch.randint(0, 7, (2000,)), torch.rand(2000)
    part = next(static.glob("0_*"), static)
    save_file({"embeddings": rows, "mapping": mapping, "weights": weights}, part / "model.safetensors")
    agree(static)


def test_training_and_onnx_export_of_a_static_encoder_are_refused(static, run_config):
    config = run_config.replace(model=str(static))
    refuses("is a static encoder, which has no transformer to train or to export", train, config)
    refuses("is a static encoder", export_onnx, str(static), str(static.with_name("onnx")))


def test_a_router_encodes_queries_and_documents_as_in_sentence_transformers(tmp_path, tiny_bert):
    tokenizer, folder = AutoTokenizer.from_pretrained(tiny_bert), str(tmp_path / "model")
    torch.manual_seed(0)
    sides = [[StaticEmbedding(tokenizer, embedding_dim=4)] for _ in range(2)]
    SentenceTransformer(modules=[Router.for_query_document(*sides)], device="cpu").save(folder, create_model_card=False)
    ours, theirs = Encoder(folder, device="cpu"), SentenceTransformer(folder, device="cpu")
    queries, documents = ours.encode_query(TEXTS), ours.encode_document(TEXTS)
    np.testing.assert_allclose(queries, theirs.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(documents, theirs.encode_document(TEXTS), atol=1e-6)
    assert np.abs(queries - documents).max() > 1e-2
    refuses("consists of Router; training needs a Transformer", load_encoder, find_model(folder), "avg")


def test_a_cross_encoder_and_a_sparse_encoder_are_refused(tmp_path, tiny_bert):
    CrossEncoder(str(tiny_bert), device="cpu", num_labels=1).save(str(tmp_path / "cross"))
    refuses(r"is a CrossEncoder.*pass a SentenceTransformer to cse", find_model, str(tmp_path / "cross"))
    # Older releases of sentence-transformers save a CrossEncoder in these forms.
    for name in ("config_sentence_transformers.json", "modules.json"):
        (tmp_path / "cross" / name).unlink(missing_ok=True)
    config = json.loads((tmp_path / "cross" / "config.json").read_text())
    for labels, more in (({"0": "a"}, {}), ({"0": "a", "1": "b"}, {"sentence_transformers": {"version": "4.1.0"}})):
        (tmp_path / "cross" / "config.json").write_text(json.dumps({**config, "id2label": labels, **more}))
        refuses("is a CrossEncoder", find_model, str(tmp_path / "cross"))
    SparseEncoder(str(tiny_bert), device="cpu").save(str(tmp_path / "sparse"))
    with pytest.raises(InputError, match=r"is a SparseEncoder, which has vectors with a dimension for each token"):
        find_model(str(tmp_path / "sparse"))


def light_agrees(name, **settings):
    ours, whole = LightEncoder(name, **settings), Encoder(name, device="cpu", **settings)
    texts = [*TEXTS, " "]
    for method in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(ours, method)(texts), getattr(whole, method)(texts), atol=1e-5)
    assert ours.embedding_dim == whole.embedding_dim
    assert model_digest(ours) == model_digest(whole)
    return ours


def test_a_static_embedding_gives_the_vectors_of_cse_encoder(light, tiny_bert):
    light_agrees(str(light))
    light_agrees(str(light), dims=5)
    light_agrees(str(light), prompt="query")
    code = "from cse.encoder.opening import open_encoder as f; f(sys.argv[1]).encode_query(['a cat'])"
    assert not {"torch", "transformers"} & run_and_list_imports(light, code=code)[1]
    assert isinstance(open_encoder(light), LightEncoder)
    refuses(r"needs cse\.Encoder", LightEncoder, tiny_bert)
    assert isinstance(open_encoder(tiny_bert, device="cpu"), Encoder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "modules", "cut"),
    [
        ("right", [pooling("mean", include_prompt=False), dense(16, torch.nn.Tanh()), normalize], None),
        ("right", [pooling("max"), normalize], 10),
        ("left", [pooling("lasttoken", "max", "cls"), layer_norm], None),
    ],
)
def test_an_onnx_file_gives_the_vectors_of_the_model(tmp_path, tiny_bert, side, modules, cut):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'cse[onnx]'")
    folder = tmp_path / "model"
    sentence_model(folder, tiny_bert, modules=modules, side=side, prompts=PROMPTS, truncate_dim=cut)
    export_onnx(str(folder))
    ours, whole = light_agrees(f"onnx:{folder}"), Encoder(folder, device="cpu")
    light_agrees(f"onnx:{folder}", dims=5)
    assert cut in (None, ours.embedding_dim)
    for method in ("encode", "encode_query"):
        np.testing.assert_allclose(getattr(ours, method)(TEXTS), getattr(whole, method)(TEXTS), atol=1e-4)


LENGTHS = """
import numpy as np
from cse.encoder.other import ENCODERS, OtherEncoder

class Lengths(OtherEncoder):
    embedding_dim = 2

    def encode(self, texts, **_):
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)

    def files(self):
        return []

ENCODERS.register("lengths", Lengths)
"""


def test_commands_accept_word_vectors_and_encoders_from_a_file(tmp_path, cse):
    (tmp_path / "v.txt").write_text(VECTORS, encoding="utf8")
    (tmp_path / "pairs.tsv").write_text("5\tthe cat\tthe cat .\n1\tthe cat\tdog .\n3\tdog\tcat\n", encoding="utf8")
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    (tmp_path / "lengths.py").write_text(LENGTHS, encoding="utf8")
    for name, more in (("glove:v.txt", ()), ("lengths:", ("--import", "lengths.py"))):
        done = ran(cse("eval", name, "--data", "pairs.tsv", "--json", *more, cwd=tmp_path))
        assert json.loads(done)["suites"]["sts"]["tasks"][0]["pairs"] == 3
        ran(cse("encode", name, "some.txt", "-o", "x.npy", *more, cwd=tmp_path))
        assert len(np.load(tmp_path / "x.npy")) == 2

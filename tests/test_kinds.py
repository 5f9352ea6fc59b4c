"""Encoders by their modules: those that training keeps, static embeddings, ONNX files, word vectors, and routers.

Encoders that work without torch and transformers (``LightEncoder``) are compared with ``cse.Encoder``.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from torch import nn
from transformers import AutoTokenizer

import sentence_models
from commands import refuses
from cse import Encoder, InputError, train
from cse.encoder.light import LightEncoder
from cse.encoder.onnx_export import export_onnx
from cse.encoder.opening import open_encoder
from cse.encoder.passages import Cutter
from cse.encoder.resolve import find_model, model_digest
from cse.encoder.saving import save_encoder
from cse.encoder.trained import load_encoder
from sentence_models import TEXTS, agree, as_on_the_hub, dense, layer_norm, normalize, pooling, sentence_model
from test_cli import ran, run_and_list_imports
from tiny import config_of_eight_steps

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


def test_commands_accept_word_vectors_and_encoders_from_a_file(tmp_path, cse_here):
    (tmp_path / "v.txt").write_text(VECTORS, encoding="utf8")
    (tmp_path / "pairs.tsv").write_text("5\tthe cat\tthe cat .\n1\tthe cat\tdog .\n3\tdog\tcat\n", encoding="utf8")
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    (tmp_path / "lengths.py").write_text(LENGTHS, encoding="utf8")
    for name, more in (("glove:v.txt", ()), ("lengths:", ("--import", "lengths.py"))):
        done = ran(cse_here("eval", name, "--data", "pairs.tsv", "--json", *more, cwd=tmp_path))
        assert json.loads(done)["suites"]["sts"]["tasks"][0]["pairs"] == 3
        ran(cse_here("encode", name, "some.txt", "-o", "x.npy", *more, cwd=tmp_path))
        assert len(np.load(tmp_path / "x.npy")) == 2


def trained_two_steps(folder, short_corpus, tmp_path, **settings):
    values = {"positive": "spans", "batch_size": 4, "max_length": 12, "max_steps": 2, "lr": 1e-2, **settings}
    config = config_of_eight_steps(short_corpus, folder, tmp_path / "runs", **values)
    return train(config).folder / "last"  # best/ may hold the model from before training


def kinds(folder):
    listed = json.loads((folder / "modules.json").read_text(encoding="utf8"))
    return [module["type"].rsplit(".", 1)[-1] for module in listed]


# Name: (architecture, padding side, modules after the transformer).
MODELS = {
    "bert": ("bert", "right", [pooling("cls"), dense(32, nn.Tanh()), normalize]),
    "modernbert": ("modernbert", "right", [pooling("mean"), normalize]),
    "mpnet": ("mpnet", "right", [pooling("mean", "max"), dense(16, nn.GELU(), bias=False)]),
    "deberta": ("deberta-v2", "right", [pooling("mean_sqrt_len_tokens"), layer_norm]),
    "xlm-r": ("xlm-roberta", "right", [pooling("cls"), dense(32, nn.Tanh())]),
    "qwen3": ("qwen3", "left", [pooling("lasttoken"), normalize]),
    "t5": ("t5", "right", [pooling("mean")]),
    "gemma3": ("gemma3_text", "right", [pooling("mean"), dense(64, bias=False), dense(32, bias=False), normalize]),
    "llama": ("llama", "left", [pooling("weightedmean"), normalize, dense(24, nn.ReLU(), use_residual=True)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_keeps_its_modules(tmp_path, tiny_bert, short_corpus, name):
    architecture, side, modules = MODELS[name]
    sentence_model(tmp_path / "model", tiny_bert, architecture, modules, side)
    before = agree(tmp_path / "model")
    trained = trained_two_steps(tmp_path / "model", short_corpus, tmp_path)
    assert np.abs(agree(trained) - before).max() > 1e-3
    assert kinds(trained) == kinds(tmp_path / "model")
    for part in (path.name for path in trained.glob("*_Dense")):
        ours, theirs = (
            json.loads((folder / part / "config.json").read_text()) for folder in (trained, tmp_path / "model")
        )
        assert {**theirs, **ours} == theirs
    assert Encoder(trained, device="cpu").embedding_dim == before.shape[1]


def test_training_keeps_the_order_of_pooling_modes_and_include_prompt(tmp_path, tiny_bert, short_corpus):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("lasttoken", "mean", include_prompt=False)])
    trained = trained_two_steps(tmp_path / "model", short_corpus, tmp_path)
    agree(trained)
    settings = json.loads((trained / "1_Pooling" / "config.json").read_text())
    assert (settings["pooling_mode"], settings["include_prompt"]) == (["lasttoken", "mean"], False)


def test_a_pooler_too_wide_for_the_dense_module_is_refused(tmp_path, tiny_bert):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16)])
    assert Encoder(tmp_path / "model", pooler="max", device="cpu").embedding_dim == 16
    with pytest.raises(
        InputError, match=r"the module Dense takes 32 dimensions, but gets 64; use the pooler of the model, avg"
    ):
        Encoder(tmp_path / "model", pooler="avg+max", device="cpu")


@pytest.mark.slow
def test_merging_with_the_base_model_averages_the_weights_of_dense_modules(tmp_path, tiny_bert, short_corpus):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16)])
    file = "2_Dense/model.safetensors"
    base = load_file(tmp_path / "model" / file)["linear.weight"]
    found = []
    for weight in (0.0, 0.5):
        trained = trained_two_steps(
            tmp_path / "model", short_corpus, tmp_path, merge_with_base=weight, name=f"run{weight}"
        )
        found.append(load_file(trained / file)["linear.weight"] - base)
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0] / 2, atol=1e-6, rtol=1e-4)


def test_folders_in_the_old_layout_of_sentence_transformers_can_be_loaded(tmp_path, tiny_bert):
    """Old folders hold the transformer in a subfolder, Dense weights as a pickle, and do_lower_case in a JSON file."""
    folder = tmp_path / "model"
    model = sentence_model(folder, tiny_bert, modules=[pooling("mean"), dense(16, nn.Sigmoid())])
    vectors = model.encode([text.lower() for text in TEXTS])
    (folder / "0_Transformer").mkdir()
    for path in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        if path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    torch.save(model[2].state_dict(), folder / "2_Dense" / "pytorch_model.bin")
    (folder / "2_Dense" / "model.safetensors").unlink()
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    tokenizer = json.loads((folder / "0_Transformer" / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (folder / "0_Transformer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"max_seq_length": 48, "do_lower_case": True}
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(settings))
    np.testing.assert_allclose(agree(folder), vectors, atol=1e-5)


def test_a_saved_model_keeps_the_conversion_to_lower_case_of_sentence_transformers(tmp_path, sample_rows):
    hub = as_on_the_hub(tmp_path / "hub", "bert", sample_rows[:500])
    folder = tmp_path / "model"
    save_encoder(load_encoder(find_model(str(hub)), "avg"), folder, "")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": True}))
    encoder = load_encoder(find_model(str(folder)), "avg")
    save_encoder(encoder, tmp_path / "saved", "")
    found = [encoder.tokenizer, AutoTokenizer.from_pretrained(tmp_path / "saved")]
    upper, lower = ([each(text)["input_ids"] for each in found] for text in ("A SHORT ONE", "a short one"))
    assert upper == lower == [lower[0]] * 2


def test_a_saved_model_declares_one_maximum_length(tmp_path, tiny_bert):
    """A tokenizer.json with stored truncation, as that of all-MiniLM-L6-v2, does not lower the maximum length."""
    base = shutil.copytree(tiny_bert, tmp_path / "base")
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    encoder = load_encoder(find_model(str(base)), "avg")
    save_encoder(encoder, tmp_path / "saved", "")
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == encoder.max_seq_length > 8
    assert "max_length" not in settings


def test_eight_threads_get_the_vectors_and_passages_of_one(tmp_path, tiny_bert, short_rows):
    prompts = {"query": "a question in several words : ", "document": "text : "}
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), normalize], prompts=prompts)
    encoder = Encoder(tmp_path / "model", device="cpu")
    cut = Cutter(encoder, 8)
    texts = [*short_rows[:20], " ".join(short_rows[:20]), "word"]

    def work(number):
        text = texts[number % len(texts)]
        kind = number % 4
        if kind == 0:
            return encoder.encode_query([text])
        if kind == 1:
            return encoder.encode_document([text])
        return encoder.encode([text, "word"]) if kind == 2 else cut([text])

    numbers = range(44 * 8)
    expected = {number: work(number) for number in range(44)}
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, numbers))
    for number, result in zip(numbers, results, strict=True):
        if number % 4 == 3:
            assert result == expected[number % 44]
        else:
            np.testing.assert_allclose(result, expected[number % 44], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sentence_models.TYPES)
def test_vectors_of_many_types_equal_those_of_sentence_transformers(tmp_path, tiny_bert, name):
    plain, folder = sentence_models.transformer(tmp_path / "plain", name, tiny_bert, length=60), tmp_path / "model"
    SentenceTransformer(str(plain), device="cpu").save(str(folder), create_model_card=False)
    for place in (folder, plain):
        ours, theirs = Encoder(place, device="cpu"), SentenceTransformer(str(place), device="cpu").float()
        for prompt in ("", "search for this : "):
            found, expected = ours.encode(TEXTS, prompt=prompt), theirs.encode(TEXTS, prompt=prompt)
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(found, expected, atol=1e-6 * max(1, np.abs(expected).max()))

"""``cse export``: ONNX files, static encoders and copies, in the libraries that read them, and what is refused."""

import json
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from commands import refuses
from cse import Encoder, TrainConfig, train
from cse.data.corpus import Corpus
from cse.encoder import onnx_export, static_export
from cse.encoder.base import unit
from cse.encoder.light import MADE_FROM
from cse.encoder.onnx_export import export_onnx
from cse.encoder.resolve import model_digest
from cse.encoder.saving import write_card
from cse.errors import RunError
from sentence_models import dense, pooling, sentence_model, transformer
from test_cli import ran, refused

LONGER = "Another sentence, rather longer than the first, to see what padding does."
TEXTS = ["One.", LONGER, "word " * 700, "\u00dcn\u00efcode, 12 x", " "]


@pytest.fixture(scope="module")
def onnxruntime():
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason="not installed: pip install 'cse[onnx]'")
    return pytest.importorskip("onnxruntime", reason="not installed: pip install 'cse[onnx]'")


@pytest.fixture(scope="module")
def exported(tmp_path_factory, short_corpus, tiny_bert, cse_here, onnxruntime):
    """The folder of a run with ``keep_head``, exported to ONNX, and the JSON that the export prints."""
    output = tmp_path_factory.mktemp("runs")
    options = {"batch_size": 8, "max_length": 16, "max_steps": 2, "eval_every": 0, "device": "cpu", "threads": 1}
    config = TrainConfig(corpus=short_corpus, output=output, model=tiny_bert, pooler="cls", keep_head=True, **options)
    run = train(config).folder
    return run, json.loads(ran(cse_here("export", run, "--onnx", "--threads", 1, "--json")))


def test_embeddings_in_onnxruntime_equal_those_of_pytorch(exported):
    run, printed = exported
    expected = Encoder(run / "best", device="cpu").encode(TEXTS)
    for name in (f"onnx:{run}", f"onnx:{run / 'best'}", f"onnx:{run / 'best' / 'onnx' / 'model.onnx'}"):
        found = Encoder(name, device="cpu")
        assert found.embedding_dim == 32
        np.testing.assert_allclose(found.encode(TEXTS, batch_size=2), expected, atol=1e-4)
    assert printed["file"] == str(run / "best" / "onnx" / "model.onnx")
    assert printed["difference"] <= 1e-4
    assert {"model.onnx", "tokenizer.json"} <= {path.name for _, path in found.files()}
    assert not list(run.rglob(".cse-*"))
    # Without the prefix onnx:, the folder is loaded by PyTorch.
    np.testing.assert_array_equal(Encoder(run / "best", device="cpu").encode(TEXTS), expected)


def test_weights_of_8_bits_are_read(exported, tmp_path):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    run, printed = exported
    copy = shutil.copytree(run / "best", tmp_path / "copy")
    small = copy / "onnx" / "model_int8.onnx"
    quantize_dynamic(copy / "onnx" / "model.onnx", small, weight_type=QuantType.QInt8, per_channel=True)
    assert small.stat().st_size < 0.7 * printed["bytes"]  # not 0.25, because the graph is a large part of the file
    before, after = (Encoder(name, device="cpu") for name in (run / "best", f"onnx:{small}"))
    cosines = after.similarity_pairwise(before.encode(TEXTS[:4]), after.encode(TEXTS[:4]))
    assert 0.9 < float(cosines.min()) < 1


def test_export_to_a_new_folder_copies_the_model(exported, tmp_path, monkeypatch):
    """To save time, ``write_onnx`` is replaced by a function that copies the file of the fixture ``exported``."""
    run, printed = exported
    monkeypatch.setattr(onnx_export, "write_onnx", lambda encoder, file, made_from: shutil.copy(printed["file"], file))
    steps = []
    found = export_onnx(str(run), str(tmp_path / "copy"), status=steps.append)
    assert found.file == str(tmp_path / "copy" / "onnx" / "model.onnx")
    assert sorted(path.name for path in (tmp_path / "copy" / "onnx").iterdir()) == ["model.onnx", "tokenizer.json"]
    assert steps == ["exporting the model", "comparing its embeddings with PyTorch's"]
    one, two = Encoder(f"onnx:{tmp_path / 'copy'}"), Encoder(tmp_path / "copy", device="cpu")
    np.testing.assert_allclose(one.encode(TEXTS), two.encode(TEXTS), atol=1e-4)
    refuses("exists; name a new folder", export_onnx, str(run), str(tmp_path / "copy"))


def test_an_exported_folder_has_the_files_that_text_embeddings_inference_reads(exported, onnxruntime):
    """The keys and types are those of its version 1.9.3 (router/src/lib.rs and backends/ort/src/lib.rs)."""
    folder = exported[0] / "best"

    def read(name):
        return json.loads((folder / name).read_text(encoding="utf8"))

    config = read("config.json")
    assert not any(each.endswith("Classification") for each in [config["model_type"], *config["architectures"]])
    for name in ("max_position_embeddings", "hidden_size", "num_hidden_layers", "pad_token_id"):
        assert type(config[name]) is int
    limit, pooling = read("sentence_bert_config.json")["max_seq_length"], read("1_Pooling/config.json")
    assert 0 < limit <= config["max_position_embeddings"]
    assert {name for name, used in pooling.items() if used is True} == {"pooling_mode_cls_token"}
    assert pooling["pooling_mode_mean_tokens"] is False
    assert isinstance(read("config_sentence_transformers.json").get("prompts", {}), dict)
    # The server makes the inputs from tokenizer.json alone.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    session = onnxruntime.InferenceSession(exported[1]["file"], providers=["CPUExecutionProvider"])
    inputs, outputs = ({each.name: each.shape for each in of} for of in (session.get_inputs(), session.get_outputs()))
    assert inputs == {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "sequence"]}
    assert outputs == {"last_hidden_state": ["batch", "sequence", 32], "sentence_embedding": ["batch", 32]}
    encoder = Encoder(folder, device="cpu")
    for text in TEXTS[:3]:
        tokens = tokenizer.encode(text)
        given = {"input_ids": np.array([tokens.ids]), "attention_mask": np.array([tokens.attention_mask])}
        (state,) = session.run(["last_hidden_state"], given)
        expected = encoder[0].model(**{name: torch.tensor(value) for name, value in given.items()}).last_hidden_state
        np.testing.assert_allclose(state, expected.detach().numpy(), atol=1e-4)
        assert tokens.ids == encoder.tokenizer(text, truncation=True, max_length=limit)["input_ids"]


def scaled(folder, factor):
    """Multiplies the weights of a folder."""
    weights = {name: factor * values for name, values in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_export_fails_if_the_embeddings_differ_from_those_of_pytorch(exported, tmp_path, monkeypatch):
    run, printed = exported
    other = shutil.copytree(run / "best", tmp_path / "other", ignore=shutil.ignore_patterns("onnx"))
    scaled(other, 1.2)

    def another_model(encoder, file, made_from):
        import onnx

        model = onnx.load(printed["file"])
        next(entry for entry in model.metadata_props if entry.key == MADE_FROM).value = made_from
        onnx.save(model, file)

    monkeypatch.setattr(onnx_export, "write_onnx", another_model)
    before = sorted(other.rglob("*"))
    for place in ((), (str(tmp_path / "copy"),)):
        refuses("differ by up to", export_onnx, str(other), *place, error=RunError)
    assert sorted(other.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_invalid_exports_are_refused(exported, tiny_bert, scored_pairs, tmp_path, cse_here):
    (tmp_path / "empty").mkdir()
    for name in ("broken", "older"):
        shutil.copytree(exported[0] / "best", tmp_path / name)
    (tmp_path / "broken/onnx/model.onnx").write_bytes(b"not a model")
    (tmp_path / "older/onnx/tokenizer.json").unlink()  # earlier versions did not write it
    Encoder(tiny_bert, pooler="avg_first_last", device="cpu").save(tmp_path / "layers")
    for command, message in (
        (f"export {tiny_bert} --onnx --int8", "No such option --int8: quantize_dynamic of onnxruntime writes"),
        ("export minilm --onnx", "name a new folder with -o"),
        ("export ./none --onnx -o x", "no such folder"),
        ("export empty --onnx", "no model there"),
        ("export layers --onnx", "its pooling (avg_first_last) needs several layers"),
        (f"eval onnx:{tiny_bert}", "does not exist; write it with cse export FOLDER --onnx"),
        ("eval onnx:broken", "cannot be loaded"),
        ("eval onnx:older", "was not written by this version; repeat cse export --onnx"),
    ):
        more = ("--data", scored_pairs) if command.startswith("eval") else ()
        refused(cse_here(*command.split(), *more, cwd=tmp_path), message)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xlnet", "longformer"])
def test_models_that_the_exporter_cannot_read_are_refused_in_one_sentence(
    tiny_bert, tmp_path, cse_here, kind, onnxruntime
):
    done = cse_here("export", transformer(tmp_path / kind, kind, tiny_bert), "--onnx")
    refused(done, f"models of the type {kind} cannot be exported to ONNX")
    assert len(done.stderr.splitlines()) <= 3
    assert not (tmp_path / kind / "onnx").exists()


def test_error_for_a_missing_package_names_the_extra_to_install(tiny_bert, exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refuses(r"pip install 'cse\[onnx\]'", export_onnx, tiny_bert)
    refuses(r"pip install 'cse\[onnx\]'", Encoder, f"onnx:{exported[0]}")


@pytest.fixture
def copied(exported, tmp_path):
    return shutil.copytree(exported[0] / "best", tmp_path / "copied")


def test_the_digest_covers_weights_of_any_name_and_other_weights_of_the_model_are_refused(copied):
    before = model_digest(Encoder(f"onnx:{copied}"))
    (copied / "onnx" / "weights").write_bytes(b"1")
    changed = model_digest(Encoder(f"onnx:{copied}"))
    shutil.copy(copied / "onnx" / "model.onnx", copied / "onnx" / "model_int8.onnx")  # another graph
    assert before != changed == model_digest(Encoder(f"onnx:{copied}"))
    scaled(copied, 1.01)
    refuses(r"was made from other weights than .* has now; repeat cse export --onnx", Encoder, f"onnx:{copied}")


def test_the_digest_of_a_model_covers_modules_in_folders_of_any_name(tmp_path, tiny_bert):
    folder = tmp_path / "model"
    sentence_model(folder, tiny_bert, modules=[pooling("mean"), dense(16)])
    (folder / "2_Dense").rename(folder / "onnx")
    (folder / "modules.json").write_text((folder / "modules.json").read_text().replace("2_Dense", "onnx"))
    before = model_digest(Encoder(folder, device="cpu"))
    scaled(folder / "onnx", 1.1)
    assert model_digest(Encoder(folder, device="cpu")) != before


def test_a_graph_with_one_row_for_a_batch_is_refused(copied):
    import onnx

    model = onnx.load(copied / "onnx" / "model.onnx")
    first = onnx.numpy_helper.from_array(np.zeros(1, dtype=np.int64), "first")
    model.graph.initializer.append(first)
    for node in model.graph.node:
        node.output[:] = ["all rows" if name == "sentence_embedding" else name for name in node.output]
    model.graph.node.append(onnx.helper.make_node("Gather", ["all rows", "first"], ["sentence_embedding"], axis=0))
    onnx.save(model, copied / "onnx" / "model.onnx")
    refuses(r"returned \(1, 32\) values for 2 texts, not \(2, 32\)", Encoder, f"onnx:{copied}")


def test_settings_that_do_not_fit_the_exported_file_are_refused(copied):
    path = copied / "onnx" / "tokenizer.json"
    stored = json.loads(path.read_text(encoding="utf8"))
    for change, message in (
        ({"padding": None}, "does not pad or does not truncate texts; repeat cse export --onnx"),
        ({"truncation": None}, "does not pad or does not truncate texts; repeat cse export --onnx"),
        *(({"truncation": {**stored["truncation"], "max_length": length}}, f"{length} tokens, leaves no room for text")
          for length in (2, 0)),
    ):  # fmt: skip
        path.write_text(json.dumps({**stored, **change}), encoding="utf8")
        refuses(message, Encoder, f"onnx:{copied}")
    path.write_text(json.dumps(stored), encoding="utf8")
    path = copied / "config_sentence_transformers.json"
    for value in (0, 1, True, 2.5):
        path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": value}))
        refuses("truncate_dim in its config_sentence_transformers", Encoder, f"onnx:{copied}")


@pytest.fixture(scope="module")
def model2vec():
    return pytest.importorskip("model2vec", reason="not installed: pip install 'cse[static]'")


@pytest.fixture(scope="module")
def distilled(tmp_path_factory, tiny_bert, short_corpus, cse_here, model2vec):
    """The folder of a static encoder, and the JSON that the export prints."""
    folder = tmp_path_factory.mktemp("static") / "made"
    done = cse_here("export", tiny_bert, "--static", "--corpus", short_corpus, "-o", folder, "--threads", 1, "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_model2vec_sentence_transformers_and_cse_compute_the_same_embeddings(distilled, tiny_bert, tmp_path, model2vec):
    folder, printed = distilled
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


def test_encoders_without_a_transformer_and_corpora_without_tokens_are_refused(distilled, tiny_bert, tmp_path):
    corpus = Corpus.from_texts(["the cat sat there", "a dog"])
    few, new = Corpus.from_texts(["one", " "]), str(tmp_path / "new")
    static, bert = (Encoder(folder, device="cpu") for folder in (distilled[0], tiny_bert))
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


def test_encode_and_search_accept_a_static_encoder(distilled, tmp_path, short_corpus, short_rows, cse_here):
    folder, _ = distilled
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
def test_a_copy_states_licence_and_language_and_is_uploaded_with_its_card(
    cse_here, one_finished_run, tmp_path, monkeypatch
):
    run, copy, sent = one_finished_run, tmp_path / "mine", {}
    assert ran(cse_here("export", run, "-o", copy, "--license", "apache-2.0", "--language", "en")) == f"{copy}\n"
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

"""ONNX export: equal embeddings in onnxruntime and PyTorch, prompts, and errors."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from conftest import refuses
from cse import Encoder, TrainConfig, train
from cse.encoder import onnx_export
from cse.encoder.light import MADE_FROM
from cse.encoder.onnx_export import export_onnx
from cse.encoder.resolve import model_digest
from cse.errors import RunError
from sentence_models import dense, pooling, sentence_model, transformer
from test_cli import ran, refused

pytest.importorskip("onnx", reason="not installed: pip install 'cse[onnx]'")
pytest.importorskip("onnxscript", reason="not installed: pip install 'cse[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="not installed: pip install 'cse[onnx]'")

TEXTS = ["One.", "Another sentence, rather longer than the first, to see what padding does.", "word " * 200, "x", " "]


@pytest.fixture(scope="module")
def exported(tmp_path_factory, short_corpus, tiny_bert, cse_here):
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


def test_an_exported_folder_has_the_files_that_text_embeddings_inference_reads(exported):
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


def test_export_fails_if_the_embeddings_differ_from_those_of_pytorch(exported, tmp_path, monkeypatch):
    run, printed = exported
    other = tmp_path / "other"
    shutil.copytree(run / "best", other, ignore=shutil.ignore_patterns("onnx"))
    weights = {name: 1.2 * values for name, values in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})

    def another_model(encoder, file, made_from):
        import onnx

        model = onnx.load(printed["file"])
        next(entry for entry in model.metadata_props if entry.key == MADE_FROM).value = made_from
        onnx.save(model, file)

    monkeypatch.setattr(onnx_export, "write_onnx", another_model)
    before = sorted(other.rglob("*"))
    refuses("differ by up to", export_onnx, str(other), error=RunError)
    assert sorted(other.rglob("*")) == before
    refuses("differ by up to", export_onnx, str(other), str(tmp_path / "copy"), error=RunError)
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
def test_models_that_the_exporter_cannot_read_are_refused_in_one_sentence(tiny_bert, tmp_path, cse, kind):
    done = cse("export", transformer(tmp_path / kind, kind, tiny_bert), "--onnx")
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


def test_a_file_that_was_made_from_other_weights_is_refused(copied):
    file = copied / "onnx" / "model.onnx"
    assert Encoder(f"onnx:{file}").encode(["a text"]).shape == (1, 32)
    weights = load_file(copied / "model.safetensors")
    save_file({name: values + 0.01 for name, values in weights.items()}, copied / "model.safetensors", {"format": "pt"})
    refuses(r"onnx was made from other weights than .* has now; repeat cse export --onnx", Encoder, f"onnx:{file}")


def test_the_digest_of_an_exported_file_covers_weights_of_any_name(copied):
    before = model_digest(Encoder(f"onnx:{copied}"))
    (copied / "onnx" / "weights").write_bytes(b"1")
    changed = model_digest(Encoder(f"onnx:{copied}"))
    shutil.copy(copied / "onnx" / "model.onnx", copied / "onnx" / "model_int8.onnx")  # another graph
    assert before != changed == model_digest(Encoder(f"onnx:{copied}"))


def test_the_digest_of_a_model_covers_modules_in_folders_of_any_name(tmp_path, tiny_bert):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), dense(16)])
    (tmp_path / "model" / "2_Dense").rename(tmp_path / "model" / "onnx")
    file = tmp_path / "model" / "modules.json"
    file.write_text(file.read_text().replace("2_Dense", "onnx"))
    before = model_digest(Encoder(tmp_path / "model", device="cpu"))
    weights = load_file(tmp_path / "model" / "onnx" / "model.safetensors")
    save_file({name: values + 1 for name, values in weights.items()}, tmp_path / "model" / "onnx" / "model.safetensors")
    assert model_digest(Encoder(tmp_path / "model", device="cpu")) != before


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

"""Tests that a folder of a run or a model cannot lead a command to files outside it."""

import json
import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from cse import Encoder, InputError, train
from cse.encoder.layout import best_of_run, model_files
from cse.encoder.resolve import base_of, find_folder
from cse.io import contents
from cse.training.folder.find import list_checkpoints
from cse.training.loop import resumed_config
from test_retrieval import command as run_command
from tiny import config_of_eight_steps


@pytest.fixture
def private(tmp_path):
    """A folder that no command of these tests may read or write."""
    (tmp_path / "private").mkdir()
    for name in ("vocab.txt", "config.json", "notes.txt"):
        (tmp_path / "private" / name).write_text("private words\n", encoding="utf8")
    return tmp_path / "private"


@pytest.fixture
def model(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "model")


@pytest.mark.parametrize(
    ("link", "target"),
    [("vocab.txt", "vocab.txt"), ("more", ""), ("onnx", ""), ("README.md", "notes.txt"), ("1", "gone")],
)
@pytest.mark.parametrize("command", ["encode", "export", "export in place", "push"])
def test_a_link_out_of_a_model_is_refused_by_what_reads_copies_and_uploads_it(
    model, private, tmp_path, monkeypatch, link, target, command
):
    (model / link).unlink(missing_ok=True)
    (model / link).symlink_to(private / target)
    before = {path: path.read_text(encoding="utf8") for path in private.iterdir()}
    monkeypatch.setattr(HfApi, "upload_folder", lambda *_, **__: pytest.fail("uploaded"))
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: SimpleNamespace(repo_id="me/mine"))
    from cse.encoder.onnx_export import export_onnx

    run = {
        "encode": lambda: Encoder(model, device="cpu"),
        "export": lambda: export_onnx(str(model), str(tmp_path / "out")),
        "export in place": lambda: export_onnx(str(model)),
        "push": lambda: Encoder("minilm", device="cpu").push_to_hub("me/mine", local_model_path=str(model)),
    }
    with pytest.raises(InputError, match=f"{link}: is a link out of the folder"):
        run[command]()
    assert {path: path.read_text(encoding="utf8") for path in private.iterdir()} == before
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_copy_and_an_upload_hold_only_the_files_of_a_model(model, tmp_path, monkeypatch):
    (model / "diary.odt").write_text("private", encoding="utf8")
    (model / ".env").write_text("private", encoding="utf8")
    (model / "README.md").write_text("card", encoding="utf8")
    expected = {path.name for path in model.iterdir()} - {"diary.odt", ".env"}
    uploaded = set()

    def upload(*_, folder_path, **__):
        uploaded.update(contents(folder_path))
        return SimpleNamespace(commit_url="")

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: SimpleNamespace(repo_id="me/mine"))
    Encoder(model, device="cpu").push_to_hub("me/mine", local_model_path=str(model))
    assert uploaded == expected
    from cse.encoder.onnx_export import export_onnx

    export_onnx(str(model), str(tmp_path / "out"))
    assert {name for name in contents(tmp_path / "out") if not name.startswith("onnx/")} == expected


def test_a_snapshot_of_the_hub_may_link_to_its_blobs_and_to_nothing_else(tiny_bert, private, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    shutil.copytree(tiny_bert, blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert find_folder(str(snapshot)) == snapshot
    assert [name for name, _ in model_files(snapshot)] == [name for name, _ in model_files(blobs)]
    (snapshot / "more.txt").symlink_to(private / "notes.txt")
    with pytest.raises(InputError, match=r"more\.txt: is a link out of the folder"):
        find_folder(str(snapshot))


def test_a_resumed_run_copies_nothing_that_a_link_in_a_checkpoint_leads_to(short_corpus, tiny_bert, private, tmp_path):
    run = train(config_of_eight_steps(short_corpus, tiny_bert, output=tmp_path, name="run", max_steps=2)).folder
    (list_checkpoints(run)[0] / "best" / "more").symlink_to(private)
    with pytest.raises(InputError, match="best/more: is a link out of the folder"):
        train(resumed_config(run, {"max_steps": 4}), resume=run)
    assert not (run / "best" / "more").exists()


@pytest.mark.parametrize("command", ["encode", "search", "export", "export --onnx", "eval"])
def test_the_best_of_a_run_that_is_a_link_to_another_place_is_refused(model, private, tmp_path, command, short_corpus):
    shutil.copytree(model, private / "model")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(private / "model")
    with pytest.raises(InputError, match="best: is a link out of the folder; put a copy in its place"):
        best_of_run(str(tmp_path / "run"))
    arguments = {
        "encode": ["encode", "run", short_corpus, "-o", "v.npy"],
        "search": ["search", "run", short_corpus, "-o", "index", "--query", "a"],
        "export": ["export", "run", "-o", "out"],
        "export --onnx": ["export", "run", "--onnx"],
        "eval": ["eval", "run", "--data", short_corpus],
    }[command]
    before = sorted(path.name for path in (private / "model").rglob("*"))
    with pytest.MonkeyPatch.context() as here:
        here.chdir(tmp_path)
        assert "best: is a link out of the folder" in str(run_command(*arguments).exception)
    assert sorted(path.name for path in (private / "model").rglob("*")) == before
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_called_snapshots_is_not_the_cache_of_the_hub(tiny_bert, private, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "snapshots" / "0123")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "more.txt").write_text("words", encoding="utf8")
    (folder / "more.txt").symlink_to(tmp_path / "blobs" / "more.txt")
    with pytest.raises(InputError, match=r"more\.txt: is a link out of the folder"):
        find_folder(str(folder))
    other = tmp_path / "models--a--b" / "snapshots" / "0123"
    shutil.copytree(tiny_bert, other)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "more.txt").write_text("words", encoding="utf8")
    (other / "more.txt").symlink_to("../../refs/more.txt")  # of the model, but no blob
    with pytest.raises(InputError, match=r"more\.txt: is a link out of the folder"):
        find_folder(str(other))


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("sentence_bert_config.json", {"config_kwargs": {"subfolder": "../private"}}, "which names another place"),
        ("sentence_bert_config.json", {"model_args": {"cache_dir": "x"}}, "which names another place"),
        (
            "sentence_bert_config.json",
            {"tokenizer_args": {"vocab_file": "../private/vocab.txt"}},
            "names another place",
        ),
        ("model.safetensors.index.json", {"weight_map": ["a"]}, "weight_map: must be an object"),
        ("model.safetensors.index.json", {"weight_map": {"a": 3}}, "weight_map: a: must be text"),
    ],
)
def test_settings_that_lead_elsewhere_or_have_another_shape_are_refused(model, private, file, values, message):
    (model / file).write_text(json.dumps({"max_seq_length": 16, **values}), encoding="utf8")
    with pytest.raises(InputError, match=message) as caught:
        find_folder(str(model))
    assert "\n" not in str(caught.value)


def test_an_adapter_that_names_no_base_model_is_refused(tmp_path, private, monkeypatch):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        '{"base_model_name_or_path": " ", "peft_type": "LORA"}', encoding="utf8"
    )
    monkeypatch.chdir(private)
    with pytest.raises(InputError, match="names no base model"):
        base_of(folder)

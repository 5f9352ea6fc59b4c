"""Tests that a folder of a run or a model cannot lead a command to files outside it."""

import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from conftest import config_of_eight_steps
from cse import Encoder, InputError, train
from cse.encoder.layout import model_files
from cse.encoder.resolve import find_folder
from cse.io import contents
from cse.training.folder.find import list_checkpoints
from cse.training.loop import resumed_config


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

"""The model card that ``cse export`` writes, and what is uploaded to the Hugging Face hub."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, ModelCard

from cse import Encoder, InputError
from cse.encoder.saving import write_card
from random_texts import write_vectors
from test_cli import refused


def card_of(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ModelCard((folder / "README.md").read_text(encoding="utf8"))


@pytest.mark.slow
def test_a_copy_states_licence_and_language_and_is_uploaded_with_its_card(cse, one_finished_run, tmp_path, monkeypatch):
    run, copy, sent = one_finished_run, tmp_path / "mine", {}
    done = cse("export", run, "-o", copy, "--license", "apache-2.0", "--language", "en")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{copy}\n"
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


def test_copies_that_cannot_be_written_are_refused(cse, one_finished_run, tmp_path):
    run = one_finished_run
    refused(cse("export", run), "--onnx or --static", "-o")
    refused(cse("export", run, "-o", tmp_path), "exists; name a new folder")
    write_vectors(tmp_path / "v.txt")
    refused(cse("export", f"glove:{tmp_path}/v.txt", "-o", tmp_path / "new"), "cannot be saved")
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
        with pytest.raises(InputError, match=r"README\.md: its metadata cannot be read"):
            write_card(str(tmp_path / "plain"), {"license": "mit"})

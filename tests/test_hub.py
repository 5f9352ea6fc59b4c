"""The model card that ``cse export`` writes, and uploading it to a local server that answers as the hub does."""

import base64
import json
import os
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import ModelCard

from cse import InputError
from cse.encoder.saving import write_card
from random_texts import write_vectors
from test_cli import refused


class Hub(BaseHTTPRequestHandler):
    """Accepts every file as a regular one, and keeps the requests and the committed files in the server."""

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers.get("Authorization") != "Bearer hf_test":
            return self.answer({"error": "Invalid credentials"}, 401)
        if self.path.endswith("/commit/main"):
            lines = [json.loads(line) for line in content.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.server.files = {file["path"]: base64.b64decode(file["content"]) for file in files}
            url = f"{self.server.address}/me/small/commit/1"
            return self.answer({"commitUrl": url, "commitOid": "1", "hookOutput": ""})
        asked = json.loads(content)
        if self.path.endswith("/preupload/main"):
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked["files"]]
            return self.answer({"files": modes})
        self.server.asked.append((self.path, asked))
        return self.answer({"url": f"{self.server.address}/me/small", "errors": [], "warnings": []})

    def do_GET(self):
        self.answer({"name": "me", "type": "user"})

    def answer(self, value, code=200):
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.files, server.address = [], {}, f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def card_of(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ModelCard((folder / "README.md").read_text(encoding="utf8"))


@pytest.mark.slow
def test_a_copy_states_licence_and_language_and_is_uploaded_with_its_card(cse, one_finished_run, hub, tmp_path):
    run = one_finished_run
    done = cse("export", run, "-o", tmp_path / "mine", "--license", "apache-2.0", "--language", "en")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'mine'}\n"
    card, before = card_of(tmp_path / "mine"), card_of(run / "best")
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en"])
    assert (card.text, card.data.tags) == (before.text, before.data.tags)
    assert before.data.license is None  # the folder of the run stays as it was
    for name in ("model.safetensors", "modules.json", "tokenizer.json"):
        assert (tmp_path / "mine" / name).read_bytes() == (run / "best" / name).read_bytes(), name
    script = "import sys, cse; cse.Encoder(sys.argv[1]).push_to_hub('me/small', replace_model_card=True)"
    env = {**os.environ, "HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_test", "HF_HUB_OFFLINE": "0"}
    subprocess.run([sys.executable, "-c", script, tmp_path / "mine"], env=env, check=True)
    assert hub.asked[0][1]["name"] == "small"
    sent = ModelCard(hub.files["README.md"].decode())
    assert (sent.data.license, sent.data.language) == ("apache-2.0", ["en"])
    assert 'SentenceTransformer("me/small")' in sent.text
    assert hub.files["tokenizer.json"] == (tmp_path / "mine" / "tokenizer.json").read_bytes()


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

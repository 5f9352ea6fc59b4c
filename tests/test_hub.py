"""``cse push``: the upload to a local server that answers as the Hugging Face hub does, and the model card."""

import base64
import json
import shlex
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


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


@pytest.fixture(scope="module")
def run(cse, indexed, tiny_bert, tmp_path_factory):
    # In a folder of its own, since pytest-xdist can set up a module's fixture twice in one process.
    output = tmp_path_factory.mktemp("hub")
    given = [
        "--una",
        "--max-steps",
        "2",
        "--batch-size",
        "8",
        "--beta",
        "0.3",
        "--set",
        "una.every=2",
        "--name",
        "small",
        "--output",
        output,
    ]
    done = cse("train", "--model", tiny_bert, "--loss", "focal", *given, cwd=indexed)
    assert done.returncode == 0, done.stderr
    return output / "small"


def test_push_uploads_the_encoder_with_its_card(cse, run, hub):
    from huggingface_hub import ModelCard

    from cse.reports.runs import read_run

    env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_test", "HF_HUB_OFFLINE": "0"}
    about = ["--license", "apache-2.0", "--language", "en", "--dataset", "me/wiki"]
    done = cse("push", run, "me/small", *about, "--private", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{hub.address}/me/small\n"
    assert hub.asked[0][0] == "/api/repos/create"
    assert hub.asked[0][1]["name"] == "small"
    best = {path.relative_to(run / "best").as_posix(): path for path in (run / "best").rglob("*") if path.is_file()}
    assert hub.files.keys() == best.keys()
    assert all(hub.files[name] == best[name].read_bytes() for name in best if name != "README.md")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.license, card.data.language, card.data.datasets) == ("apache-2.0", ["en"], ["me/wiki"])
    assert "loss:focal" in card.data.tags
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("mrr", read_run(run).result["best"]["mrr"])
    assert 'SentenceTransformer("me/small")' in card.text
    assert "- Data: 10,000 rows" in card.text
    assert str(run.parent.parent) not in str(card)


def test_the_command_on_the_card_repeats_the_run(cse, run, indexed, tiny_bert, sample, tmp_path):
    from cse.reports.hub import training_command
    from cse.reports.runs import read_run

    words = shlex.split(training_command(read_run(run)))
    assert words[:2] == ["cse", "train"]
    words = [str(tiny_bert) if word == tiny_bert.name else word for word in words[1:]]
    (tmp_path / "tfidf").symlink_to(indexed / "tfidf")
    done = cse(*words, "--name", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = read_run(tmp_path / "runs" / "again")
    assert again.settings == read_run(run).settings
    assert again.result["best"] == read_run(run).result["best"]


def test_push_says_in_one_sentence_why_it_failed(cse, run, hub, tmp_path):
    env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_wrong", "HF_HUB_OFFLINE": "0"}
    for arguments in ((run, "me/small"), (run, "me/not a name"), (tmp_path, "me/small")):
        done = cse("push", *arguments, env=env)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) <= 2
        assert done.stderr.startswith("Error: ")
    assert not hub.files
    done = cse("push", run, "me/small", env=env | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert "check the connection" in done.stderr

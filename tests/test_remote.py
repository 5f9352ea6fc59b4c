"""Corpora and pairs at addresses of other file systems, read by fsspec."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from cse import InputError, TfidfIndex, TrainConfig, train
from cse.data import readers

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def remote(monkeypatch, tmp_path, short_rows):
    monkeypatch.setenv("CSE_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    for number in range(2):
        rows = short_rows[100 * number : 100 * number + 100]
        files.pipe(f"/texts/{number}.txt", "".join(f"{row}\n" for row in rows).encode())
    quoted = [row.replace('"', "'") for row in short_rows[:40]]
    files.pipe(
        "/texts/pairs.csv", b"anchor,positive\n" + "".join(f'"{a}","{b}"\n' for a, b in pairwise(quoted)).encode()
    )
    yield files
    files.rm("/texts", recursive=True)


def test_an_index_of_addresses_equals_that_of_local_files(remote, short_rows):
    index = TfidfIndex.build("memory://texts/*.txt")
    assert index.info.rows == 200
    assert index.df.tolist() == TfidfIndex.from_texts(short_rows[:200]).df.tolist()


@pytest.mark.parametrize("given", [{"corpus": ("memory://texts/0.txt",)}, {"pairs": ("memory://texts/pairs.csv",)}])
def test_a_run_reads_a_corpus_and_pairs_at_addresses(remote, tiny_bert, tmp_path, given):
    config = TrainConfig(model=str(tiny_bert), max_steps=1, batch_size=8, output=str(tmp_path), device="cpu", **given)
    assert train(config).steps == 1


def test_addresses_that_cannot_be_read_are_refused_in_one_sentence(remote, monkeypatch):
    for address in ("memory://texts/none.txt", "memory://none/*.txt", "nowhere://a.txt"):
        with pytest.raises(InputError, match=r"^\S+: cannot be read \(.*\); check the address"):
            readers.expand(address)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError, match="needs fsspec; pip install fsspec"):
        readers.expand("memory://texts/0.txt")


def test_a_copy_is_made_again_when_what_the_server_tells_changes(remote, monkeypatch):
    """As of an HTTP server, whose ``ukey`` is the same for all versions of a file."""
    monkeypatch.setattr(type(remote), "ukey", lambda self, path: path)
    (first,) = readers.expand("memory://texts/0.txt")
    assert readers.expand("memory://texts/0.txt") == [first]
    remote.pipe("/texts/0.txt", Path(first).read_bytes())  # only its time differs
    (second,) = readers.expand("memory://texts/0.txt")
    assert first != second
    remote.pipe("/texts/0.txt", b"another text\n")
    assert TfidfIndex.build("memory://texts/0.txt").info.rows == 1
    with monkeypatch.context() as patch:
        patch.setattr(type(remote), "info", lambda self, path: {"name": path, "size": None, "type": "file"})
        (third,) = readers.expand("memory://texts/0.txt")
        assert third not in (first, second)
        patch.setattr("cse.data.readers.STARTED", "another process")
        assert readers.expand("memory://texts/0.txt") != [third]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://host/a.txt?X-Signature=secret", "https://host: "),
        ("simplecache::ftp://me:secret@host/a.txt", "ftp://host: "),
        ("sftp://secret@host/a.txt", "sftp://host: "),
    ],
)
def test_addresses_with_a_user_name_a_password_or_a_query_are_refused(cse_here, tmp_path, address, shown):
    done = cse_here("train", address, "--output", tmp_path / "runs")
    assert done.returncode == 2
    assert f"{shown}the address holds a user name, a password or a query" in " ".join(done.stderr.split())
    assert "secret" not in done.stdout + done.stderr
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


class Hub(BaseHTTPRequestHandler):
    """Answers for a repository me/wiki of data sets with one file, as the Hugging Face hub does."""

    def do_GET(self):
        text = b"one row\nanother row\n"
        file = {"type": "file", "path": "train.txt", "size": len(text), "oid": "2" * 40}
        content = {"tree": json.dumps([file]).encode(), "wiki": json.dumps({"id": "me/wiki", "sha": "1" * 40}).encode()}
        part = self.path.partition("?")[0].removeprefix("/api").split("/")
        found = text if "resolve" in part else content.get(part[4] if len(part) > 4 else part[-1], b"")
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("name", ["train.txt", "*.txt"])
def test_a_data_set_of_the_hub_is_read(cse, tmp_path, name):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0", "CSE_CACHE": str(tmp_path)}
    done = cse("build-tfidf", f"hf://datasets/me/wiki/{name}", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "2 sentences" in done.stdout + done.stderr
    done = cse("build-tfidf", "hf://datasets/me/wiki", cwd=tmp_path, env=env)
    server.shutdown()
    assert "name the files in it, like 'hf://datasets/me/wiki/*.txt'" in done.stderr


def test_a_pattern_matches_files_in_folders_and_not_the_folders(remote):
    remote.pipe("/texts/more/2.txt", b"a row in a folder\n")
    remote.mkdir("/texts/more/empty.txt")
    names = [Path(name).name for name in readers.expand("memory://texts/**/*.txt")]
    assert names == ["0.txt", "1.txt", "2.txt"]
    assert len(readers.expand("memory://texts/*")) == 3

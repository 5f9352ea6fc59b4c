"""Corpora and pairs at addresses of other file systems, read by fsspec, and in folders that ``datasets`` wrote."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import numpy as np
import pytest

from cse import InputError, TfidfIndex, TrainConfig, train
from cse.data import readers
from cse.data.corpus import Corpus

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


def test_a_file_is_copied_again_if_it_changes(remote, tmp_path):
    (first,) = readers.expand("memory://texts/0.txt")
    assert readers.expand("memory://texts/0.txt") == [first]
    remote.pipe("/texts/0.txt", b"another text\n")
    (second,) = readers.expand("memory://texts/0.txt")
    assert second != first
    assert TfidfIndex.build("memory://texts/0.txt").info.rows == 1


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


@pytest.fixture
def saved(tmp_path, short_rows):
    """A folder that ``datasets`` wrote in two files, with the columns text, other and label."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = {"text": short_rows[:60], "other": short_rows[60:120], "label": [row % 2 for row in range(60)]}
    kinds = {"text": datasets.Value("string"), "other": datasets.Value("large_string")}
    kinds["label"] = datasets.ClassLabel(names=["no", "yes"])
    whole = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    whole.save_to_disk(tmp_path / "saved" / "train", num_shards=2)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return tmp_path / "saved"


@pytest.mark.parametrize("where", ["folder", "file://", "memory://"])
def test_a_folder_that_datasets_wrote_is_read(saved, monkeypatch, tmp_path, short_rows, where):
    monkeypatch.setenv("CSE_CACHE", str(tmp_path / "cache"))
    folder = str(saved / "train")
    if where == "file://":
        folder = f"file://{folder}"
    if where == "memory://":
        files = fsspec.filesystem("memory")
        files.put(folder, "/saved", recursive=True)
        folder = "memory://saved"
    corpus = Corpus.open(readers.resolve(folder, "text"))
    assert corpus.take(range(60)) == short_rows[:60]
    if where == "memory://":
        files.rm("/saved", recursive=True)


def test_a_run_takes_pairs_from_a_folder_that_datasets_wrote(saved, tiny_bert, tmp_path):
    config = TrainConfig(
        model=str(tiny_bert),
        max_steps=1,
        batch_size=8,
        output=str(tmp_path),
        device="cpu",
        pairs=(str(saved / "train"),),
    )
    assert train(config.replace(where="label=1")).steps == 1


def test_a_folder_that_is_not_a_data_set_is_refused(saved, tmp_path):
    with pytest.raises(InputError, match=r"saved: has the splits train; name one, like .*saved/train"):
        readers.expand(saved)
    with pytest.raises(InputError, match=r"is a folder; name the files in it, like '.*/\*.txt'"):
        readers.expand(tmp_path)
    for state in ("{}", '{"_data_files": [{}]}', '{"_data_files": [{"filename": 3}]}', "["):
        (saved / "train" / "state.json").write_text(state)
        with pytest.raises(InputError, match=r"state.json: "):
            readers.expand(saved / "train")
    (saved / "train" / "state.json").write_text('{"_data_files": [{"filename": "../../secret.arrow"}]}')
    assert readers.expand(saved / "train") == [f"{saved}/train/secret.arrow"]


@pytest.mark.parametrize("kind", ["new_file", "new_stream"])
def test_damaged_arrow_files_are_refused(tmp_path, kind):
    import pyarrow as pa

    table = pa.table({"text": ["a b", None, "a\nb"], "n": [1, 2, 3]})
    path = tmp_path / "a.arrow"
    with getattr(pa.ipc, kind)(str(path), table.schema) as file:
        file.write_table(table)
    assert Corpus.read(readers.resolve(path, "text")).take(range(3)) == ["a b", "", "a b"]
    with pytest.raises(InputError, match="column 'n' must be text, got int64"):
        Corpus.read(readers.resolve(path, "n"))
    content, draw = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in [*range(64), *draw.integers(len(content), size=200)]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.integers(8)]) + content[place + 1 :])
        try:
            Corpus.read(readers.resolve(path, "text"))
        except InputError:
            refused += 1
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="cannot be read as a table"):
        Corpus.read(readers.resolve(path, "text"))
    assert refused > 20

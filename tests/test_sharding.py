"""Tests of output in parts, one part per input file, and of commands on a Ray cluster.

Joined, the parts equal the output for a single file of all rows. This holds on one machine, on a cluster, and after a
killed call is repeated; an index built on a cluster equals one built locally.
"""

import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from cse import Encoder, InputError, TfidfIndex, sharding
from cse import cluster as connection
from cse.data.readers import SourceFile, reading_options
from cse.tfidf.build import build_index
from cse.tfidf.options import word_options
from forked import Forked, run_forked
from random_texts import some_texts
from test_cli import ran, refused

OPTIONS = {"words": word_options(), "reading": reading_options(), "engine": "ray"}


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes with one core each; both nodes are processes on this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'cse[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def on_cluster(cluster):
    """A function that runs a command with the address of the cluster."""
    return partial(run_forked, env={"RAY_ADDRESS": cluster.address})


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Writes four shards (one of them empty), whole.txt with all rows, and an index of the shards; returns the rows."""
    monkeypatch.chdir(tmp_path)
    texts = some_texts(400)
    texts[150], texts[151], texts[399] = "", "  ", ""
    pieces = {"shard0.txt": texts[:100], "shard1.txt.gz": texts[100:260], "shard2.txt": [], "shard3.txt": texts[260:]}
    for name, rows in pieces.items():
        data = "".join(f"{row}\n" for row in rows).encode()
        Path(name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    Path("whole.txt").write_text("".join(f"{row}\n" for row in texts))
    TfidfIndex.build("shard*").save("tfidf")
    return texts


def processes_reading(path, name):
    """Returns the ids of the processes that run the Ray task or actor ``name`` and have the file ``path`` open."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if name in (folder / "cmdline").read_text():
                links = [os.readlink(link) for link in (folder / "fd").iterdir()]
                pids |= {int(folder.name)} if str(path.resolve()) in links else set()
        except OSError:
            pass
    return pids


def wait_for(condition, seconds=120):
    """Calls ``condition`` until it returns a true value, and returns this value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.1)
    return found


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize(
    ("flags", "suffix"),
    [
        ((), ".txt.zst"),
        (("--compression", "gz"), ".txt.gz"),
        (("--compression", "none", "--copies", "3"), ".txt"),
        (("--format", "jsonl", "--seed", "7", "--beta", "0.2"), ".jsonl.zst"),
    ],
)
def test_parts_of_many_files_equal_the_output_of_one_file(shards, cse, flags, suffix):
    summary = json.loads(ran(cse("augment", "--parts", "shard*", "-o", "parts", *flags, "--json")))
    assert (summary["files"], summary["made"], summary["rows"]) == (4, 4, 400)
    plain = [flag for flag in flags if flag not in ("--compression", "gz", "none")]
    assert cse("augment", "whole.txt", "-o", "expected", *plain).returncode == 0
    parts = [f"part-{number:05}{suffix}" for number in range(4)]
    written = b"".join(pa.input_stream(f"parts/{part}").read() for part in parts)  # decompressed
    assert written == Path("expected").read_bytes()
    assert sorted(os.listdir("parts")) == sorted([*parts, *(f"{part}.json" for part in parts)])
    made_from = [json.loads(Path(f"parts/{part}.json").read_text())["made_from"] for part in parts]
    assert [each["first_row"] for each in made_from] == [0, 100, 260, 260]
    assert [each["path"] for each in made_from] == ["shard0.txt", "shard1.txt.gz", "shard2.txt", "shard3.txt"]


def test_a_later_call_makes_only_the_missing_parts(shards, cse):
    assert cse("augment", "--parts", "shard*", "-o", "whole").returncode == 0
    shutil.copytree("whole", "parts")
    kept = Path("parts/part-00000.txt.zst").stat().st_mtime_ns
    Path("parts/part-00003.txt.zst").unlink()
    Path("parts/part-00001.txt.zst").write_bytes(b"cut off")
    done = cse("augment", "--parts", "shard*", "-o", "parts", "--json")
    assert json.loads(done.stdout)["made"] == 2
    assert "2 of 4 parts were made by an earlier call" in done.stderr
    assert files("whole") == files("parts")
    assert Path("parts/part-00000.txt.zst").stat().st_mtime_ns == kept
    # A file added at the end of the corpus becomes one more part.
    Path("shard4.txt").write_text("word7 word8 word9\n")
    done = cse("augment", "--parts", "shard*", "-o", "parts", "--json")
    assert json.loads(done.stdout)["made"] == 1
    Path("parts/part-00001.txt.zst.json").write_text("{")
    refused(cse("augment", "--parts", "shard*", "-o", "parts"), "part-00001.txt.zst.json: is not valid JSON")


@pytest.mark.slow
def test_a_later_call_makes_the_parts_that_are_missing_after_a_killed_call(shards, cse):
    """The third file is a pipe without data, so the call waits for its rows until it is killed."""
    assert cse("augment", "--parts", "shard*", "-o", "whole").returncode == 0
    pipe = Path("shard2.txt")
    pipe.unlink()
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    if not (child := os.fork()):
        made_here("parts")
    wait_for(lambda: Path("parts/part-00001.txt.zst.json").exists())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writer)
    pipe.unlink()
    pipe.touch()
    done = cse("augment", "--parts", "shard*", "-o", "parts", "--json")
    assert json.loads(done.stdout)["made"] == 2
    assert files("whole") == files("parts")


def made_here(folder, ray=None, progress=lambda rows: None):
    """Makes the parts of the folder ``whole`` in another; returns the outcomes, and the records of earlier parts."""
    index = TfidfIndex.open()
    job = sharding.augment_job(
        index,
        Path("tfidf/index.safetensors"),
        filtered={"min_df": 0, "max_terms": None},
        drawing=dict(index.draw_options()),
        copies=1,
        form="text",
        compression="zst",
        reading=reading_options(),
        elsewhere=ray is not None,
    )
    shards = []
    for path in sorted(Path("whole").glob("*.json")):
        made_from = json.loads(path.read_text())["made_from"]
        source = SourceFile(**{name: made_from[name] for name in ("path", "column", "bytes", "rows", "xxh3")})
        shards.append(sharding.Shard(source, path.stem, made_from["first_row"], made_from))
    with sharding.parts_folder(Path(folder), shards) as made:
        outcomes = [outcome for _, outcome in sharding.make_parts(job, shards, Path(folder), ray, 0, progress)]
    return outcomes, made


def test_unsuitable_output_folders_and_flags_are_refused(shards, cse, glove):
    assert cse("augment", "--parts", "shard*", "-o", "parts").returncode == 0
    before = files("parts")
    Path("other").mkdir()
    Path("other/mine.txt").touch()
    encode, augment = ("encode", glove, "whole.txt", "-o", "x.npy"), ("augment", "--parts", "shard*", "-o", "parts")
    for arguments, *phrases in [
        ((*augment, "--beta", "0.1"), "-o parts", "beta 0.5, not 0.1"),
        (("augment", "--parts", "shard3.txt", "-o", "parts"), "part-00001.txt.zst was made from another file, or in"),
        ((*augment, "--compression", "none"), "part-00000.txt.zst was made from another file"),
        (
            ("augment", "--parts", "shard[13]*", "shard0*", "shard2*", "-o", "parts"),
            "part-00000.txt.zst was made with path shard0",
        ),
        (("augment", "--parts", "shard[0-2]*", "-o", "parts"), "part-00003.txt.zst was made from another file"),
        (("encode", glove, "--parts", "shard*", "-o", "parts"), "part-00000.txt.zst was made from another file"),
        (("augment", "--parts", "shard*", "-o", "other"), "-o other holds files that are not"),
        (("augment", "--parts", "shard*", "-o", "whole.txt"), "whole.txt: file exists"),
        (("augment", "--parts", "shard*"), "--parts writes a folder; name it with -o"),
        (("augment", "whole.txt", "-o", "x", "--compression", "gz"), "--compression has no effect without --parts"),
        ((*encode, "--format", "npy"), "--format applies only to --parts"),
        ((*encode, "--gpus-per-worker", "1"), "--gpus-per-worker has no effect without --engine ray"),
    ]:
        refused(cse(*arguments), *phrases)
    assert files("parts") == before
    assert not Path("x").exists()


def test_a_changed_file_leaves_only_its_own_part_missing(shards, cse):
    """A change that keeps the size of the file is found when the file is read."""
    rows = Path("shard0.txt").read_bytes()
    Path("shard0.txt").write_bytes(rows[::-1].strip(b"\n") + b"\n")
    done = cse("augment", "--parts", "shard*", "-o", "parts")
    refused(done, "parts: 1 of 4 parts could not be made: shard0.txt (was changed after its rows were counted")
    assert sorted(path.name[:10] for path in Path("parts").glob("*.zst")) == ["part-00001", "part-00002", "part-00003"]
    Path("shard0.txt").write_bytes(rows)
    assert cse("augment", "--parts", "shard*", "-o", "parts").returncode == 0


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("npy", np.load),
        ("safetensors", lambda part: load_file(part)["embeddings"]),
        ("parquet", lambda part: np.array(pq.read_table(part)["embedding"].to_pylist()).reshape(-1, 16)),
    ],
)
def test_vectors_encoded_in_parts_equal_vectors_encoded_at_once(shards, cse, glove, form, read):
    summary = json.loads(ran(cse("encode", glove, "--parts", "shard*", "-o", "parts", "--format", form, "--json")))
    assert (summary["rows"], summary["blank"], summary["embedding_dim"]) == (400, 3, 16)
    expected = Encoder(glove).encode(shards)
    parts = sorted(Path("parts").glob(f"part-*.{form}"))
    np.testing.assert_allclose(np.vstack([read(part) for part in parts]), expected, atol=1e-6)
    if form == "parquet":
        rows = [row for part in parts for row in pq.read_table(part).column("row").to_pylist()]
        assert rows == list(range(400))


@pytest.mark.slow
def test_a_cluster_writes_the_same_bytes_as_one_machine(cluster, on_cluster, shards, cse, glove):
    for command, model in (("augment", ()), ("encode", (glove,))):
        here = cse(command, *model, "--parts", "shard*", "-o", f"{command}-here")
        there = on_cluster(command, *model, "--engine", "ray", "shard*", "-o", f"{command}-there", "--json")
        assert (here.returncode, there.returncode) == (0, 0), there.stderr
        assert json.loads(there.stdout)["made"] == 4
        assert files(f"{command}-here") == files(f"{command}-there")
    # two commands at once, of which one may be refused
    command = ["augment", "--engine", "ray", "shard*", "-o", "both"]
    both = [Forked(*command, env={"RAY_ADDRESS": cluster.address}) for _ in range(2)]
    for each in both:
        each.communicate(120)
    assert sorted(each.returncode for each in both) in ([0, 0], [0, 2])
    assert files("augment-here") == files("both")


@pytest.mark.parametrize(("task", "expected"), [("run_task", "whole"), ("count_shard", "tfidf")])
def test_a_killed_worker_of_a_cluster_is_replaced(cluster, shards, cse, task, expected):
    """The last file is a pipe without data, so its worker waits until it is killed; its replacement gets the data."""
    import ray

    assert cse("augment", "--parts", "shard*", "-o", "whole").returncode == 0
    pipe = Path("shard3.txt")
    text = pipe.read_bytes()
    pipe.unlink()
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # while a writer has the pipe open, readers wait for data
    rows, outcome = [], []

    def work():
        if expected == "tfidf":
            outcome.append(build_index("shard*", "made", **OPTIONS))
        else:
            outcome.extend(made_here("made", ray, rows.append))

    thread = threading.Thread(target=work)
    thread.start()
    (killed,) = wait_for(lambda: processes_reading(pipe, f"ray::{task}"))
    os.kill(killed, signal.SIGKILL)
    (replacement,) = wait_for(lambda: processes_reading(pipe, f"ray::{task}") - {killed})
    assert replacement != killed
    with os.fdopen(writer, "wb") as file:
        file.write(text)
    thread.join(120)
    if expected == "whole":
        assert (outcome[1], sum(rows)) == ({}, 400)
        assert not any(isinstance(each, Exception) for each in outcome[0])
    pipe.unlink()
    pipe.write_bytes(text)
    assert files(expected) == files("made")


@pytest.mark.slow
def test_invalid_input_to_a_cluster_is_reported_as_an_input_error(on_cluster, shards, glove):
    rows = Path("shard0.txt").read_bytes()
    Path("shard0.txt").write_bytes(rows.replace(b"w", b"\xff", 1))
    for command, files, flags, phrase in [
        (("augment",), "shard*", (), "augment: 1 of 4 parts could not be made: shard0.txt (line 1 is not valid UTF-8"),
        (("augment",), "nowhere.txt", (), "nowhere.txt"),
        (("augment",), "shard*", ("--threads", "2"), "--threads"),
        (("encode", glove), "shard*", ("--precision", "auto"), "--precision auto"),
        (("encode", glove), "shard*", ("--gpus-per-worker", "1"), "no node has 1 CPU and 1 GPU"),
    ]:
        refused(on_cluster(*command, "--engine", "ray", files, "-o", command[0], *flags), phrase)
    Path("shard0.txt").write_bytes(rows)
    assert on_cluster("augment", "--engine", "ray", "shard*", "-o", "augment").returncode == 0


def test_parts_that_were_interrupted_in_the_first_one_can_be_made_again(shards, cse_here, glove):
    command = ["encode", glove, "--parts", "shard0.txt", "shard1.txt.gz", "-o", "parts"]
    with mock.patch("cse.encoder.vector_files.encode_to_file", side_effect=KeyboardInterrupt) as interrupted:
        cse_here(*command)
    interrupted.assert_called_once()
    assert json.loads(ran(cse_here(*command, "--json")))["made"] == 2


def test_blank_shards_are_accepted_and_blank_corpora_invalid_text_and_standard_input_refused(cluster, shards):
    Path("shard3.txt").write_text("\n \n")
    build_index("shard*", "ray", **OPTIONS)
    assert Path("ray/index.safetensors").read_bytes() == TfidfIndex.build("shard*").to_bytes()
    Path("shard0.txt").write_bytes(b"fine\nbad \xff\n")
    for files, message in (
        ("shard[23].txt", "all 2 lines are blank"),
        ("shard*", r"shard0\.txt: line 2 is not valid UTF-8"),
        ("-", "standard input"),
    ):
        with pytest.raises(InputError, match=message):
            build_index(files, "none", **OPTIONS)
    assert not Path("none").exists()


def test_build_tfidf_joins_a_running_cluster(on_cluster, shards):
    build = ("build-tfidf", "--engine", "ray", "shard*", "-o", "ray", "--json")
    assert json.loads(ran(on_cluster(*build)))["rows"] == 400
    assert files("ray") == files("tfidf")


@pytest.mark.slow
def test_a_signal_ends_a_command_on_a_cluster_as_any_other(cluster, shards):
    Path("shard5.txt").write_text("one more row of this text\n" * 3_000_000, encoding="utf8")
    command = [sys.executable, "-m", "cse", "build-tfidf", "--engine", "ray", "shard*.txt"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: processes_reading(Path("shard5.txt"), "ray::"))
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors.endswith("Terminated.\n")
    assert "***" not in errors


class Silent(BaseHTTPRequestHandler):
    """A server that is no Ray cluster."""

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize(
    ("address", "why"),
    [
        *(
            pytest.param(address, "did not answer as a Ray cluster within 3 seconds", marks=pytest.mark.slow)
            for address in ("127.0.0.1:HTTP", "ray://127.0.0.1:SILENT", "127.0.0.1:SILENT")
        ),
        ("http://127.0.0.1:HTTP", "Invalid Ray address"),
        ("localhost", "Invalid address format: localhost"),
        ("127.0.0.1:1", "Connection refused"),
    ],
)
def test_waiting_for_an_address_that_is_no_ray_cluster_ends_in_one_sentence(monkeypatch, address, why):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'cse[ray]'")
    server, silent = ThreadingHTTPServer(("127.0.0.1", 0), Silent), socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, port in (("HTTP", server.server_address[1]), ("SILENT", silent.getsockname()[1])):
        address = address.replace(name, str(port))
    if why.startswith("did not"):
        monkeypatch.setattr(connection, "ANSWERING", 3.0)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # another test may have connected this process
    began = time.monotonic()
    match = rf"--engine ray: no cluster could be reached \(.*{why}.*; check RAY_ADDRESS"
    with pytest.raises(InputError, match=match), connection.connected():
        pass
    assert time.monotonic() - began < connection.ANSWERING + 2 <= 30
    server.shutdown()
    silent.close()

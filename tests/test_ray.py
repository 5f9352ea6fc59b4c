"""Tests of indexes built on a Ray cluster: each equals a local build byte for byte, even if a worker is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'cse[ray]'")

from cse import InputError, TfidfIndex  # noqa: E402
from cse.data.readers import reading_options  # noqa: E402
from cse.tfidf.build import build_index  # noqa: E402
from cse.tfidf.options import word_options  # noqa: E402
from ray_clusters import processes_reading, two_nodes, wait_for  # noqa: E402

cluster = pytest.fixture(scope="module")(two_nodes)

OPTIONS = {"words": word_options(), "reading": reading_options()}


@pytest.fixture
def shards(tmp_path, sample_rows, monkeypatch):
    """Writes five shards to a temporary folder, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)
    for n in range(5):
        Path(f"shard{n}.txt").write_text("\n".join(sample_rows[2000 * n : 2000 * (n + 1)]) + "\n", encoding="utf8")
    return tmp_path


def test_blank_shards_are_accepted_unless_all_shards_are_blank(cluster, shards):
    Path("shard1.txt").write_text("\n \n")
    Path("shard3.txt").write_text("...\n")
    build_index("shard*.txt", "ray", engine="ray", **OPTIONS)
    assert Path("ray/index.safetensors").read_bytes() == TfidfIndex.build("shard*.txt").to_bytes()
    for n in range(5):
        Path(f"shard{n}.txt").write_text("\n")
    with pytest.raises(InputError, match="all 5 lines are blank"):
        build_index("shard*.txt", "none", engine="ray", **OPTIONS)
    assert not Path("none").exists()


def test_build_tfidf_joins_a_running_cluster_and_cannot_write_the_matrix(cluster, shards, cse):
    done = cse("build-tfidf", "--engine", "ray", "shard*.txt", "--json", env={"RAY_ADDRESS": cluster.address})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 10_000
    assert [path.name for path in Path("tfidf").iterdir()] == ["index.safetensors"]
    assert Path("tfidf/index.safetensors").read_bytes() == TfidfIndex.build("shard*.txt").to_bytes()
    refused = cse("build-tfidf", "--engine", "ray", "--matrix", "shard*.txt")
    assert (refused.returncode, "--matrix" in refused.stderr) == (2, True)


def test_an_address_where_nothing_answers_is_refused(shards, cse):
    with socket.socket() as free:  # its port has no listener
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        began = time.monotonic()
        done = cse("build-tfidf", "--engine", "ray", "shard*.txt", env={"RAY_ADDRESS": address})
    assert done.returncode == 2
    assert "--engine ray: no cluster could be reached" in done.stderr
    assert time.monotonic() - began < 30


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


def test_a_worker_killed_while_reading_a_shard_is_replaced(cluster, shards):
    """The third shard is an empty pipe. Its worker waits for data and is killed; the replacement receives the data."""
    path = Path("shard2.txt")
    text = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)  # while a writer has the pipe open, readers wait for data
    outcome = {}
    run = threading.Thread(
        target=lambda: outcome.update(done=build_index("shard*.txt", "ray", engine="ray", **OPTIONS))
    )
    run.start()
    (killed,) = wait_for(lambda: processes_reading(path, "ray::count_shard"))
    os.kill(killed, signal.SIGKILL)
    (replacement,) = wait_for(lambda: processes_reading(path, "ray::count_shard") - {killed})
    assert replacement != killed
    with os.fdopen(pipe, "wb") as file:
        file.write(text)
    run.join(120)
    assert "done" in outcome
    path.unlink()
    path.write_bytes(text)
    assert Path("ray/index.safetensors").read_bytes() == TfidfIndex.build("shard*.txt").to_bytes()


def test_invalid_text_in_a_shard_and_standard_input_are_refused(cluster, shards):
    Path("shard3.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(InputError, match=r"shard3\.txt: line 2 is not valid UTF-8"):
        build_index("shard*.txt", "ray", engine="ray", **OPTIONS)
    assert not Path("ray").exists()
    with pytest.raises(InputError, match="standard input"):
        build_index("-", "ray", engine="ray", **OPTIONS)

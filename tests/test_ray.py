"""Building on a Ray cluster gives the same bytes as a local build, also after a worker was killed."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'cse[ray]'")

from cse import InputError, TfidfIndex  # noqa: E402
from cse.data.reading import reading_options  # noqa: E402
from cse.tfidf.build import build_index  # noqa: E402
from cse.tfidf.options import word_options  # noqa: E402

OPTIONS = {"words": word_options(), "reading": reading_options()}


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes, separate processes with one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def shards(tmp_path, sample_rows, monkeypatch):
    """The relative names of five shards in the working directory."""
    monkeypatch.chdir(tmp_path)
    for n in range(5):
        Path(f"shard{n}.txt").write_text("\n".join(sample_rows[2000 * n : 2000 * (n + 1)]) + "\n", encoding="utf8")
    return tmp_path


def readers(path):
    """Returns the worker processes that have this file open; Ray names them by their task."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if "ray::count_shard" in (folder / "cmdline").read_text():
                links = [os.readlink(link) for link in (folder / "fd").iterdir()]
                pids |= {int(folder.name)} if str(path.resolve()) in links else set()
        except OSError:
            pass
    return pids


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
    return found


def test_a_cluster_gives_the_bytes_of_one_build(cluster, shards):
    info, files, joined = build_index("shard*.txt", "ray", engine="ray", **OPTIONS)
    whole = TfidfIndex.build("shard*.txt")
    assert Path("ray/index.safetensors").read_bytes() == whole.to_bytes()
    assert (info, files, joined) == (whole.info, whole.files, 0)


def test_a_shard_may_be_blank(cluster, shards):
    """A file that a local build accepts is accepted on the cluster as well."""
    Path("shard1.txt").write_text("\n \n")
    Path("shard3.txt").write_text("...\n")
    build_index("shard*.txt", "ray", engine="ray", **OPTIONS)
    assert Path("ray/index.safetensors").read_bytes() == TfidfIndex.build("shard*.txt").to_bytes()
    for n in range(5):
        Path(f"shard{n}.txt").write_text("\n")
    with pytest.raises(InputError, match="all 5 lines are blank"):
        build_index("shard*.txt", "none", engine="ray", **OPTIONS)
    assert not Path("none").exists()


def test_the_command_joins_a_running_cluster(cluster, shards, cse):
    done = cse("build-tfidf", "--engine", "ray", "shard*.txt", "--json", env={"RAY_ADDRESS": cluster.address})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 10_000
    assert [path.name for path in Path("tfidf").iterdir()] == ["index.safetensors"]
    assert Path("tfidf/index.safetensors").read_bytes() == TfidfIndex.build("shard*.txt").to_bytes()
    refused = cse("build-tfidf", "--engine", "ray", "--matrix", "shard*.txt")
    assert (refused.returncode, "--matrix" in refused.stderr) == (2, True)


def test_a_killed_worker_is_replaced(cluster, shards):
    """The third shard is a pipe: its worker waits for data until it is killed; then data is written for the next."""
    path = Path("shard2.txt")
    text = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)  # a writer, so that readers wait for its text
    outcome = {}
    run = threading.Thread(
        target=lambda: outcome.update(done=build_index("shard*.txt", "ray", engine="ray", **OPTIONS))
    )
    run.start()
    (victim,) = wait_for(lambda: readers(path))
    os.kill(victim, signal.SIGKILL)
    (heir,) = wait_for(lambda: readers(path) - {victim})
    assert heir != victim
    with os.fdopen(pipe, "wb") as file:
        file.write(text)
    run.join(120)
    assert "done" in outcome
    path.unlink()
    path.write_bytes(text)
    assert Path("ray/index.safetensors").read_bytes() == TfidfIndex.build("shard*.txt").to_bytes()


def test_a_fault_in_a_file_is_the_users_sentence(cluster, shards):
    Path("shard3.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(InputError, match=r"shard3\.txt: line 2 is not valid UTF-8"):
        build_index("shard*.txt", "ray", engine="ray", **OPTIONS)
    assert not Path("ray").exists()
    with pytest.raises(InputError, match="standard input"):
        build_index("-", "ray", engine="ray", **OPTIONS)

"""Tests of output in parts, one part per input file.

Joined, the parts equal the output for a single file of all rows. This holds on one machine, on a Ray cluster, and after
a killed call is repeated.
"""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from cse import Encoder, TfidfIndex, sharding
from cse.cli import cli
from cse.data.readers import SourceFile, reading_options
from random_texts import some_texts
from ray_clusters import processes_reading, two_nodes, wait_for
from test_cli import refused


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'cse[ray]'")
    yield from two_nodes()


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


def content(path):
    """Returns the decompressed content of a part."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        import pyarrow as pa

        return pa.input_stream(path, compression="zstd").read() if data else b""
    return data


def all_parts(folder):
    return b"".join(content(path) for path in sorted(Path(folder).glob("part-*")) if path.suffix != ".json")


def same_folder(left, right):
    names = [sorted(path.name for path in Path(folder).iterdir()) for folder in (left, right)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (Path(left) / name).read_bytes() == (Path(right) / name).read_bytes(), name


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
    done = cse("augment", "--parts", "shard*", "-o", "parts", *flags, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["files"], summary["made"], summary["rows"]) == (4, 4, 400)
    plain = [flag for flag in flags if flag not in ("--compression", "gz", "none")]
    assert cse("augment", "whole.txt", "-o", "expected", *plain).returncode == 0
    assert all_parts("parts") == Path("expected").read_bytes()
    parts = [f"part-{number:05}{suffix}" for number in range(4)]
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
    same_folder("whole", "parts")
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
    same_folder("whole", "parts")


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
    before = {path: path.read_bytes() for path in Path("parts").iterdir()}
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
    assert {path: path.read_bytes() for path in Path("parts").iterdir()} == before
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


def array_of(path):
    """The vectors in a part written by ``cse encode``."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    return np.array(pq.read_table(path).column("embedding").to_pylist()).reshape(-1, 16)


@pytest.mark.parametrize("form", ["npy", "safetensors", "parquet"])
def test_vectors_encoded_in_parts_equal_vectors_encoded_at_once(shards, cse, glove, form):
    done = cse("encode", glove, "--parts", "shard*", "-o", "parts", "--format", form, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["rows"], summary["blank"], summary["embedding_dim"]) == (400, 3, 16)
    expected = Encoder(glove).encode(shards)
    parts = sorted(Path("parts").glob(f"part-*.{form}"))
    np.testing.assert_allclose(np.vstack([array_of(part) for part in parts]), expected, atol=1e-6)
    if form == "parquet":
        rows = [row for part in parts for row in pq.read_table(part).column("row").to_pylist()]
        assert rows == list(range(400))


@pytest.mark.slow
def test_a_cluster_writes_the_same_bytes_as_one_machine(cluster, shards, cse, glove):
    address = {"RAY_ADDRESS": cluster.address}
    for command, model in (("augment", ()), ("encode", (glove,))):
        here = cse(command, *model, "--parts", "shard*", "-o", f"{command}-here")
        there = cse(command, *model, "--engine", "ray", "shard*", "-o", f"{command}-there", "--json", env=address)
        assert (here.returncode, there.returncode) == (0, 0), there.stderr
        assert json.loads(there.stdout)["made"] == 4
        same_folder(f"{command}-here", f"{command}-there")
    # two commands at once, of which one may be refused
    command = [sys.executable, "-m", "cse", "augment", "--engine", "ray", "shard*", "-o", "both"]
    both = [subprocess.Popen(command, env={**os.environ, **address}) for _ in range(2)]
    assert sorted(each.wait() for each in both) in ([0, 0], [0, 2])
    same_folder("augment-here", "both")


def test_a_worker_killed_while_making_a_part_is_replaced(cluster, shards, cse):
    """The last file is a pipe without data, so its worker waits until it is killed; its replacement gets the data."""
    import ray

    assert cse("augment", "--parts", "shard*", "-o", "whole").returncode == 0
    pipe = Path("shard3.txt")
    text = pipe.read_bytes()
    pipe.unlink()
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    rows, outcome = [], []
    thread = threading.Thread(target=lambda: outcome.extend(made_here("parts", ray, rows.append)))
    thread.start()
    (killed,) = wait_for(lambda: processes_reading(pipe, "ray::run_task"))
    os.kill(killed, signal.SIGKILL)
    (replacement,) = wait_for(lambda: processes_reading(pipe, "ray::run_task") - {killed})
    with os.fdopen(writer, "wb") as file:
        file.write(text)
    thread.join(120)
    assert (outcome[1], replacement != killed, sum(rows)) == ({}, True, 400)
    assert not any(isinstance(each, Exception) for each in outcome[0])
    pipe.unlink()
    pipe.write_bytes(text)
    same_folder("whole", "parts")


@pytest.mark.slow
def test_invalid_input_to_a_cluster_is_reported_as_an_input_error(cluster, shards, cse, glove):
    rows, address = Path("shard0.txt").read_bytes(), {"RAY_ADDRESS": cluster.address}
    Path("shard0.txt").write_bytes(rows.replace(b"w", b"\xff", 1))
    for command, files, flags, phrase in [
        (("augment",), "shard*", (), "augment: 1 of 4 parts could not be made: shard0.txt (line 1 is not valid UTF-8"),
        (("augment",), "nowhere.txt", (), "nowhere.txt"),
        (("augment",), "shard*", ("--threads", "2"), "--threads"),
        (("encode", glove), "shard*", ("--precision", "auto"), "--precision auto"),
        (("encode", glove), "shard*", ("--gpus-per-worker", "1"), "no node has 1 CPU and 1 GPU"),
    ]:
        done = cse(*command, "--engine", "ray", files, "-o", command[0], *flags, env=address)
        refused(done, phrase)
    Path("shard0.txt").write_bytes(rows)
    assert cse("augment", "--engine", "ray", "shard*", "-o", "augment", env=address).returncode == 0


def test_parts_that_were_interrupted_in_the_first_one_can_be_made_again(shards, cse, glove, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    command = ["encode", glove, "--parts", "shard0.txt", "shard1.txt.gz", "-o", "parts"]
    with monkeypatch.context() as patched:
        patched.setattr("cse.encoder.vector_files.encode_to_file", interrupt)
        done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert isinstance(done.exception, (click.Abort, KeyboardInterrupt)), done.exception
    done = cse(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["made"] == 2

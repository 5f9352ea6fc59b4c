"""Tests of files that are written: permissions, named pipes, truncated inputs, and an index beside another's matrix."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scipy.sparse

from conftest import refuses
from cse import InputError, TfidfIndex, TrainConfig, _core, train
from cse.errors import refusing_names
from cse.io import fresh_folder, naming
from cse.tfidf.build import build_index
from cse.training.loop import resumed_config
from forked import Forked
from test_cli import refused


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("a man plays a guitar\na woman plays a violin\nno one sings\n", encoding="utf8")
    return path


def test_a_matrix_beside_another_index_is_refused_and_one_without_a_name_is_accepted(tmp_path, corpus):
    build_index([corpus], tmp_path / "one")
    build_index([corpus], tmp_path / "two", words={"lowercase": False, "tokenizer": "whitespace"})
    comment = (tmp_path / "one" / "matrix.npz").read_bytes()[-42:]
    assert comment.decode() == f"cse index {_core.hash_file(tmp_path / 'one' / 'index.safetensors')}"
    shutil.copy(tmp_path / "two" / "matrix.npz", tmp_path / "one" / "matrix.npz")
    refuses(r"matrix\.npz: belongs to another index than .*; build both again", TfidfIndex.open, tmp_path / "one")
    matrix = scipy.sparse.load_npz(tmp_path / "two" / "matrix.npz")
    scipy.sparse.save_npz(tmp_path / "one" / "matrix.npz", matrix, compressed=False)
    TfidfIndex.open(tmp_path / "one")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("build-tfidf {corpus} -o tfidf", "tfidf/index.safetensors"),
        ("augment {corpus} -o out.txt", "out.txt"),
        ("encode {model} {corpus} -o v.npy", "v.npy"),
        ("encode {model} {corpus} -o v.parquet", "v.parquet"),
        ("search {model} {corpus} -o index", "index/rows.arrow"),
    ],
)
def test_a_file_that_is_overwritten_keeps_its_permissions(tmp_path, corpus, glove, cse_here, command, output):
    build_index([corpus], tmp_path / "tfidf")
    arguments = command.format(corpus=corpus, model=glove).split()
    assert cse_here(*arguments, cwd=tmp_path).returncode == 0
    (tmp_path / output).chmod(0o600)
    assert cse_here(*arguments, cwd=tmp_path).returncode == 0
    assert (tmp_path / output).stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("build-tfidf pipe -o index", signal.SIGINT),
        ("augment corpus.txt -o pipe", signal.SIGTERM),
        ("doctor pipe", signal.SIGHUP),
        ("search {model} corpus.txt --queries pipe", signal.SIGINT),
        ("train --model {model} --dev pipe --max-steps 1 corpus.txt", signal.SIGTERM),
        ("encode {model} corpus.txt -o pipe", signal.SIGINT),
    ],
)
def test_a_signal_ends_a_command_that_waits_for_the_other_end_of_a_pipe(tmp_path, corpus, tiny_bert, command, number):
    os.mkfifo(tmp_path / "pipe")
    build_index([corpus], tmp_path / "tfidf")
    process = Forked(*command.format(model=tiny_bert).split(), cwd=tmp_path)
    while not waits(process.pid) and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1]
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 128 + number, error
    assert not list(tmp_path.rglob(".cse-*"))


def waits(pid):
    """Returns whether a process has used almost no processor time in the last quarter of a second."""
    used = []
    for _ in range(2):
        time.sleep(0.25)
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            used.append(int(fields[11]) + int(fields[12]))
    return len(used) < 2 or (used[0] > 1 and used[1] - used[0] <= 1)


def test_a_table_in_a_pipe_is_refused_because_it_is_read_several_times(tmp_path, cse_here):
    os.mkfifo(tmp_path / "pipe.csv")
    for command in ("build-tfidf pipe.csv --column text", "train --pairs pipe.csv"):
        done = cse_here(*command.split(), cwd=tmp_path)
        refused(done, "pipe.csv: is not a regular file, but a table is read several times")


def test_a_named_pipe_can_be_read_and_written(tmp_path, corpus, cse):
    os.mkfifo(tmp_path / "in")
    os.mkfifo(tmp_path / "out")
    with subprocess.Popen(["sh", "-c", f"cat {corpus} > {tmp_path / 'in'}"]):
        assert cse("build-tfidf", "in", cwd=tmp_path).returncode == 0
    with subprocess.Popen(["cat", tmp_path / "out"], stdout=subprocess.PIPE) as reader:
        done = cse("augment", corpus, "-o", "out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        written = reader.communicate()[0]
    assert cse("augment", corpus, "-o", "file", cwd=tmp_path).returncode == 0
    assert written == (tmp_path / "file").read_bytes()


def test_a_mapped_file_that_is_truncated_ends_the_process_with_a_sentence(tmp_path):
    script = (
        "import numpy as np, os, sys\nfrom cse import _core\n_core.report_truncated_files()\n"
        "np.save('v.npy', np.ones(100_000))\nv = np.load('v.npy', mmap_mode='r')\nos.truncate('v.npy', 0)\nv.sum()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "Error: another program truncated a file while cse was reading it; restore the file, and run the command "
        "again\n"
    )


@pytest.mark.slow
def test_a_closed_terminal_ends_a_training_run_with_a_checkpoint(run_config, tmp_path):
    import pty

    config = run_config.replace(max_steps=4000, eval_every=0, output=str(tmp_path))
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf8")
    pid, terminal = pty.fork()
    if pid == 0:
        command = ["-m", "cse", "train", "--config", str(tmp_path / "config.toml"), "--name", "run"]
        os.execv(sys.executable, [sys.executable, *command])
    log = tmp_path / "run" / "log.jsonl"
    while not log.exists() or log.read_text(encoding="utf8").count("\n") < 3:
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_an_error_names_the_output_and_not_a_temporary_file_or_folder(tmp_path):
    with pytest.raises(PermissionError) as raised, naming(tmp_path / "out.json"):
        raise PermissionError(13, "Permission denied", str(tmp_path / ".cse-core-abc.tmp"))
    assert raised.value.filename == str(tmp_path / "out.json")
    with pytest.raises(OSError, match="No space") as raised, fresh_folder(tmp_path / "out") as fresh:
        raise OSError(28, "No space left on device", str(fresh / "best" / "model.safetensors"))
    assert raised.value.filename == str(tmp_path / "out")
    with (
        pytest.raises(OSError, match=r"/out: cannot be written \(12 requested and 0 written\)"),
        fresh_folder(tmp_path / "out"),
    ):
        raise OSError("12 requested and 0 written")  # as NumPy on a full disk
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [b"folder/caf\xe9.txt", b"caf\xe9/corpus.txt"])
def test_a_run_on_a_corpus_whose_path_is_not_utf8_finds_it_and_can_be_resumed(tmp_path, tiny_bert, sample_rows, name):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    try:
        path.parent.mkdir()
        path.write_text("\n".join(sample_rows[:100]), encoding="utf8")
    except OSError:
        pytest.skip("the file system accepts only UTF-8 names")
    TfidfIndex.build(path).save(tmp_path / "tfidf")
    values = {"model": str(tiny_bert), "max_steps": 1, "batch_size": 8, "device": "cpu", "output": str(tmp_path)}
    assert train(TrainConfig(tfidf=tmp_path / "tfidf", **values)).steps == 1  # the index names the corpus
    run = train(TrainConfig(corpus=path, **values)).folder
    assert train(resumed_config(run, {"max_steps": 2}), resume=run).steps == 2


def test_a_name_that_a_library_refuses_is_named():
    with pytest.raises(InputError, match=r"^'caf\\udce9' is not UTF-8; use another name$"), refusing_names():
        os.fsdecode(b"caf\xe9").encode()

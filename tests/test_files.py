"""Tests of files that are written, of pipes, signals and forks, and of the modules of the Rust core."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import scipy.sparse

from commands import refuses
from cse import InputError, TfidfIndex, TrainConfig, _core, train
from cse.errors import refusing_names
from cse.io import fresh_folder, naming
from cse.tfidf.build import build_index
from cse.tfidf.pieces import Pieces
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
    """Returns whether a process has used almost no processor time in the last half second."""

    def used():
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    try:
        before = used()
        time.sleep(0.5)
        return before > 1 and used() - before <= 1
    except OSError:
        return True


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
    message = "Error: another program truncated a file while cse was reading it; restore the file, and run the command"
    assert done.stderr == f"{message} again\n"


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
    message = r"/out: cannot be written \(12 requested and 0 written\)"
    with pytest.raises(OSError, match=message), fresh_folder(tmp_path / "out"):
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


SCRIPT = """
import sys, threading
from cse import TfidfIndex, _core

what, path, output, seconds = sys.argv[1:]
reading = {"encoding_errors": "strict", "max_line_bytes": 1 << 20, "threads": 2}
progress = _core.Progress()
if seconds:
    threading.Timer(float(seconds), progress.cancel).start()
try:
    if what == "augment":
        index = TfidfIndex.open("tfidf")
        drawing = index.draw_options()
        index._core.augment_files([path], output or None, 1 if output else 20, False, drawing, reading, progress)
    else:
        words = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}
        _core.build_to([path], ".", words, True, reading, progress)
except KeyboardInterrupt:
    sys.exit(3)
"""


def launched(folder, what, path, output="", seconds="", **streams):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, what, str(path), output, seconds], cwd=folder, **streams)


def temporary(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".cse-"))


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path, indexed, sample):
    """Two processes write into ``tmp_path`` and wait for more input."""
    (tmp_path / "tfidf").symlink_to(indexed / "tfidf")
    first, second = (launched(tmp_path, "augment", "-", "out.txt", stdin=subprocess.PIPE) for _ in range(2))
    for process in (first, second):
        process.stdin.write(sample.read_bytes())
        process.stdin.flush()
    wait_for(lambda: len(temporary(tmp_path)) == 2)
    before = temporary(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert temporary(tmp_path) == before
    (tmp_path / ".cse-other.tmp").write_text("of another program")
    assert launched(tmp_path, "build", sample).wait() == 0
    (left,) = set(temporary(tmp_path)) - {".cse-other.tmp"}
    assert left in before
    assert not (tmp_path / "out.txt").exists()
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert temporary(tmp_path) == [".cse-other.tmp"]
    assert (tmp_path / "out.txt").read_bytes().count(b"\n") == sample.read_bytes().count(b"\n")


READING = {"encoding_errors": "strict", "max_line_bytes": 1 << 20, "threads": 2}


@pytest.mark.parametrize("what", ["build", "augment"])
@pytest.mark.parametrize("source", ["file", "pipe"])
def test_a_cancelled_call_returns_soon_and_leaves_no_files(tmp_path, sample, sample_index, what, source):
    out = tmp_path / "out"
    out.mkdir()
    reading, writing = os.pipe()
    if source == "file":
        path = tmp_path / "corpus.txt"
        path.write_bytes(sample.read_bytes() * 100)
    else:
        path = f"/dev/fd/{reading}"
        os.write(writing, b"one row of text\n" * 100)
    words, progress = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}, _core.Progress()
    if what == "build":
        work = (_core.build_to, [str(path)], out, words, True)
    else:
        drawing = sample_index.draw_options()
        work = (sample_index._core.augment_files, [str(path)], out / "out.txt", 50, False, drawing)
    done = ThreadPoolExecutor(1).submit(*work, READING, progress)
    wait_for(lambda: progress.done > 0 if source == "file" else done.running())
    progress.cancel()
    with pytest.raises(KeyboardInterrupt):
        done.result(timeout=3)
    os.close(reading)
    os.close(writing)
    assert list(out.iterdir()) == []


def test_writing_to_a_full_pipe_can_be_cancelled(indexed, sample):
    process = launched(indexed, "augment", sample, seconds="1", stdout=subprocess.PIPE)
    assert process.wait(timeout=60) == 3
    process.communicate()


def test_the_same_rows_are_blank_in_a_list_of_texts_and_in_a_file(tmp_path, sample_index, tiny_bert):
    rows = ["", " ", "\t", "\x1c", "\u3000", "a text", "..."]
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    pieces = Pieces((tiny_bert / "tokenizer.json").read_text(encoding="utf8"), "tiny")
    for tokenizer in _core.TOKENIZERS:
        words = {"tokenizer": tokenizer, "pieces": pieces if tokenizer == "wordpieces" else None}
        of_file = TfidfIndex.build(path, **words).info
        assert TfidfIndex.from_texts(rows, **words).info == of_file
        assert of_file.blank == 5
    negatives, report = sample_index.augment_report(rows)
    of_file, _ = sample_index._core.augment_files(
        [str(path)], tmp_path / "out.txt", 1, False, sample_index.draw_options(), READING
    )
    assert (tmp_path / "out.txt").read_text(encoding="utf8").split("\n")[:-1] == negatives
    assert (report.rows, report.blank, report.unchanged) == tuple(of_file.values())[:3] == (7, 5, 6)
    path.write_text("\n".join(rows[:5]) + "\n", encoding="utf8")
    for call in (lambda: TfidfIndex.build(path), lambda: TfidfIndex.from_texts(rows[:5])):
        refuses("all 5 lines are blank", call)


# The parent process opens and builds indexes; then each task does the same in a worker process.
PREPARE = """
import multiprocessing, pickle, sys
from cse import TfidfIndex

corpus, folder = sys.argv[1:]
TEXTS = ["A man is playing a guitar.", "Two dogs run over the snow."]

def task(number):
    index = TfidfIndex.open(folder)
    built = TfidfIndex.build(corpus, threads=number % 3)
    counted = TfidfIndex.from_texts(TEXTS)
    copy = pickle.loads(pickle.dumps(index))
    assert len(index) == len(built) == len(copy) > 1000 and len(counted) > 5
    assert copy.augment(TEXTS) == built.augment(TEXTS)
    return built.augment(TEXTS)

if __name__ == "__main__":
    built = TfidfIndex.build(corpus)
    built.save(folder)
    expected = task(0)
"""

CASES = {
    "process": """
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(task, range(4)) == [expected] * 4
""",
    "fork_of_a_fork": """
    import os
    for generation in range(3):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status))
        assert task(generation) == expected
    os._exit(0)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_the_rust_core_works_in_forks_and_in_workers_of_every_kind(tmp_path, sample, case):
    script = tmp_path / "script.py"
    script.write_text(PREPARE + CASES[case])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, script, sample, tmp_path / "tfidf"], **streams)
    try:
        output, _ = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output


SOURCE = Path(__file__).parents[1] / "rust" / "src"


def imports(path, modules):
    """Returns the modules that a file names with ``crate::``, outside its comments and its unit tests."""
    code = re.sub(r"//.*", "", path.read_text("utf8").partition("#[cfg(test)]")[0])
    # crate::a::{b, c::d} -> crate::a::b, crate::a::c::d
    names = set(re.findall(r"crate::((?:\w+::)*\w+)", code))
    for base, group in re.findall(r"crate::((?:\w+::)*)\{([^{}]*)", code):
        names |= {base + each.strip() for each in group.split(",") if each.strip()}
    found = set()
    for name in names:
        parts = name.split("::")
        longest = next(("/".join(parts[:n]) for n in range(len(parts), 0, -1) if "/".join(parts[:n]) in modules), None)
        found |= {longest} - {None}
    return found


def test_no_module_of_the_core_imports_itself_through_others():
    paths = [path for path in SOURCE.rglob("*.rs") if path.name != "lib.rs"]
    modules = {str(path.relative_to(SOURCE).with_suffix("")).removesuffix("/mod"): path for path in paths}
    assert len(modules) > 40
    graph = {name: imports(path, modules) - {name} for name, path in modules.items()}
    assert graph["una/augment"] >= {"una/word", "index", "text/tokenize"}
    list(TopologicalSorter(graph).static_order())  # raises CycleError

"""Tests of the Rust core: closed outputs, temporary files, cancelled calls, blank rows, forks, and its modules."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from conftest import refuses
from cse import TfidfIndex, _core
from cse.tfidf.pieces import Pieces

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
    words = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}
    work = {
        "build": lambda progress: _core.build_to([str(path)], out, words, True, READING, progress),
        "augment": lambda progress: sample_index._core.augment_files(
            [str(path)], out / "out.txt", 50, False, sample_index.draw_options(), READING, progress
        ),
    }[what]
    progress = _core.Progress()
    done = ThreadPoolExecutor(1).submit(work, progress)
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
    arguments = [sys.executable, script, sample, tmp_path / "tfidf"]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail("not finished after 120 seconds")
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

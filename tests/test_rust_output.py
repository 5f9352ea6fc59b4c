"""Tests of output from the Rust core: closed outputs, temporary files, cancelled calls, messages, and blank rows."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cse import InputError, TfidfIndex, _core
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
except (OSError, KeyboardInterrupt) as error:
    print(type(error).__name__, getattr(error, "errno", None), error, file=sys.stderr)
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


@pytest.fixture
def stalled(tmp_path, indexed, sample):
    """A function that starts a process. The process writes into ``tmp_path`` and then waits for more input."""
    processes = []
    (tmp_path / "tfidf").symlink_to(indexed / "tfidf")

    def start():
        process = launched(tmp_path, "augment", "-", "out.txt", stdin=subprocess.PIPE)
        processes.append(process)
        process.stdin.write(sample.read_bytes())
        process.stdin.flush()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path, stalled, sample):
    first, second = stalled(), stalled()
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


def cancelled(work, started):
    """Runs ``work`` in a thread and cancels it once ``started`` returns true.

    Returns the exception that ``work`` raised, and the seconds from the cancellation to the end of the thread.
    """
    progress, raised = _core.Progress(), []

    def run():
        try:
            work(progress)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(lambda: started(progress))
    progress.cancel()
    since = time.monotonic()
    thread.join(30)
    assert not thread.is_alive()
    return raised[0], time.monotonic() - since


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
    started = (lambda progress: progress.done > 0) if source == "file" else (lambda progress: progress is not None)
    error, seconds = cancelled(work, started)
    os.close(reading)
    os.close(writing)
    assert isinstance(error, KeyboardInterrupt)
    assert seconds < 3
    assert list(out.iterdir()) == []


def test_writing_to_a_full_pipe_can_be_cancelled(indexed, sample):
    process = launched(indexed, "augment", sample, seconds="1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
    of_file = sample_index._core.augment_files(
        [str(path)], tmp_path / "out.txt", 1, False, sample_index.draw_options(), READING
    )
    assert (tmp_path / "out.txt").read_text(encoding="utf8").split("\n")[:-1] == negatives
    assert (report.rows, report.blank, report.unchanged) == tuple(of_file.values())[:3] == (7, 5, 6)
    path.write_text("\n".join(rows[:5]) + "\n", encoding="utf8")
    for call in (lambda: TfidfIndex.build(path), lambda: TfidfIndex.from_texts(rows[:5])):
        with pytest.raises(InputError, match="all 5 lines are blank"):
            call()


def test_a_pipe_closed_by_its_reader_causes_a_broken_pipe_error(indexed, sample):
    reading, writing = os.pipe()
    process = launched(indexed, "augment", sample, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert os.read(reading, 100)
    os.close(reading)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 3
    assert message.startswith("BrokenPipeError 32 ")

"""Tests of locks that keep other processes from using a file or folder."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from cse.io import fresh_folder, lock, locked, write_text

HOLD = """
import sys
from pathlib import Path
from cse.io import locked
with locked(Path(sys.argv[1])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def test_a_lock_cannot_be_acquired_until_the_process_that_holds_it_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        with pytest.raises(BlockingIOError), locked(tmp_path):
            pass
        process.kill()
    with locked(tmp_path) as held:
        assert held


def test_a_lock_of_an_open_file_leaves_content_and_position_unchanged(tmp_path):
    path = tmp_path / "file"
    with open(path, "w+b") as file:
        file.write(b"one")
        file.flush()
        assert lock(file.fileno())
        with open(path, "r+b") as other, pytest.raises(BlockingIOError):
            lock(other.fileno())
        file.write(b" two")
    assert path.read_bytes() == b"one two"


def test_files_that_are_being_written_are_not_removed_as_leftovers(tmp_path):
    """Each write to a folder removes leftovers, and must not take the files and folders of other threads for such."""

    def write(number):
        write_text(tmp_path / f"file{number}", "text")
        with fresh_folder(tmp_path / f"folder{number}") as folder:
            (folder / "file").write_text("text")

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(write, range(200)):
            pass
    assert len([*tmp_path.glob("file*")]) == len([*tmp_path.glob("folder*/file")]) == 200
    assert not [*tmp_path.glob(".*")]

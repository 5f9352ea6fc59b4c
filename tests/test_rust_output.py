"""Where the core writes: standard output that is closed or closes early, and temporary files."""

import os
import subprocess
import sys

import pytest

AUGMENT = """
import sys
from cse import TfidfIndex

index = TfidfIndex.open("tfidf")
reading = {"encoding_errors": "strict", "max_line_bytes": 1 << 20, "threads": 0}
try:
    index._core.augment_files([sys.argv[1]], None, 20, False, index.draw_options(), reading)
except Exception as error:
    print(type(error).__name__, getattr(error, "errno", None), error, file=sys.stderr)
    sys.exit(3)
"""


@pytest.mark.parametrize("redirection", [">&-", "1</dev/null"])
def test_a_closed_standard_output_is_an_error(indexed, sample, redirection):
    command = f'"$0" -c "from cse.cli import main; main()" augment "$1" {redirection}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, sample], cwd=indexed, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == "Error: standard output: is closed; redirect it to a file or a pipe, or name a file with -o"


def test_a_reader_that_closes_early_is_a_broken_pipe(indexed, sample):
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", AUGMENT, sample], cwd=indexed, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert os.read(reading, 100)
    os.close(reading)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 3
    assert message.startswith("BrokenPipeError 32 ")

"""Commands that are killed at a sample of the calls that change files, and repeated; see crash_points.py."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the system calls are those of Linux on x86-64"
)


def points(*arguments):
    """Returns the number of points tried; fails if one of them fails."""
    program = Path(__file__).with_name("crash_points.py")
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])["tried"]


def test_a_command_that_is_killed_at_a_file_change_can_be_repeated_and_leaves_nothing():
    assert points("--share", "3") >= 60


def test_no_file_change_of_adapt_ignores_sigterm():
    assert points("--term", "--share", "6", "--case", "^adapt") >= 6

"""Commands that are killed at a sample of the calls that change files, and repeated; see crash_points.py."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the system calls are those of Linux on x86-64"
)
def test_a_command_that_is_killed_at_a_file_change_can_be_repeated_and_leaves_nothing():
    program = Path(__file__).with_name("crash_points.py")
    done = subprocess.run(
        [sys.executable, program, "--share", "3", "--case", "^(?!report|plot)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["tried"] >= 30

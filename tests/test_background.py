"""Tests of calls into the Rust core that run in a background thread."""

import os
import time

import pytest

from cse import _core
from cse.background import in_thread
from cse.data.readers import reading_options


def test_an_interrupt_ends_a_call_into_the_core(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)  # while this end is open, the core waits for more rows
    os.write(writer, b"a sentence\n")
    seen = []

    def interrupt(done, total):
        seen.append(done)
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_thread(
            lambda progress: _core.write_rows([str(tmp_path / "pipe")], str(tmp_path), reading_options(), progress),
            interrupt,
        )
    os.close(writer)
    assert len(seen) == 1
    assert time.monotonic() - started < 10

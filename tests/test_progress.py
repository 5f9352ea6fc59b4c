"""The display of progress on a terminal."""

import re
import struct
import subprocess
import sys

import pytest

from cse.progress import ProgressDisplay
from cse.training.callbacks import Callback, Callbacks


def test_a_message_is_printed_above_the_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    display = ProgressDisplay()
    display("training", 3, 10, "steps")
    display.print("step 3: saved")
    display.close()
    assert "step 3: saved" in capsys.readouterr().err


def test_every_call_reaches_all_callbacks_in_order():
    calls = []
    names = [name for name in vars(Callback) if not name.startswith("_")]
    assert {"on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_interrupt", "close"} <= set(names)

    def recorded(number, name):
        return lambda self, *arguments: calls.append((number, name, arguments))

    kinds = [type("Recorder", (Callback,), {name: recorded(number, name) for name in names}) for number in (1, 2)]
    both = Callbacks([kind() for kind in kinds])
    for name in names:
        getattr(both, name)(name, 5)
    assert calls == [(number, name, (name, 5)) for name in names for number in (1, 2)]


TRAIN = """
import time
from cse.training.callbacks import ProgressCallback
shown = ProgressCallback()
shown.on_evaluate(0, {"mrr": 0.6244, "mrr_se": 0.0723, "alignment": 1.4, "uniformity": -3.7})
for step in range(1, 31):
    shown.on_step_end(step, 100_000)
    shown.on_log([{"loss": 0.52941}])
    time.sleep(0.02)
shown.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize("columns", [80, 120])
def test_the_live_line_of_training_fits_into_the_terminal(columns):
    import fcntl
    import os
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.Popen(
        [sys.executable, "-c", TRAIN], stdin=theirs, stderr=theirs, stdout=theirs, env={**environment, "TERM": "xterm"}
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the terminal has no writer left
            break
        if not more:
            break
        said += more
    os.close(ours)
    assert done.wait() == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", said.decode("utf8"))
    lines = [line for line in re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", text) if line.startswith("training")]
    assert max(map(len, lines)) == columns
    whole = re.compile(r"\d+/100000 loss 0\.529, [\d.]+ steps/s, MRR 0\.6244 +\d+:\d+:\d+$")
    assert any(whole.search(line) for line in lines), lines[-1]


def test_lines_outside_of_terminals_do_not_repeat_the_last_score(monkeypatch, capsys):
    monkeypatch.setattr("cse.progress.LINE_SECONDS", 0.0)
    display = ProgressDisplay()
    display("training", 3, 10, "steps", "loss 0.5", "MRR 0.6")
    assert capsys.readouterr().err == "training: 3 of 10 steps, loss 0.5\n"

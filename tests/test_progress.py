"""The display of progress, and interrupts of calls into the Rust core, which run in a background thread."""

import sys
import threading
from types import SimpleNamespace
from unittest import mock

import pytest

from cse.background import in_thread
from cse.progress import ProgressDisplay
from cse.training.callbacks import Callback, Callbacks


def test_a_message_is_printed_above_the_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    display = ProgressDisplay()
    display("training", 3, 10, "steps")
    display.print("step 3: saved")
    display.close()
    assert "step 3: saved" in capsys.readouterr().err


def test_lines_outside_of_terminals_do_not_repeat_the_last_score(monkeypatch, capsys):
    monkeypatch.setattr("cse.progress.LINE_SECONDS", 0.0)
    display = ProgressDisplay()
    display("training", 3, 10, "steps", "loss 0.5", "MRR 0.6")
    assert capsys.readouterr().err == "training: 3 of 10 steps, loss 0.5\n"


def test_every_call_reaches_all_callbacks_in_order():
    names = [name for name in vars(Callback) if not name.startswith("_")]
    recorded = mock.Mock()
    both = Callbacks([recorded.first, recorded.second])
    for name in names:
        getattr(both, name)(name, 5)
    assert recorded.mock_calls == [getattr(mock.call, f"{each}.{name}")(name, 5) for name in names
                                   for each in ("first", "second")]  # fmt: skip
    assert {"on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_interrupt", "close"} <= set(names)


@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_while_the_thread_is_started_stops_the_call(monkeypatch, started):
    start, ended, cancelled = threading.Thread.start, [], threading.Event()

    def interrupted(thread):
        if started:
            start(thread)
        raise KeyboardInterrupt

    def work(progress):
        ended.append(cancelled.wait(10))

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr("cse.background.Progress", lambda: SimpleNamespace(cancel=cancelled.set))
    with pytest.raises(KeyboardInterrupt):
        in_thread(work, lambda done, total: None)
    assert ended == [True] * started

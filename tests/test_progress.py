"""The display of progress on a terminal."""

import sys

from cse.progress import ProgressDisplay


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

"""The display of progress on a terminal."""

import sys

from cse.cli.progress import ProgressDisplay


def test_a_message_is_printed_above_the_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    display = ProgressDisplay("training", "steps", 10)
    display.update(3)
    display.print("step 3: saved")
    display.close()
    assert "step 3: saved" in capsys.readouterr().err

"""The display of progress on a terminal."""

import sys

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

"""Tests of what is shown in a terminal: control characters, other encodings, progress, and interrupts behind it."""

import json
import re
import threading
from types import SimpleNamespace
from unittest import mock

import pytest

from cse.background import in_thread
from cse.errors import visible
from cse.progress import ProgressDisplay
from cse.training.callbacks import Callback, Callbacks
from random_texts import some_texts

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m \u202eabc\u2066"
SHOWN = re.compile(r"\\x1b\]0;owned\\x07\\x1b\[2J\\x9b31m")
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def corpus(tmp_path):
    """Texts with escape sequences; two of each are near-duplicates."""
    texts = [f"{text} {EVIL} end" for text in some_texts(40)]
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*texts, texts[0], "word1 \U0001f600 \u4e2d\u6587 word2"]) + "\n", encoding="utf8")
    return path


def test_control_characters_are_escaped_and_other_characters_are_not():
    assert visible("a\tb\n\u00e9\u4e2d\U0001f600\u200f") == "a\tb\n\u00e9\u4e2d\U0001f600\u200f"
    assert visible("\x1b[2J\r\x7f\x9b\u202e\udc80") == "\\x1b[2J\\r\\x7f\\x9b\\u202e\\udc80"


def test_no_command_sends_control_characters_of_a_corpus_to_the_terminal(cse_here, corpus, glove, tiny_bert, tmp_path):
    query = f"word1 {EVIL}"
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(
        f"anchor,positive,a{EVIL}\n" + "".join(f"word{n} {EVIL},word2,word3\n" for n in range(20)), encoding="utf8"
    )
    commands = [
        ("build-tfidf", corpus, "-o", "tfidf"),
        ("doctor", corpus),
        ("search", glove, corpus, "-o", "index", "--query", query),
        ("search", glove, corpus, "-o", "index", "--query", query, "--json"),
        ("explain", query),
        ("explain", query, "--json"),
        ("train", corpus, "--model", tiny_bert, "--una", "--max-steps", "1", "--batch-size", "4", "--verbose"),
        ("train", "--pairs", pairs, "--model", tiny_bert, "--max-steps", "1", "--batch-size", "4"),
        ("doctor", f"no-{EVIL.replace('/', '')}.txt"),
        ("doctor", pairs, "--column", EVIL),
        ("search", f"model{EVIL}", corpus),
        ("train", "--loss", EVIL, corpus),
        (f"cmd{EVIL}",),
    ]
    for command in commands:
        done = cse_here(*command, cwd=tmp_path)
        for text in (done.stdout, done.stderr):
            assert not OBEYED.search(text), (command, text)
        if "--json" in command:
            assert json.loads(done.stdout)
        elif command[0] in ("search", "explain", "doctor", "train"):
            assert SHOWN.search(re.sub(r"\s*\n\s*", "", done.stdout + done.stderr)) or done.returncode == 0, command
    assert done.returncode == 2


@pytest.mark.slow
def test_output_that_is_not_utf8_is_complete(corpus, glove, tmp_path, cse):
    assert cse("build-tfidf", corpus, "-o", "tfidf", cwd=tmp_path).returncode == 0
    query = "word1 \U0001f600 \u4e2d\u6587 word2"
    for command in [("search", glove, corpus, "-o", "index", "--query", query, "--json"), ("explain", query)]:
        done = cse(*command, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"}, text=False)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        if "--json" in command:
            assert query in str(json.loads(done.stdout.decode("ascii")))


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

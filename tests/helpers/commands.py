"""Runs cse commands, in a process of their own or in this one, and checks refusals."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest

from cse import _core, errors
from cse.cli import group
from cse.cli.group import PLACES
from forked import run_forked


def run_cse(*arguments, cwd=None, text=True, stdin=None, env=None, preexec=None):
    """Runs a cse command in a separate process; returns a ``subprocess.CompletedProcess``."""
    if arguments[0] in (*PLACES, "generate", "reproduce") and env is None and preexec is None:
        return run_forked(*arguments, cwd=cwd, text=text, stdin=stdin)
    return subprocess.run(
        [sys.executable, "-c", "from cse.cli import main; main()", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=text,
        encoding="utf8" if text else None,
        env={**os.environ, **(env or {})},
        preexec_fn=preexec,
        check=False,
    )


def run_here(*arguments, cwd="."):
    """As ``run_cse``, but in this process, for tests whose subject is not signals, streams, exit codes or imports.

    What the Rust core reads from standard input or writes to standard output is not redirected.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf8", newline="", write_through=True) for _ in range(2))
    with contextlib.ExitStack() as stack:
        for context in (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["cse", *map(str, arguments)]),
            mock.patch("click.core._detect_program_name", return_value="cse"),
            threadpool_limits(),
        ):
            stack.enter_context(context)
        code = group._run([signal.SIGINT])
    torch.set_num_threads(threads)
    _core.set_default_threads(0)
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(["cse", *arguments], code, *printed)


def refuses(message, call, *given, error=errors.InputError, **named):
    """Asserts that a call raises an error that matches ``message``; returns the text of the error."""
    with pytest.raises(error, match=message) as caught:
        call(*given, **named)
    return str(caught.value)

"""Runs cse commands in processes forked from one that has imported PyTorch and transformers (``fork_server.py``).

These imports take longer than most of the commands that the tests run. Each command still runs in a separate process,
with its own arguments, working directory, environment, standard streams, signals and exit status.
"""

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path


@functools.cache
def server():
    """Starts the fork server on the first call; returns the socket for requests. Closing the socket ends the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Path(__file__).with_name("fork_server.py")
    subprocess.Popen([sys.executable, program, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


class Forked:
    """A process that runs a command, with the methods of ``subprocess.Popen`` that the tests use."""

    def __init__(self, *arguments, cwd=None, stdin=b"", env=None, entry="cse.cli:main"):
        request = {
            "arguments": [str(each) for each in arguments],
            "folder": str(cwd or os.getcwd()),
            "environment": {**os.environ, **(env or {})},
            "entry": entry,
        }
        (theirs, stdin_pipe), (out, out_pipe), (err, err_pipe) = (os.pipe() for _ in range(3))
        ours, answers = socket.socketpair()
        sent = [theirs, out_pipe, err_pipe, answers.fileno()]
        socket.send_fds(server(), [json.dumps(request).encode()], sent)
        for number in sent[:3]:
            os.close(number)
        answers.close()
        self.found = {}
        self.returncode = None
        self.answers = ours.makefile("r")
        ours.close()
        self.pid = int(self.answers.readline())
        self.threads = [
            threading.Thread(target=target, args=each, daemon=True)
            for target, each in [
                (self.write, (stdin_pipe, stdin)),
                (self.read, ("out", out)),
                (self.read, ("err", err)),
                (self.wait, ()),
            ]
        ]
        for thread in self.threads:
            thread.start()

    def write(self, number, content):
        with open(number, "wb", buffering=0) as stream, contextlib.suppress(BrokenPipeError):
            stream.write(content)

    def read(self, name, number):
        with open(number, "rb") as stream:
            self.found[name] = stream.read()

    def wait(self):
        with self.answers:
            self.returncode = int(self.answers.readline())

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout=None):
        """Waits until the process ends; returns the bytes of standard output and standard error."""
        *readers, waiter = self.threads
        waiter.join(timeout)
        if self.returncode is None:
            os.kill(self.pid, 9)
            raise AssertionError(f"the process did not end within {timeout} s")
        for thread in readers:
            thread.join()
        return self.found["out"], self.found["err"]


def run_forked(*arguments, cwd=None, text=True, stdin=None, env=None):
    """Runs a command in a forked process until it ends; returns a ``subprocess.CompletedProcess``."""
    given = stdin.encode() if isinstance(stdin, str) else stdin or b""
    process = Forked(*arguments, cwd=cwd, stdin=given, env=env)
    out, err = process.communicate()
    if text:
        out, err = out.decode(), err.decode()
    return subprocess.CompletedProcess(["cse", *arguments], process.returncode, out, err)

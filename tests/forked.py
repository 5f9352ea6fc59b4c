"""Runs cse commands in processes forked from a process that has already imported PyTorch and transformers.

Importing them takes longer than most of the commands that the tests run. Each command still runs in a separate process,
with its own arguments, working directory, environment, standard streams, signals and exit status.
"""

import atexit
import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing.reduction import DupFd

# Commands that import PyTorch.
COMMANDS = (
    "train",
    "eval",
    "encode",
    "compare",
    "plot",
    "report",
    "search",
    "similarity",
    "duplicates",
    "cluster",
    "mine",
)
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    [
        *(f"cse.cli.{name}" for name in COMMANDS),
        "cse.training.loop",
        "scipy.stats",
        "transformers.models.bert.modeling_bert",
        "transformers.models.roberta.modeling_roberta",
    ]
)


class Forked:
    """A process that runs a command, with the methods of ``subprocess.Popen`` that the tests use."""

    def __init__(self, *arguments, cwd=None, stdin=b""):
        (theirs, stdin_pipe), (out, out_pipe), (err, err_pipe) = (os.pipe() for _ in range(3))
        streams = [theirs, out_pipe, err_pipe]
        self.process = Command([str(each) for each in arguments], str(cwd or os.getcwd()), streams)
        self.process.start()
        for number in streams:
            os.close(number)
        self.pid = self.process.pid
        self.found = {}
        self.threads = [
            threading.Thread(target=self._write, args=(stdin_pipe, stdin), daemon=True),
            threading.Thread(target=self._read, args=("out", out), daemon=True),
            threading.Thread(target=self._read, args=("err", err), daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _write(self, number, content):
        with open(number, "wb", buffering=0) as stream, contextlib.suppress(BrokenPipeError):
            stream.write(content)

    def _read(self, name, number):
        with open(number, "rb") as stream:
            self.found[name] = stream.read()

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout=None):
        """Waits until the process ends; returns the bytes of standard output and standard error."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"the process did not end within {timeout} s")
        for thread in self.threads:
            thread.join()
        return self.found["out"], self.found["err"]


def run_forked(*arguments, cwd=None, text=True, stdin=None):
    """Runs a command; returns what ``subprocess.run`` returns."""
    process = Forked(*arguments, cwd=cwd, stdin=stdin.encode() if isinstance(stdin, str) else stdin or b"")
    out, err = process.communicate()
    if text:
        out, err = out.decode(), err.decode()
    return subprocess.CompletedProcess(["cse", *arguments], process.returncode, out, err)


class Command(server.Process):
    """The process in which a command runs."""

    def __init__(self, arguments, folder, streams):
        super().__init__(daemon=True)
        self.arguments, self.folder, self.streams = arguments, folder, streams
        self.environment = dict(os.environ)

    def __getstate__(self):
        return {**self.__dict__, "streams": [DupFd(number) for number in self.streams]}

    def run(self):
        for target, stream in enumerate(self.streams):
            os.dup2(stream.detach(), target)
        sys.stdin = os.fdopen(0)  # multiprocessing has replaced stdin by an empty stream
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = ["cse", *self.arguments]
        import plain_processor  # noqa: F401
        from cse.cli import main

        try:
            main()
        finally:
            atexit._run_exitfuncs()  # multiprocessing ends a process without calling these functions

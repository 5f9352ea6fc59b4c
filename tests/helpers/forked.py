"""Runs cse commands in processes forked from one that has imported PyTorch and transformers, the fork server.

These imports take longer than most of the commands that the tests run. Each command still runs in a separate process,
with its own arguments, working directory, environment, standard streams, signals and exit status.

The server reads requests from a socket until the other end is closed. A request is a JSON object with the arguments,
working directory, environment and function of a command, sent together with four file descriptors: standard input,
output and error of the command, and a socket to which the command's process id and exit code are sent. The forked
process ends as any Python process, so that Python calls the command's ``atexit`` functions.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback


@functools.cache
def server():
    """Starts the fork server on the first call; returns the socket for requests. Closing the socket ends the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    path = os.pathsep.join(filter(None, sys.path))  # the functions of tests, too, are run
    subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": path})
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
        tasks = [
            (self.write, (stdin_pipe, stdin)),
            (self.read, ("out", out)),
            (self.read, ("err", err)),
            (self.wait, ()),
        ]
        self.threads = [threading.Thread(target=target, args=each, daemon=True) for target, each in tasks]
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


# --- the server

exit_code = 0


def receive(requests):
    """Forks for each request. In a forked process, returns the request and its streams; in the server, None at the end.

    Only a parent can wait for its child. An intermediate process waits for the command, so that the server can accept
    further requests; the system collects the exit status of the intermediate process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            return None
        *streams, answers = descriptors
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                requests.close()
                os.close(answers)
                return json.loads(message), streams
            for stream in streams:
                os.close(stream)
            os.write(answers, f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def become(request, streams):
    """Applies the streams, working directory, environment and arguments of a request to this process."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["cse", *request["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_at_once():
    """Ends the process with ``exit_code``, but skips the deallocation of modules, which takes a third of a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def serve(descriptor):
    """Forks for each request. Returns in a forked process after its command, and in the server at its end."""
    global exit_code
    from cse.cli.group import PLACES

    atexit.register(end_at_once)  # registered first, so called last
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libraries = (
        "scipy.stats",
        "transformers.models.bert.modeling_bert",
        "transformers.models.roberta.modeling_roberta",
    )
    for module in (*(f"cse.cli.commands.{module}" for module, _ in PLACES.values()), "cse.training.loop", *libraries):
        importlib.import_module(module)
    gc.freeze()
    received = receive(socket.socket(fileno=descriptor))
    if received is not None:
        become(*received)
        import plain_processor  # noqa: F401

        try:
            module, _, function = received[0]["entry"].partition(":")
            getattr(importlib.import_module(module), function)()
        except SystemExit as error:
            exit_code = error.code or 0
        except BaseException:
            traceback.print_exc()
            exit_code = 1


if __name__ == "__main__":
    serve(int(sys.argv[1]))

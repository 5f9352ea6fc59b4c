"""A program that imports PyTorch and transformers once, then forks a process for each cse command that it receives.

The argument of the program is the file descriptor of a socket. The program reads requests from this socket until the
other end is closed. A request is a JSON object with the arguments, working directory, environment and function of a
command, sent together with four file descriptors: standard input, output and error of the command, and a socket to
which the command's process id and exit code are sent. The forked process ends as any Python process, so that Python
calls the command's ``atexit`` functions.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback

from cse.cli.group import PLACES

MODULES = (
    *(f"cse.cli.commands.{module}" for module, _ in PLACES.values()),
    "cse.training.loop",
    "scipy.stats",
    "transformers.models.bert.modeling_bert",
    "transformers.models.roberta.modeling_roberta",
)
REQUEST_BYTES = 1 << 20


def receive(requests):
    """Waits for requests and forks a process for each.

    In a forked process, returns the request and its streams; in the server, returns None once the socket is closed.
    """
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not message:
            return None
        *streams, answers = descriptors
        pid = os.fork()
        if pid == 0:
            pid = os.fork()
            if pid == 0:
                requests.close()
                os.close(answers)
                return json.loads(message), streams
            # Only a parent can wait for its child. This intermediate process waits for the command, so that the
            # server can accept further requests.
            for stream in streams:
                os.close(stream)
            os.write(answers, f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        reap()


def reap():
    """Collects the exit status of the processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


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


exit_code = 0


def serve(descriptor):
    """Forks for each request. Returns in a forked process after its command, and in the server at its end."""
    global exit_code
    atexit.register(end_at_once)  # registered first, so called last
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in MODULES:
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

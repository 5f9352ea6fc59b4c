"""Asks a person for relevance judgements, by single keys in the terminal or on a local web page."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..io import dumps
from . import printing

if TYPE_CHECKING:
    from ..evaluation.labels import Session

ANSWERS = {"y": True, "n": False, "s": None}
KEYS = "y relevant, n not relevant, s skip, u undo, q quit"
# Number of characters of a document that the terminal shows before the key m is pressed.
SHOWN = 2000
# Zero-width joiner and non-joiner, which some scripts need, are not printable for Python.
JOINERS = "\u200c\u200d"


def press(session: Session, key: str) -> bool:
    """Applies a key to the session; unknown keys are ignored. Returns False for q, which ends the session."""
    if key in ANSWERS:
        session.answer(ANSWERS[key])
    elif key == "u":
        session.undo()
    return key != "q"


def in_terminal(session: Session) -> None:
    """Shows one document after another on standard error and reads a key for each, until q is pressed.

    Raises:
        InputError: If standard input is not a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError("standard input: is not a terminal; run the command in a terminal, or add --web")
    whole = False
    with single_keys() as read:
        while True:
            item = session.current()
            if item is None:
                printing.say("\nall documents are judged; u undo, q finish: ")
            else:
                long = len(item.document) > SHOWN and not whole
                document = item.document[:SHOWN] + "\u2026" if long else item.document
                keys = f"{KEYS}, m all {len(item.document):,} characters" if long else KEYS
                query = lines("query:    ", item.query)
                printing.say(f"\n{item.progress}\n{query}\n{lines('document: ', document)}\n{keys}: ")
            key = read()
            whole = key == "m"
            if not press(session, key):
                return


def lines(label: str, text: str) -> str:
    """Returns a text as lines of at most the width of the terminal, without control characters."""
    plain = "".join(each if each.isprintable() or each in JOINERS else " " for each in text)
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(plain, max(width, 30), initial_indent=label, subsequent_indent=" " * len(label))


@contextmanager
def single_keys() -> Iterator[Callable[[], str]]:
    """Context manager with a function that waits for a key and returns it in lower case; the end of input is q.

    Within the context, the terminal does not wait for the Enter key and does not show the keys.
    """
    if sys.platform == "win32":
        yield lambda: click.getchar().lower()
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> str:
        byte = os.read(descriptor, 1)
        return byte.decode("ascii", "replace").lower() if byte not in (b"", b"\x04") else "q"

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def on_page(session: Session, told: Callable[[str], None] = printing.say) -> None:
    """Serves a page on which documents are judged, until q is pressed on it.

    The server accepts connections from this machine only, at a free port. Its address contains a random token, without
    which every request is refused; requests that a page of another address sends are refused as well. The page loads
    nothing from elsewhere.

    Args:
        session: The session.
        told: Called with a message that contains the address of the page.
    """
    with PageServer(session) as server:
        told(f"judge the documents at http://{server.place}/{server.token}/ and press q there to finish")
        server.serve_forever(poll_interval=0.1)


class PageServer(ThreadingHTTPServer):
    """The server of ``on_page``."""

    def __init__(self, session: Session) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.session, self.finished = session, threading.Event()
        self.token, self.lock = secrets.token_urlsafe(24), threading.Lock()
        self.place = f"127.0.0.1:{self.server_port}"
        self.page = (files("cse") / "resources" / "label.html").read_text(encoding="utf8")

    def state(self) -> dict[str, Any]:
        """Returns what the page shows."""
        item = None if self.finished.is_set() else self.session.current()
        return {
            "change": self.session.judgements.changes,
            "finished": self.finished.is_set(),
            "progress": "all documents are judged" if item is None else item.progress,
            "query": None if item is None else item.query,
            "document": None if item is None else item.document,
        }


class PageHandler(BaseHTTPRequestHandler):
    """Answers the requests of the page of ``on_page``."""

    server: PageServer

    def do_GET(self) -> None:
        """Sends the page, or what it shows."""
        place = self._place()
        if place == "":
            nonce = secrets.token_urlsafe(16)
            policy = (
                f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            content = self.server.page.replace("NONCE", nonce)
            self._send(200, "text/html; charset=utf-8", content, {"Content-Security-Policy": policy})
        elif place == "state":
            with self.server.lock:
                self._send_state(200)
        else:
            self._refuse(404)

    def do_POST(self) -> None:
        """Applies a key that was pressed on the page."""
        server = self.server
        if self._place() != "answer" or self.headers.get("Content-Type") != "application/json":
            self._refuse(404)
            return
        try:
            asked = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), 1000)))
            key, change = asked["key"], asked["change"]
        except (TypeError, ValueError, KeyError):
            self._refuse(400)
            return
        with server.lock:
            if server.finished.is_set() or change != server.session.judgements.changes or not isinstance(key, str):
                self._send_state(409)  # the page shows a document that another window has judged
                return
            if not press(server.session, key):
                server.finished.set()
            self._send_state(200)
        if server.finished.is_set():
            threading.Thread(target=server.shutdown).start()

    def _place(self) -> str | None:
        """Returns what follows the token in the path; None if the request must be refused."""
        own = self.server.place
        origin = self.headers.get("Origin")
        _, given, *rest = [*self.path.split("/", 2), "", ""][:3]
        matches = hmac.compare_digest(given.encode(), self.server.token.encode())
        if not matches or self.headers.get("Host") != own or origin not in (None, f"http://{own}"):
            return None
        return rest[0] if self.path.count("/") > 1 else None

    def _send_state(self, status: int) -> None:
        self._send(status, "application/json", dumps(self.server.state()), {})

    def _refuse(self, status: int) -> None:
        self.close_connection = True
        self._send(status, "text/plain", "", {})

    def _send(self, status: int, kind: str, content: str, headers: dict[str, str]) -> None:
        body = content.encode("utf8", "replace")
        caution = {"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        length = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        self.send_response(status)
        for name, value in {**length, **caution, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Prints nothing; the token in the path of a request must not be in a log."""

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

KEYS = "y relevant, n not relevant, s skip, u undo, q quit"
# Number of characters of a document that the terminal shows before the key m is pressed.
SHOWN = 2000
# Zero-width joiner and non-joiner, which some scripts need, are not printable for Python.
JOINERS = "\u200c\u200d"


def in_terminal(session: Session) -> None:
    """Shows one document after another on standard error and reads a key for each, until q is pressed.

    Raises ``InputError`` if standard input is not a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError("standard input: is not a terminal; run the command in a terminal, or add --web")
    width = max(30, min(shutil.get_terminal_size().columns, 100))

    def lines(label: str, text: str) -> str:
        plain = "".join(letter if letter.isprintable() or letter in JOINERS else " " for letter in text)
        return textwrap.fill(plain, width, initial_indent=label, subsequent_indent=" " * len(label))

    key = ""
    with single_keys() as read:
        while True:
            if (item := session.current()) is None:
                printing.say("\nall documents are judged; u undo, q finish: ")
            else:
                document, keys = item["document"], KEYS
                if len(document) > SHOWN and key != "m":
                    keys = f"{KEYS}, m all {len(document):,} characters"
                    document = document[:SHOWN] + "\u2026"
                texts = f"{lines('query:    ', item['query'])}\n{lines('document: ', document)}"
                printing.say(f"\n{item['progress']}\n{texts}\n{keys}: ")
            key = read()
            if not session.press(key):
                return


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


def on_page(session: Session, say: Callable[[str], None] = printing.say) -> None:
    """Serves a page on which documents are judged, until q is pressed on it.

    The server accepts connections from this machine only, at a free port. Its address, which ``say`` prints, contains a
    random token, without which every request is refused; requests that a page of another address sends are refused as
    well. The page loads nothing from elsewhere.
    """
    token, answering, finished = secrets.token_urlsafe(24), threading.Lock(), threading.Event()
    page = (files("cse") / "resources" / "label.html").read_text(encoding="utf8")

    def state() -> str:
        item = None if finished.is_set() else session.current()
        shown: dict[str, Any] = {"progress": "all documents are judged", "query": None, "document": None}
        shown |= item or {}
        return dumps({"change": session.judgements.changes, "finished": finished.is_set(), **shown})

    class Handler(BaseHTTPRequestHandler):
        def place(self) -> str | None:
            """Returns what follows the token in the path; None if the request must be refused."""
            _, part, *rest = self.path.split("/", 2)
            known = hmac.compare_digest(part.encode(), token.encode()) and self.headers.get("Host") == place
            return rest[0] if rest and known and self.headers.get("Origin") in (None, f"http://{place}") else None

        def do_GET(self) -> None:
            match self.place():
                case "":
                    nonce = secrets.token_urlsafe(16)
                    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
                    policy += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
                    self.send(200, "text/html; charset=utf-8", page.replace("NONCE", nonce), policy)
                case "state":
                    with answering:
                        self.send(200, "application/json", state())
                case _:
                    self.send(404)

        def do_POST(self) -> None:
            if self.place() != "answer" or self.headers.get("Content-Type") != "application/json":
                return self.send(404)
            try:
                asked = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), 1000)))
                key, change = str(asked["key"]), asked["change"]
            except (TypeError, ValueError, KeyError):
                return self.send(400)
            with answering:
                if finished.is_set() or change != session.judgements.changes:
                    return self.send(409, "application/json", state())  # another window has judged the document
                if not session.press(key):
                    finished.set()
                self.send(200, "application/json", state())
            if finished.is_set():
                threading.Thread(target=server.shutdown).start()
            return None

        def send(self, status: int, kind: str = "text/plain", content: str = "", policy: str | None = None) -> None:
            body = content.encode("utf8", "replace")
            self.close_connection = self.close_connection or status in (400, 404)
            self.send_response(status)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
            headers |= {"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
            for name, value in (headers | ({"Content-Security-Policy": policy} if policy else {})).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Prints nothing; the token in the path of a request must not be in a log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        place = f"127.0.0.1:{server.server_port}"
        say(f"judge the documents at http://{place}/{token}/ and press q there to finish")
        server.serve_forever(poll_interval=0.1)

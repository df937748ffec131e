"""The web server of `fedbayes watch`: this machine only, reading only, and only for those who know the token."""

import hmac
import secrets
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from fedbayes.errors import CommandError
from fedbayes.watch.pages import TEXT, Answer, Pages

HOST = "127.0.0.1"
PORT = 8765  # unless another is asked for
# Names by which a browser on this machine, or at the other end of a tunnel to it, may know this server. A page of
# somebody else whose name has been made to lead here has its own name in its requests.
NAMES = ("127.0.0.1", "localhost", "::1")
MOST_FIELDS = 2000  # of a query
NO_TOKEN = "This page opens at the address that `fedbayes watch` printed, with its token."
WRONG_HOST = "This page is for browsers on its own machine, at 127.0.0.1 or localhost."
READ_ONLY = "These pages are only for reading."


class Server(ThreadingHTTPServer):
    """Serves until `shutdown`; a thread for each connection, none of which keeps the program alive."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, out_dir: Path, port: int | None = None) -> None:
        """CommandError where the port that was asked for is taken; without one, the usual or any free one."""
        self.token = secrets.token_urlsafe(24)
        self.pages = Pages(out_dir, self.token)
        for attempt in (PORT, 0) if port is None else (port,):
            try:
                super().__init__((HOST, attempt), Handler)
                return
            except OSError as error:
                if port is None and attempt:
                    continue
                raise CommandError(
                    f"Port {attempt} of {HOST} cannot be used ({error.strerror or error}); give another with --port, "
                    "or none."
                ) from None

    def url(self, run: str = "") -> str:
        """Of the list of runs, or of one of them."""
        place = f"run/{quote(run, safe='')}" if run else ""
        return f"http://{HOST}:{self.server_address[1]}/{place}?{urlencode({'token': self.token})}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no news; anything else is a line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"fedbayes: a request could not be answered: {error!r}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedbayes", ""
    timeout = 30  # seconds for a request to come

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def do_GET(self) -> None:
        self._send(self._answer())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.close_connection = True  # what it brings is not read
        self._send(_sentence(HTTPStatus.METHOD_NOT_ALLOWED, READ_ONLY))

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _answer(self) -> Answer:
        if not _is_here(self.headers.get("Host", "")):
            return _sentence(HTTPStatus.FORBIDDEN, WRONG_HOST)
        try:
            address = urlsplit(self.path)
            query = parse_qs(address.query, max_num_fields=MOST_FIELDS)
        except ValueError:
            return _sentence(HTTPStatus.BAD_REQUEST, "This address cannot be read.")
        given = query.get("token", [""])[0]
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode()):
            return _sentence(HTTPStatus.FORBIDDEN, NO_TOKEN)
        parts = [unquote(part) for part in address.path.split("/") if part]
        return self.server.pages.answer(parts, query)

    def _send(self, answer: Answer) -> None:
        same = answer.status == HTTPStatus.OK and self.headers.get("If-None-Match") == answer.tag
        self.send_response(HTTPStatus.NOT_MODIFIED if same else answer.status)
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": "0" if same else str(len(answer.body)),
            "ETag": answer.tag,
            "Cache-Control": "no-store",
            "Content-Security-Policy": f"{answer.policy}; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if not same and self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses have the token in them."""


def _is_here(host: str) -> bool:
    """Whether a Host header names this machine, at whatever port (a tunnel has one of its own)."""
    try:
        return urlsplit(f"//{host}").hostname in NAMES
    except ValueError:
        return False


def _sentence(status: HTTPStatus, words: str) -> Answer:
    return Answer(status, f"{words}\n".encode(), TEXT)

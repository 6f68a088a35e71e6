"""A server that gives prepared answers, whatever it is asked, and remembers what it was asked."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What it answers.

    Attributes:
        missing_bytes: of the body, announced and never sent.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    missing_bytes: int = 0


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]


def error_answer(status: int, code: str, message: str = "it said", **more: str) -> Answer:
    """An error as S3 words it."""
    fields = {"Code": code, "Message": message, **more}
    body = "".join(f"<{name}>{text}</{name}>" for name, text in fields.items())
    return Answer(status, f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{body}</Error>'.encode())


OBJECT = Answer(headers={"ETag": '"x"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT"})
"""An object without content."""


class CannedServer(ThreadingHTTPServer):
    """A running server; `answer` may be changed, or `answers`, for a path; `asked` are the requests so far."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = OBJECT
        self.answers: Callable[[str], Answer] = lambda path: self.answer
        self.asked: list[Asked] = []
        self.scheme = "http"

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Says nothing: clients that trust no certificate end the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: CannedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(
            Asked(self.command, self.path, {name.lower(): text for name, text in self.headers.items()})
        )
        answer = self.server.answers(self.path)
        self.send_response(answer.status)
        for name, text in answer.headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(answer.body) + answer.missing_bytes))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.close_connection = bool(answer.missing_bytes)

    do_CONNECT = do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def canned_server(certificate: tuple[Path, Path] | None = None) -> Iterator[CannedServer]:
    """Runs a server on a free port for the time of the block; a certificate with its key makes it speak TLS."""
    with CannedServer() as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.scheme = "https"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

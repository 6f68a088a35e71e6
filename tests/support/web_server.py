"""A plain web server over a directory: index pages, etags, ranges, and what servers may do otherwise."""

import gzip
import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class WebServer(ThreadingHTTPServer):
    """Attributes tell what it does; `asked` are its requests: method, path, and the headers by lower-case name."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.lists = True
        self.knows_ranges = True
        self.shifts_ranges = False
        self.compresses = False
        self.versions: tuple[str, ...] = ("ETag", "Last-Modified")
        """What it tells of files."""
        self.statuses: dict[str, list[int]] = {}
        """Path -> statuses of its next answers."""
        self.before_range: Callable[[], object] = lambda: None
        self.redirects: dict[str, str] = {}

    def __enter__(self) -> "WebServer":
        threading.Thread(target=self.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # who has read enough hangs up
            super().handle_error(request, client_address)


@contextmanager
def web_server(root: Path) -> Iterator[WebServer]:
    with WebServer(root) as server:
        yield server


class _Handler(SimpleHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].root))

    def send_head(self) -> Any:
        """Everything but directories' pages is answered here; called for GET and HEAD."""
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, self.path, {name.lower(): text for name, text in self.headers.items()}))
        if statuses := self.server.statuses.get(path):
            return self._answer(statuses.pop(0))
        if target := self.server.redirects.get(path):
            return self._answer(302, Location=target)
        if "Range" in self.headers:
            self.server.before_range()
        place = self.translate_path(self.path)
        if os.path.isdir(place):
            if path.endswith("/") and not self.server.lists:
                return self._answer(403)
            return super().send_head()
        if not os.path.isfile(place):
            return self._answer(404)
        return self._send_file(Path(place))

    def _send_file(self, place: Path) -> None:
        data = place.read_bytes()
        versions = {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"',
            "Last-Modified": self.date_time_string(place.stat().st_mtime),
        }
        headers = {name: versions[name] for name in self.server.versions}
        if self.server.compresses:
            return self._answer(200, gzip.compress(data), **{**headers, "Content-Encoding": "gzip"})
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not found or not self.server.knows_ranges:
            return self._answer(200, data, **headers)
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        if first >= len(data):
            return self._answer(416)
        if self.server.shifts_ranges:
            first, last = first + 1, last + 1
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self._answer(206, data[first : last + 1], **headers)

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass

"""A server that speaks the XML protocol of Google Cloud Storage: moto's for S3, with what differs translated.

Buckets, listings and uploads in parts are alike in both protocols. What differs are generations, which each change of
an object counts, conditions on them, and the header of copies. Credentials are not looked at. What Google's own server
does otherwise is not seen here.

Run as a module it serves until it is killed.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.support.s3_client import s3_client
from tests.support.servers import server_process

_SERVE = (sys.executable, "-m", "tests.support.gcs_server")
_STARTED = re.compile(r"Running on (http://127\.0\.0\.1:[0-9]+)")
_ROOT = Path(__file__).parents[2]
_CONDITION = "HTTP_X_GOOG_IF_GENERATION_MATCH"
_COPY = "HTTP_X_GOOG_COPY_SOURCE"
_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_CHANGED = b"<?xml version='1.0'?><Error><Code>PreconditionFailed</Code><Message>It has changed.</Message></Error>"

Environ = dict[str, Any]
Respond = Callable[..., Any]


@dataclass(frozen=True)
class GcsServer:
    """A running server, with an empty bucket."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes clients talk to it, without credentials."""
        return {"STORAGE_EMULATOR_HOST": self.url}


@contextmanager
def gcs_server(directory: Path, bucket: str) -> Iterator[GcsServer]:
    """Runs a server on a free port for the time of the block; its log is in the directory."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    with server_process(_SERVE, _STARTED, directory / "gcs.log", environment) as started:
        s3_client(started[1]).create_bucket(Bucket=bucket)
        yield GcsServer(started[1])


class Translated:
    """S3's application behind the other protocol."""

    def __init__(self, s3: Callable[[Environ, Respond], Any]) -> None:
        self._s3 = s3
        self._generations: dict[str, int] = {}
        self._count = 1_700_000_000_000_000
        self._lock = threading.Lock()

    def __call__(self, environ: Environ, respond: Respond) -> Any:
        """Answers a request."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        environ["HTTP_AUTHORIZATION"] = _SIGNED  # what it says is not checked
        if source := environ.pop(_COPY, None):
            environ["HTTP_X_AMZ_COPY_SOURCE"] = source
        if method in ("GET", "HEAD"):
            return self._s3(environ, self._with_generation(path, respond))
        asked = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
        changes = (
            "partNumber" not in asked and "uploads" not in asked and not (method == "DELETE" and "uploadId" in asked)
        )
        if not changes:
            return self._s3(environ, respond)
        with self._lock:  # a condition, and what depends on it
            if _CONDITION in environ and int(environ[_CONDITION]) != self._generations.get(path, 0):
                status = HTTPStatus.PRECONDITION_FAILED
                respond(f"{status.value} {status.phrase}", [("Content-Type", "application/xml")])
                return [_CHANGED]
            return list(self._s3(environ, self._counted(path, method, respond)))

    def _counted(self, path: str, method: str, respond: Respond) -> Respond:
        def answer(status: str, headers: list[tuple[str, str]], *more: object) -> Any:
            if status.startswith("2"):
                self._count += 1
                self._generations[path] = self._count
                if method == "DELETE":
                    del self._generations[path]
            return self._with_generation(path, respond)(status, headers, *more)

        return answer

    def _with_generation(self, path: str, respond: Respond) -> Respond:
        def answer(status: str, headers: list[tuple[str, str]], *more: object) -> Any:
            generation = self._generations.get(path)
            added = [("x-goog-generation", str(generation))] if generation else []
            return respond(status, headers + added, *more)

        return answer


def _serve() -> None:
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", 0, Translated(create_backend_app("s3")), threaded=True)


if __name__ == "__main__":
    _serve()

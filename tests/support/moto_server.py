"""A second S3 server, of another kind than rclone's: moto's, which keeps objects in its memory, and checks no keys.

As S3 does, it judges conditions of PutObject and DeleteObject, and answers ranges with 206.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.s3_client import s3_client
from tests.support.s3_server import S3Server
from tests.support.servers import server_process

_SERVE = (sys.executable, "-m", "moto.server", "--host=127.0.0.1", "--port=0")
_STARTED = re.compile(r"Running on (https?://127\.0\.0\.1:[0-9]+)")


@contextmanager
def moto_server(
    directory: Path, bucket: str, *, certificate: tuple[Path, Path] | None = None, authority: Path | None = None
) -> Iterator[S3Server]:
    """Runs a server on a free port for the time of the block, with an empty bucket; its log is in the directory.

    A certificate, with its key, makes it speak TLS; the authority is the one that it is of.
    """
    tls = [f"--ssl-cert={certificate[0]}", f"--ssl-key={certificate[1]}"] if certificate else []
    with server_process([*_SERVE, *tls], _STARTED, directory / "moto.log", os.environ) as started:
        s3_client(started[1], verify=str(authority) if authority else None).create_bucket(Bucket=bucket)
        yield S3Server(started[1], directory, virtual_hosts=False, control_url="")

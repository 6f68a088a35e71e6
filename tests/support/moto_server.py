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
_STARTED = re.compile(r"Running on (http://127\.0\.0\.1:[0-9]+)")


@contextmanager
def moto_server(directory: Path, bucket: str) -> Iterator[S3Server]:
    """Runs a server on a free port for the time of the block, with an empty bucket; its log is in the directory."""
    with server_process(_SERVE, _STARTED, directory / "moto.log", os.environ) as started:
        s3_client(started[1]).create_bucket(Bucket=bucket)
        yield S3Server(started[1], directory, virtual_hosts=False, control_url="")

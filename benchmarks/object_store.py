"""An S3 server for the time of a scenario that costs next to nothing beside its clients: nginx.

nginx sends objects by sendfile and receives those that are written; `s3_answers.py` behind it knows the rest of S3. It
listens twice: at one port each request waits before it is answered. Signatures are not checked.
"""

import os
import pwd
import re
import shutil
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.errors import BenchmarkError
from benchmarks.results import Traffic
from benchmarks.server import free_port
from tests.support.s3_server import environment_for
from tests.support.s3_traffic import parse_call
from tests.support.servers import server_process

SOURCE_BUCKET, TARGET_BUCKET = "source", "target"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NO_NGINX = "there is no nginx here: apt-get install nginx-light"
_HERE = Path(__file__).parent
_CONFIGURATION = "nginx.conf", "nginx_locations.conf"
_ONLY_WE = re.compile(r"Reading: 0 Writing: 1 ")
"""Of connections, those with requests under way."""
_SETTLE_SECONDS = 10


class ObjectStore:
    """A running object store; its objects are the files below a directory."""

    def __init__(self, work: Path, plain_port: int, delayed_port: int, control_port: int) -> None:
        self._work = work
        self._log = work / "requests.log"
        self._plain_port = plain_port
        self._delayed_port = delayed_port
        self._control_url = f"http://127.0.0.1:{control_port}"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._log_began = 0
        self._server_began = 0.0

    def environment(self, *, delayed: bool) -> Mapping[str, str]:
        """What makes reshard and rclone talk to it."""
        url = f"http://127.0.0.1:{self._delayed_port if delayed else self._plain_port}"
        return {
            **environment_for(url, "nobody", "checks it"),
            "FSSPEC_CONFIG_DIR": os.devnull,
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_S3_PROVIDER": "Rclone",
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_ENDPOINT": url,
        }

    def begin(self) -> None:
        """Count from nothing."""
        self._await_log()
        self._assemble()
        self._log_began = self._log.stat().st_size
        self._server_began = self._server_seconds()

    def traffic(self) -> Traffic:
        """What went to and fro since then. Afterwards, each object that was written is a file."""
        self._await_log()
        server_seconds = self._server_seconds() - self._server_began
        self._assemble()
        with self._log.open() as log:
            log.seek(self._log_began)
            return _traffic(log.read().splitlines(), server_seconds)

    def _await_log(self) -> None:
        """Wait until all requests have ended."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not _ONLY_WE.search(self._ask("GET", "/status")):
            if time.monotonic() > deadline:
                raise BenchmarkError("the object store still has requests under way")
            time.sleep(0.01)

    def _assemble(self) -> None:
        """Have the parts of uploads put together."""
        self._ask("POST", "/")

    def _server_seconds(self) -> float:
        """Processor time of the server's processes so far; they work in its directory."""
        processes = [each for each in psutil.Process().children(recursive=True) if each.cwd() == str(self._work)]
        return sum(times.user + times.system for times in (process.cpu_times() for process in processes))

    def _ask(self, method: str, path: str) -> str:
        with self._open(urllib.request.Request(self._control_url + path, method=method)) as answer:
            text: str = answer.read().decode()
            return text


@contextmanager
def object_store(directory: Path, delay_seconds: float) -> Iterator[ObjectStore]:
    """Run an object store whose buckets are the directories in `directory`; it does not outlive this process.

    Its own files are beside `directory`, for parts become objects by renaming them.

    Raises:
        BenchmarkError: there is no nginx, or it does not start.
    """
    if NGINX is None:
        raise BenchmarkError(NO_NGINX)
    work = directory.with_name(f"{directory.name}.nginx")
    for bucket in (SOURCE_BUCKET, TARGET_BUCKET):
        (directory / bucket).mkdir(parents=True, exist_ok=True)
    for name in ("bodies", "temp", "uploads"):
        (work / name).mkdir(parents=True)
    (work / "buckets").symlink_to(directory)
    ports = [free_port() for _ in range(3)]
    words = dict(zip(("PLAIN_PORT", "DELAYED_PORT", "CONTROL_PORT"), map(str, ports), strict=True))
    for name in _CONFIGURATION:
        (work / name).write_text(_filled(name, {**words, "DELAY_SECONDS": str(delay_seconds)}))
    # an own directory each: paths of sockets must be short, so they are relative
    there = ["env", f"--chdir={work}"]
    answer = [*there, sys.executable, _HERE / "s3_answers.py", "answers.sock", directory, work / "uploads"]
    serve = [*there, NGINX, "-p", work, "-c", _CONFIGURATION[0], "-e", "stderr", *_user()]
    environment = {"PATH": os.environ["PATH"]}
    with ExitStack() as running:
        try:
            running.enter_context(server_process(answer, re.compile("ready"), work / "answers.log", environment))
            running.enter_context(server_process(serve, re.compile("start worker "), work / "nginx.log", environment))
        except RuntimeError as error:
            raise BenchmarkError(f"object store: {error}") from error
        yield ObjectStore(work, *ports)


def _filled(name: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(words), lambda found: words[found[0]], (_HERE / name).read_text())


def _user() -> Sequence[str]:
    """Root's nginx would else work as a user who may not enter our directories."""
    return ["-g", f"user {pwd.getpwuid(0).pw_name};"] if os.geteuid() == 0 else []


def _traffic(lines: Sequence[str], server_seconds: float) -> Traffic:
    sent: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    received_bytes = 0
    for line in lines:
        method, sent_bytes, body_bytes, target = line.split(" ")
        call = parse_call(method, target, {}, virtual_hosts=False)
        sent[call.bucket] += int(sent_bytes)
        requests[call.operation] += 1
        received_bytes += 0 if body_bytes == "-" else int(body_bytes)
    return Traffic(
        source_sent_bytes=sent[SOURCE_BUCKET],
        target_sent_bytes=sent[TARGET_BUCKET],
        received_bytes=received_bytes,
        requests=requests,
        server_seconds=server_seconds,
    )

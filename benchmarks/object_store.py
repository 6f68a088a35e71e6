"""An object store for the time of a scenario: an S3 server, and before it a proxy that counts and delays requests.

Both have a process of their own: the proxy's threads would hold up the one that measures.
"""

import multiprocessing
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError
from benchmarks.results import Traffic
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import RCLONE, S3Server, s3_server

SOURCE_BUCKET, TARGET_BUCKET = "source", "target"


class ObjectStore:
    """A running object store; its objects are the files below a directory.

    Attributes:
        environment: what makes reshard and rclone talk to it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.environment: Mapping[str, str] = self._answer()

    def begin(self, latency_seconds: float) -> None:
        """Sees the files that are there now, and counts from nothing; each request takes so much longer from now on.

        Etags of the source are computed at once, since the first who asked for them would wait for it.
        """
        self._connection.send(latency_seconds)
        self._answer()

    def traffic(self) -> Traffic:
        """What went to and fro since then."""
        self._connection.send(None)
        traffic: Traffic = self._answer()
        return traffic

    def _answer(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError as error:
            raise BenchmarkError("the object store has ended; its output is above") from error


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """Runs an object store whose buckets are the directories in `directory`; it does not outlive this process.

    Raises:
        BenchmarkError: it does not start.
    """
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(directory, its), name="object-store")
    process.start()
    its.close()  # the process has it now; when it ends, we notice
    try:
        yield ObjectStore(ours)
    finally:
        ours.close()
        process.join()


def _serve(directory: Path, connection: Connection) -> None:
    """Does what is asked for until nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for who asks
    with s3_server(directory, (SOURCE_BUCKET, TARGET_BUCKET)) as server, s3_proxy(server) as proxy:
        connection.send(_environment(proxy.environment))
        while True:
            try:
                asked: float | None = connection.recv()
            except EOFError:
                return
            if asked is None:
                connection.send(_traffic(proxy))
            else:
                _know_etags(server)
                proxy.begin_anew()
                proxy.latency_seconds = asked
                connection.send("begun")


def _environment(s3: Mapping[str, str]) -> dict[str, str]:
    return {
        **s3,
        "FSSPEC_CONFIG_DIR": os.devnull,
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "Rclone",
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_ENDPOINT": s3["AWS_ENDPOINT_URL"],
    }


def _know_etags(server: S3Server) -> None:
    """Has the server compute them: it does so when it lists objects, and remembers them until it looks again."""
    server.look_again()
    command = [str(RCLONE), "size", f":s3:{SOURCE_BUCKET}"]
    environment = {"PATH": os.environ["PATH"], **_environment(server.environment)}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _traffic(proxy: S3Proxy) -> Traffic:
    exchanges = proxy.exchanges()
    sent: Counter[str] = Counter()
    for exchange in exchanges:
        sent[exchange.call.bucket] += exchange.sent_bytes
    return Traffic(
        source_sent_bytes=sent[SOURCE_BUCKET],
        target_sent_bytes=sent[TARGET_BUCKET],
        received_bytes=sum(exchange.received_bytes for exchange in exchanges),
        requests=Counter(exchange.call.operation for exchange in exchanges),
    )

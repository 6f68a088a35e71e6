"""A real PostgreSQL, Debian's, with an empty database of its own."""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.prefect_server import free_port
from tests.support.servers import server_process

_PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
HAS_POSTGRES = _PROGRAMS is not None
needs_postgres = pytest.mark.skipif(not HAS_POSTGRES, reason="needs Debian's postgresql")
_READY = re.compile("database system is ready to accept connections")
_USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""


@contextmanager
def postgres_server(password: str) -> Iterator[dict[str, str]]:
    """Runs a server for the time of the block; yields the settings of a Prefect server that uses its database."""
    with tempfile.TemporaryDirectory(prefix="reshard-postgres-") as directory:  # its user cannot reach pytest's
        data, port = _new_cluster(Path(directory), password), free_port()
        options = ["-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-F"]
        command = _as_user([_programs() / "postgres", *options])
        with server_process(command, _READY, data.with_name("postgres.log"), dict(os.environ)):
            yield {
                "PREFECT_SERVER_DATABASE_DRIVER": "postgresql+asyncpg",
                "PREFECT_SERVER_DATABASE_HOST": "127.0.0.1",
                "PREFECT_SERVER_DATABASE_PORT": str(port),
                "PREFECT_SERVER_DATABASE_NAME": "postgres",
                "PREFECT_SERVER_DATABASE_USER": "prefect",
                "PREFECT_SERVER_DATABASE_PASSWORD": password,
            }


def _new_cluster(directory: Path, password: str) -> Path:
    """Make an empty database below a directory, and return its place."""
    data = directory / "data"
    (directory / "password").write_text(password)
    for path in (directory, directory / "password"):
        _give(path)
    command = [_programs() / "initdb", "--pgdata", data, "--username", "prefect", "--auth", "scram-sha-256"]
    subprocess.run(
        _as_user([*command, "--pwfile", directory / "password", "--encoding", "UTF8", "--no-sync"]),
        cwd="/",
        check=True,
        capture_output=True,
    )
    return data


def _programs() -> Path:
    assert _PROGRAMS is not None
    return _PROGRAMS


def _as_user(command: Sequence[object]) -> list[str]:
    words = [str(word) for word in command]
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *words] if _is_root() else words


def _give(path: Path) -> None:
    """Let the user reach a file or directory of pytest's, which is root's alone."""
    if _is_root():
        shutil.chown(path, _USER, _USER)
        for parent in path.parents:
            if parent.stat().st_uid == os.getuid() and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)


def _is_root() -> bool:
    return os.getuid() == pwd.getpwnam("root").pw_uid

"""How many arenas a process's threads have, by the allocator's own account."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import PROJECT

SHARED = 4
THREADS = 12

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an allocator of glibc's")


def arenas(tmp_path: Path, url: str, **environment: str) -> int:
    """The number of arenas after a command that names a URL, and threads that need memory at the same time."""
    code = f"""
import ctypes, sys, threading
from reshard.cli.main import main
sys.argv = ["reshard", "inspect", {url!r}]
try:
    main()
except SystemExit as end:
    assert end.code, "there is nothing to inspect"
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier({THREADS})
def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen({str(tmp_path / "info")!r}.encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), sys.executable, "-c", code]
    subprocess.run(command, cwd=PROJECT, capture_output=True, check=True)
    return (tmp_path / "info").read_text().count("<heap nr=")


def test_threads_share_arenas_where_a_url_is_named(tmp_path: Path) -> None:
    assert arenas(tmp_path, "memory://nowhere") == SHARED
    assert arenas(tmp_path, "/nowhere") > SHARED


def test_a_setting_of_the_user_counts(tmp_path: Path) -> None:
    assert arenas(tmp_path, "memory://nowhere", MALLOC_ARENA_MAX="2") == 2

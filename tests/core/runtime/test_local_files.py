"""Only regular files are opened, without waiting."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.runtime.local_files import NotRegularError, check_regular, is_irregular, open_regular
from tests.support.special_files import make_socket


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
def test_what_is_no_file_is_named(tmp_path: Path, make: Callable[[Path], None], kind: str, flags: int) -> None:
    make(tmp_path / "x")
    with pytest.raises(NotRegularError, match=f"{kind}, not a regular file") as raised:
        open_regular(str(tmp_path / "x"), flags)
    assert is_irregular(raised.value)


def test_directories_and_links_in_circles(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as directory:
        check_regular(str(tmp_path))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links") as loop:
        check_regular(str(tmp_path / "loop"))
    with pytest.raises(FileNotFoundError) as missing:
        check_regular(str(tmp_path / "nothing"))
    assert [is_irregular(each.value) for each in (directory, loop, missing)] == [True, True, False]


def test_files_are_opened_also_through_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with open(open_regular(str(tmp_path / "link")), "rb") as file:
        assert file.read() == b"abc"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotRegularError):
        check_regular("/dev/null")
    check_regular(str(tmp_path / "file"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_a_server_holds_for_a_client_is_waited_for(tmp_path: Path) -> None:
    """A write lease of another process, as a file server takes for its clients; its holder has to give it up."""
    file = tmp_path / "x"
    file.write_bytes(b"held")
    program = (
        "import fcntl, os, signal, sys\n"
        "held = os.open(sys.argv[1], os.O_RDWR)\n"
        "signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK))\n"
        "fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('held', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with open(open_regular(str(file)), "rb") as opened:
                assert opened.read() == b"held"
        finally:
            holder.kill()

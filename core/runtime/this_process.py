"""What is known of this process: its user, its machine, and the most memory that it has held."""

import getpass
import os
import re
import socket
from pathlib import Path

_STATUS = Path("/proc/self/status")
_HIGH_WATER = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def user_name() -> str:
    """Return the name of this process's user, or the number of one without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def peak_memory_bytes() -> int | None:
    """Return the most memory that this process has held since it began; None where the system does not tell.

    Linux's own figure: `getrusage` gives a child at least what its parent held.
    """
    try:
        found = _HIGH_WATER.search(_STATUS.read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None

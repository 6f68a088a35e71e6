"""Files that are neither regular nor directories."""

import os
import socket
from pathlib import Path


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        directory = os.open(path.parent, os.O_PATH)
        made.bind(f"/proc/self/fd/{directory}/{path.name}")  # a socket's whole path may have 107 bytes
        os.close(directory)

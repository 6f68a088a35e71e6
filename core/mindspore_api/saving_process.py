"""Checkpoint files written by a process of their own, which takes nothing from the training but a copy of its values.

MindSpore forks. A fork of a process with threads may inherit a lock that nobody opens again: MindSpore gives the child
5 s for a first sign, then starts another. Here the child is a new Python. The copy is in anonymous memory (memfd) of
both processes: it needs no room in /dev/shm, and is gone with the last of them, however they end.

If the training is killed, the child finishes the file. SIGTERM to the child ends it without a file. What a killed child
has written is removed by the training; if that was killed too, by a later save of the next one.
"""

import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from errno import EIO
from typing import Any

from reshard.core.files.block_writing import FileKind
from reshard.core.files.model import OutputEntry
from reshard.core.mindspore_api.failures import writing
from reshard.core.mindspore_api.saving import described_values, write_values
from reshard.core.runtime.records import Record
from reshard.core.storage.publishing import remove_unfinished
from reshard.core.storage.stores import check_lasting
from reshard.core.storage.urls import Location, parse_url

_COMMAND = f"from {__name__} import main; main()"

_SIGNALLED = 128
"""Exit codes above this one are those of processes that a signal ended, as in shells."""


class _Order(Record):
    """What the child is to write.

    Attributes:
        memory: file descriptor of the values' bytes, one entry after another.
    """

    url: str
    kind: FileKind
    entries: list[OutputEntry]
    memory: int


class Snapshot:
    """The values of a file at the time that this is made, ready to be saved by another process."""

    def __init__(self, location: Location, values: Any, kind: FileKind) -> None:
        url = str(location)
        check_lasting(url)
        entries, contents_of = described_values(location, values, kind)
        memory = os.memfd_create("reshard-checkpoint")
        try:
            with open(memory, "wb", closefd=False) as file:
                for entry in entries:
                    if entry.text is None:
                        file.write(contents_of(entry.name))
        except BaseException:
            os.close(memory)
            raise
        self._location = location
        self._order = _Order(url, kind, entries, memory)

    def save(self) -> None:
        """Write the file, once, in a process of its own, and wait for it.

        Raises:
            OSError: the file cannot be written, or the process was killed.
        """
        memory = self._order.memory
        try:
            with subprocess.Popen(
                [sys.executable, "-c", _COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[memory],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            ) as process:
                answer, _ = process.communicate(pickle.dumps(self._order))
        finally:
            os.close(memory)
        if process.returncode:
            ended = _reason(process.returncode)
            text = f"{self._order.url}: the process that was saving it ended early: {ended}"
            raise OSError(EIO, f"{text}{self._removed_remains()}")
        number, message = json.loads(answer)
        if message:
            raise OSError(number, message)

    def _removed_remains(self) -> str:
        """Remove what a child that has ended early left unfinished; return what to add to a message if that fails."""
        location = self._location
        try:
            remove_unfinished(location.parent, lambda name: name.startswith(f".{location.name}."))
        except OSError as error:
            return f"; what it left unfinished could not be removed: {error}"
        return ""


def _reason(code: int) -> str:
    """Format how a process ended that gave no answer."""
    number = -code if code < 0 else code - _SIGNALLED
    return signal.Signals(number).name if number in set(signal.Signals) else f"exit code {code}"


def main() -> None:
    """Carry out the order on stdin, and answer with errno and message of what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the training, which waits for this file
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(_SIGNALLED + number))  # what is written is removed
    order = pickle.load(sys.stdin.buffer)
    number, message = 0, ""
    try:
        with writing():
            _write(order)
    except Exception as error:
        number, message = getattr(error, "errno", None) or EIO, str(getattr(error, "strerror", None) or error)
    with suppress(BrokenPipeError):  # the training is gone
        sys.stdout.write(json.dumps([number, message]))
        sys.stdout.flush()


def _write(order: _Order) -> None:
    places: dict[str, tuple[int, int]] = {}
    total = 0
    for entry in order.entries:
        start = total
        total += 0 if entry.text is not None else entry.size_bytes
        places[entry.name] = start, total
    memory = memoryview(mmap.mmap(order.memory, total, prot=mmap.PROT_READ) if total else b"")

    def contents_of(name: str) -> memoryview:
        start, stop = places[name]
        return memory[start:stop]

    write_values(parse_url(order.url), order.kind, order.entries, contents_of)

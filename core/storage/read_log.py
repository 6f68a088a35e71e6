"""The documents that a run reads whole, such as strategies and configurations: their SHA-256, as it read them.

Hashed later, a document might be another one by then.
"""

import hashlib
from contextlib import AbstractContextManager
from contextvars import ContextVar
from threading import Lock

from reshard.core.runtime.context import having
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location


class ReadDocument(Record):
    """A document that was read whole: its size and SHA-256."""

    url: str
    size_bytes: int
    sha256: str


class ReadLog:
    """The documents read so far, one entry for each content that each had; safe for use by many threads.

    One that is read again may be another one by then, and both may have decided something.
    """

    def __init__(self) -> None:
        self._documents: set[ReadDocument] = set()
        self._lock = Lock()

    def add(self, location: Location, data: bytes) -> None:
        """Take a document that was read."""
        document = ReadDocument(str(location), len(data), hashlib.sha256(data).hexdigest())
        with self._lock:
            self._documents.add(document)

    @property
    def documents(self) -> tuple[ReadDocument, ...]:
        """The documents, by URL."""
        with self._lock:
            return tuple(sorted(self._documents, key=lambda document: (document.url, document.sha256)))


_current: ContextVar[ReadLog | None] = ContextVar("reshard_read_log", default=None)
_planned_from: ContextVar[tuple[ReadDocument, ...]] = ContextVar("reshard_planned_from", default=())


def logging_reads(log: ReadLog | None) -> AbstractContextManager[ReadLog | None]:
    """Log the documents that are read inside the block; None: log none."""
    return having(_current, log)


def note_read(location: Location, data: bytes) -> None:
    """Log a document that was just read whole, if reads are logged."""
    log = _current.get()
    if log is not None:
        log.add(location, data)


def planned_from(log: ReadLog | None) -> AbstractContextManager[tuple[ReadDocument, ...]]:
    """Keep the documents that a plan was made from for what is done by it, inside the block."""
    return having(_planned_from, log.documents if log else ())


def documents_planned_from() -> tuple[ReadDocument, ...]:
    """The documents that this context's plan was made from, as far as reads were logged."""
    return _planned_from.get()

"""Sends an object while it is being written, in parts, several of them at once.

The object appears, whole, when the upload is completed, or never. The client takes the parts from an iterator, in a
thread of its own, and aborts the upload if the iterator raises or a request fails: the service would keep the parts,
unseen, and charge for them. It repeats each request of an upload by itself, and knows nothing of an upload whose
beginning was carried out without an answer, nor of parts that arrive after it has been aborted; so after a failed
request, all uploads of the object that are left are aborted.

The client completes the upload as soon as it has sent the last part. That one is sent alone, when the others are there
and the claim to write has been checked: so little time passes in which another run may take over.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.store import Buffer
from reshard.core.storage.write_guard import check_claim

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_LOOK_SECONDS = 0.1
"""Interval of looks if the upload has failed, while parts are being sent."""


class DiscardedUploadError(Exception):
    """The file is not to be completed."""


class _Part(bytearray):
    """Bytes that the client sends from where they are, and lets go of when the service has them."""

    room: "queue.SimpleQueue[None] | None" = None
    """Where there is room for another part then."""

    def __del__(self) -> None:
        if self.room is not None:
            self.room.put(None)  # as a simple queue allows in any thread at any moment


class ObjectUpload:
    """A file being sent, front to back."""

    def __init__(
        self, client: Callable[[], "Client"], key: str, buffers: UploadBuffers, abort_left: Callable[[], None]
    ) -> None:
        self._client = client
        self._key = key
        self._buffers = buffers
        self._abort_left = abort_left
        self._part = _Part()
        self._parts: queue.SimpleQueue[_Part | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sent: Future[None] | None = None
        self._discarded = False

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`."""
        view = memoryview(buffer).cast("B")
        while view:
            if len(self._part) == self._buffers.part_bytes:
                self._hand_over()
            taken = view[: self._buffers.part_bytes - len(self._part)]
            self._part += taken
            view = view[len(taken) :]

    def finish(self) -> None:
        """Send the rest, and make the object appear."""
        import obstore

        if self._sent is None:  # small files by one request
            obstore.put(self._client(), self._key, self._part, use_multipart=False)
            return
        for _ in range(self._buffers.ahead):
            self._await_room(self._sent)
        check_claim()
        self._parts.put(self._part)
        self._parts.put(None)
        self._sent.result()

    def discard(self) -> None:
        """Abort the upload."""
        self._discarded = True
        if self._sent is None:
            return
        self._parts.put(None)
        error = self._sent.exception()
        if error is not None and not isinstance(error, DiscardedUploadError):
            self._abort_left()

    def _hand_over(self) -> None:
        """Give a full part to the client when there is room for it, and begin another one."""
        if self._sent is None:
            self._sent = self._begin()
        self._await_room(self._sent)
        self._part.room = self._room
        self._parts.put(self._part)
        self._part = _Part()

    def _await_room(self, sent: "Future[None]") -> None:
        while True:
            if sent.done():
                sent.result()
            with suppress(queue.Empty):
                return self._room.get(timeout=_LOOK_SECONDS)

    def _begin(self) -> "Future[None]":
        for _ in range(self._buffers.ahead):
            self._room.put(None)
        sent: Future[None] = Future()
        run = copy_context().run
        threading.Thread(target=run, args=(self._upload, sent), daemon=True, name="reshard-upload").start()
        return sent

    def _upload(self, sent: "Future[None]") -> None:
        import obstore

        try:
            obstore.put(
                self._client(),
                self._key,
                self._taken(),
                use_multipart=True,
                chunk_size=self._buffers.part_bytes,
                max_concurrency=self._buffers.ahead,
            )
        except BaseException as error:  # raised by the next call
            sent.set_exception(error)
        else:
            sent.set_result(None)

    def _taken(self) -> Iterator[_Part]:
        """Yield the parts; raise if the object must not appear."""
        while (part := self._parts.get()) is not None:
            yield part
            del part  # nothing but the client holds it
        if self._discarded:
            raise DiscardedUploadError

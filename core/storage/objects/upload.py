"""Sends an object while it is being written, in parts, several of them at once.

The object appears, whole, when the upload is completed, or never. The client takes the parts from an iterator, in a
thread of its own, and aborts the upload if the iterator raises: the service would keep the parts, unseen, and charge
for them.
"""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.store import Buffer
from reshard.core.storage.write_guard import check_claim

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_LOOK_SECONDS = 0.1
"""Interval of looks if the upload has failed, while it takes no part."""


class DiscardedUploadError(Exception):
    """The file is not to be completed."""


class ObjectUpload:
    """A file being sent, front to back."""

    def __init__(self, client: "Client", key: str, buffers: UploadBuffers) -> None:
        self._client = client
        self._key = key
        self._buffers = buffers
        self._part = bytearray()
        # each part is a buffer of its own: the client sends it from where it is
        self._parts: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self._asked = threading.Semaphore(0)
        """Counts what the client has asked for and not got: no part waits for it but the one being filled."""
        self._sent: Future[None] | None = None
        self._discarded = False

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`."""
        view = memoryview(buffer).cast("B")
        while view:
            if len(self._part) == self._buffers.part_bytes:
                self._send()
            taken = view[: self._buffers.part_bytes - len(self._part)]
            self._part += taken
            view = view[len(taken) :]

    def finish(self) -> None:
        """Send the rest, and make the object appear."""
        import obstore

        if self._sent is None:  # small files by one request
            obstore.put(self._client, self._key, self._part, use_multipart=False)
            return
        self._send()
        self._hand_over(None)
        self._sent.result()

    def discard(self) -> None:
        """Abort the upload."""
        self._discarded = True
        if self._sent is None:
            return
        self._parts.put(None)
        error = self._sent.exception()
        if error is not None and not isinstance(error, DiscardedUploadError):
            raise error

    def _send(self) -> None:
        if self._sent is None:
            self._sent = Future()
            run = copy_context().run
            threading.Thread(target=run, args=(self._upload, self._sent), daemon=True, name="reshard-upload").start()
        self._hand_over(self._part)
        self._part = bytearray()

    def _hand_over(self, part: bytearray | None) -> None:
        assert self._sent is not None
        while not self._asked.acquire(timeout=_LOOK_SECONDS):
            if self._sent.done():
                self._sent.result()
        self._parts.put(part)

    def _upload(self, sent: "Future[None]") -> None:
        import obstore

        try:
            obstore.put(
                self._client,
                self._key,
                self._taken(),
                use_multipart=True,
                chunk_size=self._buffers.part_bytes,
                max_concurrency=self._buffers.ahead,
            )
        except BaseException as error:  # raised by whoever writes
            sent.set_exception(error)
        else:
            sent.set_result(None)

    def _taken(self) -> Iterator[bytearray]:
        """Yield the parts; raise if the object must not appear."""
        self._asked.release()
        while (part := self._parts.get()) is not None:
            yield part
            self._asked.release()
        if self._discarded:
            raise DiscardedUploadError
        check_claim()

"""Sends a file to an S3 object store while it is being written, in parts, several of them at once.

The object appears, whole, when the upload is completed, or never. The parts of a failed upload are removed: the storage
would keep them, unseen, and charge for them. (fsspec's own files send one part at a time, and take memory for parts of
50 MiB.)
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import datetime
from functools import partial
from io import BytesIO
from operator import itemgetter
from typing import Any

from reshard.core.errors import StorageError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.records import Record
from reshard.core.storage.filesystems import speaks_s3
from reshard.core.storage.transfers import requested, submitted
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim

Buffer = bytes | bytearray | memoryview

SLOWEST_BYTES_PER_SECOND = 32 * 2**10
"""A slower request is canceled and repeated; 32 concurrent requests are allowed 1 MiB/s at least."""
COPIED_PART_BYTES = 512 * 2**20
"""Larger objects are copied in such parts: S3 copies at most 5 GiB in one request, and slowly."""
_COPIES_AT_ONCE = 8

_Part = dict[str, Any]


def takes_parts(location: Location) -> bool:
    """True if a storage speaks the S3 protocol."""
    return speaks_s3(type(location.fs))


class Upload:
    """A file being sent, front to back."""

    def __init__(self, location: Location, buffers: UploadBuffers) -> None:
        self._location = location
        self._bucket, self._key, _ = location.fs.split_path(location.path)
        self._part_bytes = buffers.part_bytes
        self._upload_id: str | None = None
        self._creations = 0
        # the client sends a BytesIO without blocking other requests, which it would with large bytes
        self._buffer = BytesIO()
        self._ahead = buffers.ahead
        self._keeps_first = buffers.keeps_first
        self._first: BytesIO | None = None
        """The first part, if it may be changed until all others are sent."""
        self._in_flight: deque[tuple[Future[_Part], BytesIO]] = deque()
        self._part_count = 0
        self._parts: list[_Part] = []

    def write(self, buffer: Buffer) -> None:
        """Append all of `buffer`, which may be reused afterwards."""
        view = memoryview(buffer).cast("B")
        while view:
            if self._buffer.tell() == self._part_bytes:
                self._send()
            count = self._buffer.write(view[: self._part_bytes - self._buffer.tell()])
            view = view[count:]

    def rewrite(self, offset: int, buffer: Buffer) -> None:
        """Replace bytes of the first part, unless it has been sent."""
        first = self._buffer if self._upload_id is None else self._first
        if first is None or offset + len(buffer) > first.getbuffer().nbytes:
            raise StorageError(f"{self._location}: cannot write {len(buffer)} bytes at {offset}: it was sent already")
        first.getbuffer()[offset : offset + len(buffer)] = buffer

    def finish(self) -> None:
        """Send the rest, and make the object appear."""
        if self._upload_id is None:
            self._request_with_body("write it", "put_object", self._buffer)
            return
        self._send(last=True)
        if self._first is not None:
            self._submit(1, self._first)
        self._complete()

    def copy(self, source: Location, size_bytes: int, action: str) -> None:
        """Let the storage make the object a copy of another one."""
        bucket, key, _ = source.fs.split_path(source.path)
        from_where = {"Bucket": bucket, "Key": key}
        if size_bytes <= COPIED_PART_BYTES:
            self._request(action, "copy_object", CopySource=from_where)
            return
        self._upload_id = self._create()

        def copy_part(number: int) -> _Part:
            start = (number - 1) * COPIED_PART_BYTES
            range_ = f"bytes={start}-{min(start + COPIED_PART_BYTES, size_bytes) - 1}"
            where = {"UploadId": self._upload_id, "PartNumber": number}
            answer = self._request(action, "upload_part_copy", CopySource=from_where, CopySourceRange=range_, **where)
            return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

        for number in range(1, -(-size_bytes // COPIED_PART_BYTES) + 1):
            self._in_flight.append((submitted(copy_part, number), BytesIO()))
            if len(self._in_flight) == _COPIES_AT_ONCE:
                self._await_part()
        self._complete()

    def _complete(self) -> None:
        while self._in_flight:
            self._await_part()
        check_claim()  # sending the last parts, or copying, may have taken long
        try:
            self._request(
                "complete it",
                "complete_multipart_upload",
                UploadId=self._upload_id,
                MultipartUpload={"Parts": sorted(self._parts, key=itemgetter("PartNumber"))},
            )
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                # completed by a request whose answer was lost, or aborted by another process: indistinguishable
                raise StorageError(f"{self._location}: its upload is gone: {error.marked}", transient=True) from error
            raise
        self._upload_id = None
        self._abort_lost()

    def discard(self) -> None:
        """Abort the upload; if this fails, its parts are still there."""
        wait([future for future, _ in self._in_flight])  # a part that arrives later would be kept
        if self._upload_id is not None:
            _abort(self._location, self._bucket, self._key, self._upload_id)
        self._abort_lost()

    def _send(self, *, last: bool = False) -> None:
        if self._upload_id is None:
            self._upload_id = self._create()
        self._buffer.truncate()
        self._part_count += 1
        if self._keeps_first and self._part_count == 1:
            self._first = self._buffer
        else:
            self._submit(self._part_count, self._buffer)
        if last:
            return
        self._buffer = self._await_part() if len(self._in_flight) > self._ahead else BytesIO()
        self._buffer.seek(0)

    def _submit(self, number: int, body: BytesIO) -> None:
        self._in_flight.append((submitted(self._send_part, (number, body)), body))

    def _await_part(self) -> BytesIO:
        """Wait for the oldest part in flight, and return its buffer for reuse."""
        future, buffer = self._in_flight.popleft()
        self._parts.append(future.result())
        return buffer

    def _send_part(self, numbered: tuple[int, BytesIO]) -> _Part:
        number, body = numbered
        answer = self._request_with_body(
            f"write part {number}", "upload_part", body, UploadId=self._upload_id, PartNumber=number
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _create(self) -> str:
        def create() -> str:
            self._creations += 1
            answer = self._location.fs.call_s3("create_multipart_upload", Bucket=self._bucket, Key=self._key)
            return str(answer["UploadId"])

        return requested(self._location, "begin to write it", create)

    def _request(self, action: str, method: str, **arguments: object) -> Any:
        call = self._location.fs.call_s3
        return requested(self._location, action, lambda: call(method, Bucket=self._bucket, Key=self._key, **arguments))

    def _request_with_body(self, action: str, method: str, body: BytesIO, **arguments: object) -> Any:
        fs = self._location.fs
        # the client's timeout begins when all is sent: it would wait forever for a server that is silent before
        deadline = fs.config_kwargs["read_timeout"] + body.seek(0, os.SEEK_END) / SLOWEST_BYTES_PER_SECOND

        def send() -> Any:
            body.seek(0)
            return fs.call_s3(method, timeout=deadline, Bucket=self._bucket, Key=self._key, Body=body, **arguments)

        return requested(self._location, action, send)

    def _abort_lost(self) -> None:
        """Abort uploads begun by requests whose answers were lost."""
        if self._creations > 1:
            with suppress(StorageError):  # the object is whole, or its failure is being reported
                abort_uploads(self._location, [self._location])


def abort_uploads(directory: Location, files: Iterable[Location]) -> int:
    """Abort the abandoned uploads of files in a directory; return their number.

    Raises:
        StorageError: the uploads cannot be listed or aborted.
    """
    paths = {file.path for file in files}
    found = [upload for upload in unfinished_uploads(directory) if upload.location.path in paths]
    for upload in found:
        upload.abort()
    return len(found)


class UnfinishedUpload(Record):
    """An upload in parts that was begun, and neither completed nor aborted.

    Attributes:
        location: the file that it would make.
        upload_id: the storage's name of it.
        begun: when it was begun, if the storage says so.
    """

    location: Location
    upload_id: str
    begun: datetime | None

    def size_bytes(self) -> int:
        """Bytes of the parts that are stored.

        Raises:
            StorageError: the parts cannot be listed.
        """
        bucket, key, _ = self.location.fs.split_path(self.location.path)
        marker: dict[str, int] | None = {}
        size_bytes = 0
        while marker is not None:
            where = {"Bucket": bucket, "Key": key, "UploadId": self.upload_id} | marker
            page = requested(
                self.location, "list the parts of its upload", partial(self.location.fs.call_s3, "list_parts", **where)
            )
            size_bytes += sum(part["Size"] for part in page.get("Parts", []))
            marker = {"PartNumberMarker": page["NextPartNumberMarker"]} if page.get("IsTruncated") else None
        return size_bytes

    def abort(self) -> None:
        """Abort it; the storage removes its parts.

        Raises:
            StorageError: it cannot be aborted.
        """
        bucket, key, _ = self.location.fs.split_path(self.location.path)
        _abort(self.location, bucket, key, self.upload_id)


def unfinished_uploads(directory: Location) -> list[UnfinishedUpload]:
    """Return the unfinished uploads of files in a directory, or of a file.

    Raises:
        StorageError: the uploads cannot be listed.
    """
    bucket, prefix, _ = directory.fs.split_path(directory.path)
    return [
        UnfinishedUpload(Location(directory.fs, f"{bucket}/{each['Key']}"), each["UploadId"], each.get("Initiated"))
        for each in _uploads(directory, bucket, prefix)
        if not prefix or f"{each['Key']}/".startswith(f"{prefix}/")
    ]


def _uploads(directory: Location, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    place: dict[str, str] | None = {}
    while place is not None:
        ask = partial(directory.fs.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **place)
        try:
            page = requested(directory, "list unfinished uploads of it", ask)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return  # some servers' answer if there are none
            raise
        yield from page.get("Uploads", [])
        more = page.get("IsTruncated")
        place = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]} if more else None


def _abort(location: Location, bucket: str, key: str, upload_id: str) -> None:
    def abort() -> None:
        with suppress(FileNotFoundError):  # gone already
            location.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)

    requested(location, "give up its upload", abort)

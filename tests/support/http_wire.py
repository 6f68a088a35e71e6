"""HTTP/1.1 on blocking sockets: heads are parsed, bodies pass from one socket to another without being looked at."""

import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

PIPE_BYTES = 2**20
_RECEIVE_BYTES = 2**16
_LARGEST_HEAD_BYTES = 2**16


class ClosedError(ConnectionError):
    """The other side closed the connection."""


@dataclass(frozen=True)
class Head:
    """The first line of a request or an answer, and its headers; names in lower case, with their values."""

    first: tuple[str, str, str]
    headers: dict[str, str]

    @property
    def status(self) -> str:
        """Of an answer."""
        return self.first[1]

    @property
    def length(self) -> int:
        """Of the body, if a header gives it."""
        return int(self.headers.get("content-length", "0"))

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks, each with its length."""
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this."""
        return self.headers.get("connection", "").lower() == "close" or "HTTP/1.0" in self.first

    def without(self, *names: str) -> "Head":
        """The same without some headers."""
        return replace(self, headers={name: value for name, value in self.headers.items() if name not in names})

    def __bytes__(self) -> bytes:
        """As it is sent."""
        lines = [" ".join(self.first), *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Wire:
    """A connection, and what has been read from it that is not used yet.

    Attributes:
        broken: it did not take all of what was to be passed on to it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.broken = False
        self._socket = connection
        self._unused = b""
        self._pipe: tuple[int, int] | None = None

    def read_head(self) -> Head:
        """The next head.

        Raises:
            ClosedError: there is none.
        """
        text = self._read_until(b"\r\n\r\n").decode("latin-1")
        first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
        one, two, *three = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        return Head((one, two, "".join(three)), {name.lower(): value.strip() for name, _, value in pairs})

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        self._socket.sendall(data)

    def pass_on(self, body: Head, target: "Wire | None") -> Iterator[int]:
        """Passes the body that follows a head to another connection, or to nowhere; gives the bytes of each piece.

        The rest of what a broken target does not take is read, too: an answer may come before the request is complete.

        Raises:
            ClosedError: the body ends early.
        """
        if not body.chunked:
            yield from self.move(body.length, target)
            return
        size = 1
        while size:
            line = self._read_until(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            self._hand(line, target)
            yield from self.move(size, target)
            # a chunk ends with an empty line, the last one with trailers before it
            while (line := self._read_until(b"\r\n")) != b"\r\n":
                self._hand(line, target)
            self._hand(line, target)

    def move(self, count: int, target: "Wire | None") -> Iterator[int]:
        """Passes on `count` bytes; see `pass_on`."""
        used, self._unused = self._unused[:count], self._unused[count:]
        if used:
            self._hand(used, target)
            yield len(used)
        left = count - len(used)
        while left:
            if target and not target.broken and left > _RECEIVE_BYTES:
                moved = self._splice(left, target)
            else:
                piece = self._socket.recv(min(left, _RECEIVE_BYTES))
                self._hand(piece, target)
                moved = len(piece)
            if not moved:
                raise ClosedError
            left -= moved
            yield moved

    def wait(self, seconds: float) -> bool:
        """Waits until there is something to be read, or the other side has closed it; whether that happened."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def reset(self) -> None:
        """Ends it so that the other side gets an error, not an end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def shut_down(self) -> None:
        """End it for all threads that are waiting for it."""
        with suppress(OSError):  # it may have ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends it."""
        self._socket.close()
        self._close_pipe()

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._unused:
            piece = self._socket.recv(_RECEIVE_BYTES)
            if not piece or len(self._unused) > _LARGEST_HEAD_BYTES:
                raise ClosedError
            self._unused += piece
        found, _, self._unused = self._unused.partition(end)
        return found + end

    def _hand(self, data: bytes, target: "Wire | None") -> None:
        if target and not target.broken:
            try:
                target.send(data)
            except ConnectionError:
                target.broken = True

    def _splice(self, count: int, target: "Wire") -> int:
        """Passes on some bytes inside the kernel: a third less work for the processor than copying them."""
        if not self._pipe:
            self._pipe = os.pipe()
            fcntl.fcntl(self._pipe[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        outlet, inlet = self._pipe
        moved = os.splice(self._socket.fileno(), inlet, min(count, PIPE_BYTES))
        left = moved
        while left:
            try:
                left -= os.splice(outlet, target._socket.fileno(), left)
            except ConnectionError:
                target.broken = True
                self._close_pipe()
                break
        return moved

    def _close_pipe(self) -> None:
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None

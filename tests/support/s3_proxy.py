"""A proxy before an S3 server: it counts requests, answers them later than they could be, and makes some go wrong.

Clients have its URL as their endpoint, or as their HTTP proxy (`http_proxy`), to see how they name hosts; what they
signed reaches the server unchanged. Each connection has a thread, so none waits for another.

In two things it makes the server more like S3: a range is answered with 206, and If-Match is heeded, of GET and HEAD.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.support.http_wire import ClosedError, Head, Wire
from tests.support.s3_server import S3Server, environment_for
from tests.support.s3_traffic import Exchange, Fault, Faults, Kind, S3Error, parse_call

_WAIT_SECONDS = 60
_PRECONDITION_FAILED = S3Error(412, "PreconditionFailed")


class S3Proxy:
    """A running proxy.

    Attributes:
        latency_seconds: each request waits for so long; many may wait at once.
        before: called with each request before anything is done about it, in the thread of its connection.
    """

    def __init__(self, server: S3Server, latency_seconds: float) -> None:
        self.server = server
        self.latency_seconds = latency_seconds
        self.before: Callable[[Exchange], object] = lambda exchange: None
        self.faults = Faults()
        self._changed = threading.Condition()
        self._exchanges: list[Exchange] = []
        self._numbers: Counter[object] = Counter()
        self._wires: set[Wire] = set()
        self._stopped = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes clients talk to it."""
        return environment_for(self.url, self.server.access_key, self.server.secret_key)

    def set_faults(self, *rules: Fault) -> None:
        """Which requests go wrong from now on; none: no request does."""
        self.faults = Faults(rules)

    def exchanges(self) -> list[Exchange]:
        """All requests so far, in the order in which they came; those under way are waited for, within reason."""
        with self._changed:
            begun = list(self._exchanges)
            self._changed.wait_for(lambda: all(exchange.ended for exchange in begun), _WAIT_SECONDS)
        return begun

    def counts(self) -> Counter[str]:
        """How many requests there were of each operation."""
        return Counter(exchange.call.operation for exchange in self.exchanges())

    def begin_anew(self) -> None:
        """Counts from nothing, and does nothing to requests: as when it was started, without latency."""
        self.latency_seconds = 0.0
        self.before = lambda exchange: None
        self.set_faults()
        self.forget()

    def forget(self) -> None:
        """Counts from nothing."""
        self.exchanges()
        with self._changed:
            self._exchanges.clear()
            self._numbers.clear()

    def begin(self, head: Head) -> Exchange:
        """Counts a request."""
        method, target, _ = head.first
        call = parse_call(method, target, head.headers, virtual_hosts=self.server.virtual_hosts)
        with self._changed:
            self._numbers.update([call.operation, call.asked])
            exchange = Exchange(call, self._numbers[call.operation], self._numbers[call.asked], time.monotonic())
            self._exchanges.append(exchange)
        return exchange

    def end(self, exchange: Exchange) -> None:
        """Notes that nothing more happens to a request."""
        with self._changed:
            exchange.ended = time.monotonic()
            self._changed.notify_all()

    def keep(self, wire: Wire) -> Wire:
        """Notes an open connection."""
        with self._changed:
            self._wires.add(wire)
        return wire

    def drop(self, wire: Wire) -> None:
        """Closes a connection."""
        with self._changed:
            self._wires.discard(wire)
            wire.close()

    def run(self) -> None:
        """Takes connections until it is stopped; then ends them."""
        threads = []
        with self._listener:
            while client := self._accepted():
                threads.append(threading.Thread(target=_Connection(self, self.keep(client)).run, name="s3-proxy"))
                threads[-1].start()
        with self._changed:
            for wire in self._wires:
                wire.shut_down()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Takes no more connections."""
        self._stopped = True
        self._listener.shutdown(socket.SHUT_RDWR)

    def _accepted(self) -> Wire | None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            if self._stopped:
                return None
            raise
        return Wire(connection)


class _Connection:
    """A client's connection, and one to the server that belongs to it."""

    def __init__(self, proxy: S3Proxy, client: Wire) -> None:
        self._proxy = proxy
        self._client = client
        self._server: Wire | None = None

    def run(self) -> None:
        """Answers requests until one of the two sides has enough."""
        try:
            with suppress(ClosedError):
                while self._answer(_to_server(self._client.read_head())):
                    pass
        except ConnectionError:
            self._client.reset()
        finally:
            self._leave_server()
            self._proxy.drop(self._client)

    def _answer(self, head: Head) -> bool:
        """Answers a request; whether there may be another one."""
        exchange = self._proxy.begin(head)
        try:
            self._proxy.before(exchange)
            fault = self._proxy.faults.strike(exchange)
            time.sleep(self._proxy.latency_seconds)
            return self._fail(head, exchange, fault) if fault else self._succeed(head, exchange)
        except ClosedError as error:
            # in the middle of something, it is not the end that a client may choose
            raise ConnectionAbortedError from error
        finally:
            self._proxy.end(exchange)

    def _succeed(self, head: Head, exchange: Exchange) -> bool:
        server, answer = self._ask_server(head, exchange)
        if _is_other_version(head, answer):
            self._leave_server()  # it is about to send what is not wanted
            return self._refuse(head, exchange, _PRECONDITION_FAILED)
        exchange.status = int(answer.status)
        self._client.send(bytes(answer))
        if _has_body(head, answer):
            self._send_body(exchange, server.pass_on(answer, self._client))
        return not (head.closes or answer.closes or self._client.broken)

    def _fail(self, head: Head, exchange: Exchange, fault: Fault) -> bool:
        exchange.fault = fault.kind
        match fault.kind:
            case Kind.RESET:
                self._client.reset()
            case Kind.SILENCE:
                # a client that gives up closes its connection
                self._client.wait(fault.seconds)
            case Kind.ANSWER_LOST:
                self._ask_server(head, exchange)
                self._client.reset()
            case Kind.RESET_IN_BODY:
                self._send_half(head, exchange)
                self._client.reset()
            case Kind.SHORT_BODY:
                self._send_half(head, exchange)
            case _:
                for received in self._take_body(head, None):
                    exchange.received_bytes += received
                return self._refuse(head, exchange, fault.kind.value)
        return False

    def _ask_server(self, head: Head, exchange: Exchange) -> tuple[Wire, Head]:
        server = self._to_server()
        server.send(bytes(head.without("expect")))
        for received in self._take_body(head, server):
            exchange.received_bytes += received
        return server, _as_s3_would(server.read_head())

    def _take_body(self, head: Head, target: Wire | None) -> Iterator[int]:
        if "expect" in head.headers:
            self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._client.pass_on(head, target)

    def _send_half(self, head: Head, exchange: Exchange) -> None:
        """Sends half of an answer's body; nothing at all of an answer of unknown length."""
        server, answer = self._ask_server(head, exchange)
        if _has_body(head, answer) and answer.length:
            exchange.status = int(answer.status)
            self._client.send(bytes(answer))
            self._send_body(exchange, server.move(answer.length // 2, self._client))

    def _send_body(self, exchange: Exchange, pieces: Iterator[int]) -> None:
        for sent in pieces:
            if self._client.broken:
                return
            exchange.sent_bytes += sent

    def _refuse(self, head: Head, exchange: Exchange, error: S3Error) -> bool:
        body = error.body(exchange.call)
        headers = {"content-type": "application/xml", "content-length": str(len(body))}
        if not _has_body(head, Head(("HTTP/1.1", str(error.status), error.code), headers)):
            body = b""
        exchange.status, exchange.sent_bytes = error.status, len(body)
        self._client.send(bytes(Head(("HTTP/1.1", str(error.status), error.code), headers)) + body)
        return not head.closes

    def _to_server(self) -> Wire:
        if self._server and (self._server.broken or self._server.wait(0)):
            self._leave_server()  # it has closed the connection
        if not self._server:
            url = urlsplit(self._proxy.server.url)
            self._server = self._proxy.keep(Wire(socket.create_connection((url.hostname, url.port))))
        return self._server

    def _leave_server(self) -> None:
        if self._server:
            self._proxy.drop(self._server)
        self._server = None


def _to_server(head: Head) -> Head:
    """A request as it is to reach the server: as if it had come without a proxy."""
    method, target, version = head.first
    if not target.startswith("/"):
        target = "/" + target.partition("://")[2].partition("/")[2]
    return Head((method, target, version), head.headers).without("proxy-connection")


def _as_s3_would(answer: Head) -> Head:
    if answer.status == "200" and "content-range" in answer.headers:
        return Head((answer.first[0], "206", "Partial Content"), answer.headers)
    return answer


def _is_other_version(head: Head, answer: Head) -> bool:
    """Whether an object is not the one that a request wants, and only that."""
    wanted = head.headers.get("if-match", "*")
    reads = head.first[0] in ("GET", "HEAD") and answer.status in ("200", "206")
    return reads and wanted not in ("*", answer.headers.get("etag"))


def _has_body(head: Head, answer: Head) -> bool:
    return head.first[0] != "HEAD" and answer.status not in ("204", "304")


@contextmanager
def s3_proxy(server: S3Server, latency_seconds: float = 0.0) -> Iterator[S3Proxy]:
    """Runs a proxy on a free port for the time of the block."""
    proxy = S3Proxy(server, latency_seconds)
    taking = threading.Thread(target=proxy.run, name="s3-proxy", daemon=True)
    taking.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        taking.join()

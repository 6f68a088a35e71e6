"""Plain web servers, `https://host/dir`, which are only read.

A directory's files are those that its index page links to (nginx's autoindex, Apache's, and the like). Where a server
lists nothing, they are those that the index of a Hugging Face directory names. Contents are read by ranges, and each
answer has to show the file's etag, or the time of its last change, as it was when the file was opened.
"""

import errno
import json
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from html.parser import HTMLParser
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import httpx

from reshard.core.errors import InputError
from reshard.core.storage.endpoints import CONNECT_SECONDS, READ_SECONDS, checked_endpoint
from reshard.core.storage.option_checks import check_kinds, check_known
from reshard.core.storage.ranges import RangeReader
from reshard.core.storage.read_only import ReadOnlyStore
from reshard.core.storage.store import DIRECTORY, FILE, ChangedFileError, Entry, Reader, Reason, Store
from reshard.core.text.secrets import scrubbed

Options = Mapping[str, Any]

_OPTIONS = ("headers", "verify")
_REQUESTS_AT_ONCE = 16
"""While a directory is listed: an index page does not say exactly how large a file is, and of what version."""
_CONNECTIONS = 128
_MAX_REDIRECTS = 10
_MAX_PAGE_BYTES = 64 * 2**20
_LIST = "model.safetensors.index.json"
"""Names the files beside it."""
_SAFE = "/{}[],:;@!$&'()*+=~"
"""Characters of a path that stay as they are in its URL, so that patterns and joint names are legible."""
_RANGE = re.compile(r"bytes (?P<first>\d+)-(?P<last>\d+)/(?P<size>\d+)")
_VERSION = re.compile(r"(?P<size>\d+)-(?P<tag>.+)", re.DOTALL)


class WebError(Exception):
    """A server's answer cannot be used."""

    def __init__(self, text: str, *, transient: bool = False) -> None:
        super().__init__(text)
        self.transient = transient


def open_web(url: str, protocol: str, options: Options) -> tuple[Store, str]:
    """Return the store of a URL, and the path in it: host and path, without percent-encoding.

    Raises:
        InputError: the URL has a query, or names no server; or an option is unknown or of the wrong kind.
    """
    rest = url.partition("://")[2].rstrip("/")
    host, slash, path = rest.partition("/")
    try:
        check_known(options, _OPTIONS)
        headers = options.get("headers") or {}
        check_kinds({"headers": headers}, Mapping, "an object of texts")
        check_kinds({f"headers.{name}": value for name, value in headers.items()}, str, "a text")
        verify = options.get("verify", True)
        check_kinds({"verify": verify}, (bool, str), "true, false, or the path of a bundle of certificates")
        if "?" in rest or "#" in rest:
            raise ValueError("a query cannot be used; a name that has ? or # is written with %3F or %23")
        checked_endpoint(("its beginning", f"{protocol}://{host}"))
        return _store(protocol, tuple(sorted(headers.items())), verify), host + slash + unquote(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{url!r}: cannot be opened: {scrubbed(str(error))}") from error


@cache
def _store(protocol: str, headers: tuple[tuple[str, str], ...], verify: bool | str) -> "WebStore":
    _client(os.getpid(), verify)  # a bundle that cannot be read is noticed here
    return WebStore(protocol, dict(headers), verify)


@cache
def _client(process: int, verify: bool | str) -> httpx.Client:
    import ssl

    return httpx.Client(
        verify=ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify,
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
    )


class WebStore(ReadOnlyStore):
    """Web servers. A path is a host and the path there."""

    place: ClassVar[str] = "a web server"

    def __init__(self, protocol: str, headers: Mapping[str, str], verify: bool | str) -> None:
        self._protocol = protocol
        self._headers = headers
        self._verify = verify

    def url(self, path: str) -> str:
        """Format a path as a URL."""
        host, slash, path = path.partition("/")
        return f"{self._protocol}://{host}{slash}{quote(path, safe=_SAFE)}"

    def stat(self, path: str) -> Entry:
        """Describe a file, or a directory: a server redirects to the name with a slash."""
        try:
            with self.answered("HEAD", path) as answer:
                return _directory_or_file(path, answer)
        except PermissionError:
            if not self._is_directory(path):
                raise
        except FileNotFoundError:
            if not self._is_directory(path) and not self._brings_list(path):
                raise
        return Entry(path, DIRECTORY)

    def list(self, path: str) -> Sequence[Entry]:
        """Describe what a directory's index page links to, by a request for each file; of a file, the file itself."""
        try:
            names = self._linked_names(path)
        except (FileNotFoundError, PermissionError, WebError):
            own = self.stat(path)
            if own.kind == FILE:
                return [own]
            names = self._listed_names(path)
        folders = [Entry(f"{path}/{name[:-1]}", DIRECTORY) for name in names if name.endswith("/")]
        files = [f"{path}/{name}" for name in names if not name.endswith("/")]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            return folders + [entry for entry in pool.map(self._stat_linked, files) if entry]

    def open(self, path: str, version: str = "") -> Reader:
        """Open a file; with an expected version no request is made."""
        expected = _VERSION.fullmatch(version)
        if expected:
            return _Reader(self, path, int(expected["size"]), expected["tag"])
        found = self.stat(path)
        if found.kind == DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not found.version:
            raise WebError("the server sends neither ETag nor Last-Modified: a change would go unnoticed. Download it")
        return _Reader(self, path, found.size_bytes, found.version)

    def read_beginning(self, path: str, max_bytes: int) -> bytes:
        """Return the first bytes of a file; the server need not know ranges."""
        with self.answered("GET", path) as answer:
            if _directory_or_file(path, answer).kind == DIRECTORY:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            return _beginning(answer, max_bytes)

    def reason_of_reading(self, error: Exception, path: str) -> Reason | None:
        """Explain an answer that cannot be used, or that none came."""
        host = path.partition("/")[0]
        if isinstance(error, WebError):
            return Reason(str(error), error.transient)
        if isinstance(error, httpx.TimeoutException):
            return Reason(f"{host} did not answer in time", transient=True)
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Reason(f"{host} has a certificate that is not trusted: name its authority")
        if isinstance(error, httpx.ConnectError):
            return Reason(f"{host} cannot be reached: the name is wrong, or it is down", transient=True)
        if isinstance(error, httpx.TransportError):
            return Reason(f"{host} closed the connection, or answered with something else", transient=True)
        if isinstance(error, httpx.InvalidURL):
            return Reason(f"the server's redirection leads nowhere: {scrubbed(str(error))}")
        return None

    @contextmanager
    def answered(self, method: str, path: str, **headers: str) -> Iterator[httpx.Response]:
        """Send a request, follow redirections, and check the answer's status; the body is still to be read.

        Raises:
            FileNotFoundError: nothing is there.
            PermissionError: the credentials do not suffice.
            WebError: any other failure that the server reports.
        """
        client = _client(os.getpid(), self._verify)
        first = url = httpx.URL(self.url(path))
        for _ in range(_MAX_REDIRECTS):
            # what is given to one server is not for others
            own = self._headers if (url.scheme, url.netloc) == (first.scheme, first.netloc) else {}
            asked = {**own, **headers, "Accept-Encoding": "identity"}
            answer = client.send(client.build_request(method, url, headers=asked), stream=True, follow_redirects=False)
            try:
                if not answer.has_redirect_location:
                    _check_status(answer)
                    yield answer
                    return
                url = url.join(answer.headers["Location"])
            finally:
                answer.close()
        raise WebError("the server redirects without end")

    def _is_directory(self, path: str) -> bool:
        """True if a server has a directory there, even one that it does not list."""
        try:
            with self.answered("HEAD", f"{path}/") as answer:
                return answer.url.path.endswith("/")
        except FileNotFoundError:
            return False
        except PermissionError:
            return True

    def _brings_list(self, path: str) -> bool:
        try:
            with self.answered("HEAD", f"{path}/{_LIST}"):
                return True
        except (FileNotFoundError, PermissionError):
            return False

    def _linked_names(self, path: str) -> Sequence[str]:
        with self.answered("GET", f"{path}/") as answer:
            if not answer.url.path.endswith("/") or "html" not in answer.headers.get("Content-Type", ""):
                raise WebError("the server has no index page there")
            _check_plain(answer)
            page = _beginning(answer, _MAX_PAGE_BYTES + 1)
            if len(page) > _MAX_PAGE_BYTES:
                raise WebError("the index page is too large")
            return _names_on(page.decode(errors="surrogateescape"), answer.url)

    def _listed_names(self, path: str) -> Sequence[str]:
        """Return the names of files that a directory's own list gives, and that of the list."""
        if not self._brings_list(path):
            raise WebError(
                "the server lists no files there: let it make index pages (nginx: autoindex on), or download the files"
            )
        try:
            names = set(json.loads(self.read_beginning(f"{path}/{_LIST}", _MAX_PAGE_BYTES))["weight_map"].values())
            if any(not isinstance(name, str) or "/" in name or name in ("", ".", "..") for name in names):
                raise ValueError("names of files beside it are expected")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise WebError(f"{_LIST}, which is to list the files, is damaged: {error}") from error
        return [_LIST, *sorted(names)]

    def _stat_linked(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except FileNotFoundError:  # removed meanwhile
            return None


class _Reader(RangeReader):
    is_proven = True

    def __init__(self, store: WebStore, path: str, size_bytes: int, tag: str) -> None:
        super().__init__(size_bytes, f"{size_bytes}-{tag}")
        self._store = store
        self._path = path
        self._tag = tag

    def pieces(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """Yield the bytes of a range, if the file still has its version."""
        try:
            with self._store.answered("GET", self._path, Range=f"bytes={offset}-{offset + length - 1}") as answer:
                self._check(answer, offset, length)
                yield from answer.iter_raw()
        except _NoRangeError as error:
            raise ChangedFileError from error

    def _check(self, answer: httpx.Response, offset: int, length: int) -> None:
        _check_plain(answer)
        if _tag(answer) != self._tag:
            raise ChangedFileError
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            raise WebError("the server answers requests for parts of files with the whole: download the files")
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if found is None:
            raise WebError("the server does not say which part of the file it sends: download the files")
        if int(found["size"]) != self.size_bytes:
            raise ChangedFileError
        if (int(found["first"]), int(found["last"])) != (offset, offset + length - 1):
            raise WebError("the server sends another part of the file than it was asked for: download the files")


class _NoRangeError(Exception):
    """A file ends before the bytes asked for."""


def _check_status(answer: httpx.Response) -> None:
    status = answer.status_code
    if status < 300:
        return
    if status in (404, 410):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if status in (401, 403):
        raise PermissionError(errno.EACCES, f"access denied (HTTP {status})")
    if status == 416:
        raise _NoRangeError
    raise WebError(f"HTTP {status}", transient=status >= 500 or status in (408, 429))


def _check_plain(answer: httpx.Response) -> None:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise WebError(f"the server sends it compressed ({encoding}), of another size: have it send files as they are")


def _directory_or_file(path: str, answer: httpx.Response) -> Entry:
    if answer.url.path.endswith("/"):
        return Entry(path, DIRECTORY)
    _check_plain(answer)
    size = answer.headers.get("Content-Length", "")
    if not size.isdecimal():
        raise WebError("the server does not say how large it is: download it")
    return Entry(path, FILE, int(size), _tag(answer), _changed(answer))


def _tag(answer: httpx.Response) -> str:
    """Return what differs whenever a file does; empty if the server says nothing of the kind."""
    etag = answer.headers.get("ETag", "").removeprefix("W/").strip('"')
    return str(etag or answer.headers.get("Last-Modified", ""))


def _changed(answer: httpx.Response) -> float | None:
    try:
        moment: datetime = parsedate_to_datetime(answer.headers.get("Last-Modified", ""))
    except (ValueError, TypeError):
        return None
    return moment.timestamp()


def _beginning(answer: httpx.Response, max_bytes: int) -> bytes:
    data = bytearray()
    for piece in answer.iter_raw():
        data += piece
        if len(data) >= max_bytes:
            break
    return bytes(data[:max_bytes])


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _names_on(page: str, base: httpx.URL) -> list[str]:
    """Return the names right below a directory that its index page links to; those of directories end in a slash."""
    links = _Links()
    links.feed(page)
    names: dict[str, None] = {}
    for link in links.found:
        try:
            url = base.join(link)
        except httpx.InvalidURL:
            continue
        name = url.path.removeprefix(base.path)
        is_below = url.netloc == base.netloc and url.path.startswith(base.path) and not url.query
        if is_below and "/" not in name[:-1] and name.strip("/") not in ("", ".", ".."):
            names[name] = None
    return list(names)

"""Reads ranges of objects through obstore, where it can do what the options of an S3 filesystem ask for.

s3fs does all requests of a process in one thread, 2 ms of processor time each, and reads some 300 MiB/s; obstore works
beside Python's threads, at a quarter of that. Settings and credentials remain s3fs's: they are taken from its client,
which has resolved them, so that both reach the same server with the same keys. s3fs reads where obstore cannot honour a
setting, and repeats the requests that obstore could not carry out, since it explains failures.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from reshard.core.text.secrets import scrubbed

Keys = tuple[str, str, str | None]
"""Key, secret and token."""

CONNECT_SECONDS = 10
READ_SECONDS = 60
"""For each piece of an answer to arrive."""
_PROCESS = os.getpid()
"""Forked processes lack obstore's threads: its requests would never end there."""
_ATTRIBUTE = "reshard_ranges"
"""Attribute of a filesystem that holds its reader."""
_PIECE_BYTES = 2**19
"""Answers are copied in pieces of about this size: smaller ones wait for the interpreter's lock more often."""
_LONGEST_SECONDS = 600
"""For a whole answer; the client's `read_timeout` is for each piece that arrives."""
_CREDENTIALS_LAST = timedelta(minutes=5)
"""After this s3fs is asked again; its client renews credentials ten minutes or more before they expire."""

_OPTIONS = {
    *("anon", "key", "secret", "token", "endpoint_url", "client_kwargs", "config_kwargs", "profile"),
    *("session_vars", "use_listings_cache", "skip_instance_cache"),
}
_CLIENT_OPTIONS = {"region_name", "endpoint_url"}
_CONFIG_OPTIONS = {
    *("connect_timeout", "read_timeout", "retries", "max_pool_connections", "s3"),
    *("request_checksum_calculation", "response_checksum_validation"),
}
_ANY_REGION = "us-east-1"
"""The region that botocore signs for if none is configured."""
_PROXY = re.compile(r"(https?|all)_proxy", re.IGNORECASE)

_PASSING = re.compile(
    r"status code: (408|429|5[0-9]{2})|error sending request"
    r"|error decoding response body|request or response body error"
)
"""What obstore says about failures that another attempt may not meet."""
_CERTIFICATE = re.compile(r"certificate", re.IGNORECASE)
_REASON = re.compile(r" in [0-9.]+(?:ns|µs|ms|s) - (.*)")


class RefusedRequestError(Exception):
    """obstore could not carry out a request, and would not at another attempt."""


class ChangedObjectError(Exception):
    """The object no longer has the expected etag."""


class Scatter:
    """Buffers to be filled one after another.

    Attributes:
        count: bytes received.
    """

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = deque(parts)
        self.count = 0

    def write(self, data: memoryview) -> None:
        """Fill the next buffers with all of `data`; a ConnectionError if it is longer than they are."""
        self.count += len(data)
        while data:
            if not self._parts:
                raise ConnectionError("long read: got more bytes than requested")
            part = self._parts.popleft()
            taken = data[: len(part)]
            part[: len(taken)] = taken
            if len(taken) < len(part):
                self._parts.appendleft(part[len(taken) :])
            data = data[len(taken) :]


class ObjectRanges:
    """A reader of ranges; thread-safe."""

    def __init__(self, new_store: Callable[[str], Any]) -> None:
        self._new_store = new_store
        self._stores: dict[str, Any] = {}

    def read(self, bucket: str, key: str, offset: int, parts: Sequence[memoryview], etag: str) -> None:
        """Fill `parts`, one after another, from the bytes at `offset` of the object that has an etag.

        An empty etag: of whatever is there.

        Raises:
            ConnectionError: the server did not answer, or not completely, or asks for patience.
            ChangedObjectError: the object has another etag, or the answer has none.
            RefusedRequestError: anything else.
        """
        import obstore

        length = sum(map(len, parts))
        scatter = Scatter(parts)
        options: Any = {"range": (offset, offset + length)} | ({"if_match": etag} if etag else {})
        with obstore_errors():
            answer = obstore.get(self.store(bucket), key, options=options)
            if etag and answer.meta["e_tag"] != etag:  # not every server heeds conditions
                raise ChangedObjectError
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                scatter.write(memoryview(piece))
        if scatter.count != length:
            raise ConnectionError(f"short read: got {scatter.count} of {length} bytes")

    def store(self, bucket: str) -> Any:
        """Return obstore's client of a bucket."""
        if bucket not in self._stores:
            self._stores[bucket] = self._new_store(bucket)
        return self._stores[bucket]


@contextmanager
def obstore_errors() -> Iterator[None]:
    """Raise obstore's errors as `ObjectRanges.read` does."""
    import obstore  # noqa: F401  first, and whole: a submodule is not found while another thread imports the package
    from obstore.exceptions import BaseError, PreconditionError

    try:
        yield
    except PreconditionError as error:
        raise ChangedObjectError from error
    except (BaseError, OSError, ValueError) as error:
        text = str(error)
        if not _PASSING.search(text) or _CERTIFICATE.search(text):
            raise RefusedRequestError from error
        reason = _REASON.search(text)
        raise ConnectionError(scrubbed(reason[1]) if reason else "no complete answer") from None


def object_ranges(fs: Any) -> ObjectRanges | None:
    """Return the reader of an S3 filesystem's ranges; None where s3fs has to read them."""
    if os.getpid() != _PROCESS:
        return None
    if not hasattr(fs, _ATTRIBUTE):  # equal filesystems may have been opened in different environments
        setattr(fs, _ATTRIBUTE, _new_reader(fs))
    reader: ObjectRanges | None = getattr(fs, _ATTRIBUTE)
    return reader


def give_up(fs: Any) -> None:
    """Let s3fs read from now on: it can read there what obstore cannot."""
    setattr(fs, _ATTRIBUTE, None)


def _new_reader(fs: Any) -> ObjectRanges | None:
    """Make a reader with the settings that s3fs's client has resolved; None if obstore cannot honour one of them."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        return None
    if not _takes_options(fs.storage_options) or any(map(is_proxy, os.environ.items())):
        return None
    fs.connect()
    client = fs.s3
    config = client.meta.config
    s3_settings = {name for name, value in (config.s3 or {}).items() if value is not None}
    endpoint = urlsplit(client.meta.endpoint_url)
    # a bundle of certificates replaces the known authorities, but obstore would only add to them
    bundle = endpoint.scheme == "https" and fs.session.get_config_variable("ca_bundle")
    if bundle or config.use_dualstack_endpoint or config.use_fips_endpoint or s3_settings - {"addressing_style"}:
        return None
    is_virtual = (config.s3 or {}).get("addressing_style") == "virtual"
    region = _ANY_REGION if client.meta.region_name in (None, "aws-global") else client.meta.region_name
    settings = _store_settings(region, config.connect_timeout, config.read_timeout, is_virtual=is_virtual)
    if fs.anon:
        settings["skip_signature"] = True
    else:
        settings["credential_provider"] = partial(_credentials, fs)
    return ObjectRanges(partial(_new_store, endpoint, settings))


def plain_ranges(endpoint: str, region: str, keys: Keys, *, is_virtual: bool) -> ObjectRanges:
    """Return a reader with our own settings for all that is not given."""
    settings = _store_settings(region, CONNECT_SECONDS, READ_SECONDS, is_virtual=is_virtual)
    settings["credential_provider"] = partial(_signing, *keys)
    return ObjectRanges(partial(_new_store, urlsplit(endpoint), settings))


def _store_settings(region: str, connect_seconds: float, read_seconds: float, *, is_virtual: bool) -> dict[str, Any]:
    return {
        "region": region,
        "virtual_hosted_style_request": is_virtual,
        "client_options": {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=connect_seconds),
            "read_timeout": timedelta(seconds=read_seconds),
            "timeout": timedelta(seconds=_LONGEST_SECONDS),
        },
        # only reshard.core.storage.transfers repeats requests
        "retry_config": {"max_retries": 0},
    }


def _takes_options(options: Mapping[str, Any]) -> bool:
    """True if obstore can honour all of these options of s3fs."""
    given = {name for name, value in options.items() if value is not None}
    return (
        given <= _OPTIONS
        and (options.get("client_kwargs") or {}).keys() <= _CLIENT_OPTIONS
        and (options.get("config_kwargs") or {}).keys() <= _CONFIG_OPTIONS
    )


def is_proxy(variable: tuple[str, str]) -> bool:
    """True for a variable of the environment that names a proxy: clients differ in which hosts they exclude."""
    return bool(_PROXY.fullmatch(variable[0]) and variable[1])


def _new_store(endpoint: SplitResult, settings: Mapping[str, Any], bucket: str) -> Any:
    from obstore.store import S3Store

    host = f"{bucket}.{endpoint.netloc}" if settings["virtual_hosted_style_request"] else endpoint.netloc
    # the longer name's value wins, and would come from the environment
    return S3Store(bucket, aws_endpoint_url_s3=f"{endpoint.scheme}://{host}{endpoint.path}", **settings)


def _signing(key: str, secret: str, token: str | None) -> dict[str, Any]:
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _credentials(fs: Any) -> dict[str, Any]:
    """Return what s3fs signs with at the moment."""
    if fs.key and fs.secret:
        return _signing(fs.key, fs.secret, fs.token)
    from fsspec.asyn import sync

    frozen = sync(fs.loop, _frozen_credentials, fs.session)
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
    }


async def _frozen_credentials(session: Any) -> Any:
    credentials = await session.get_credentials()
    if credentials is None:
        raise ValueError("no credentials")  # s3fs says what to do
    return await credentials.get_frozen_credentials()

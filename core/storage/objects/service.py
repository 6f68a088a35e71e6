"""An object storage service with its settings: what the services that obstore speaks to differ in."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from reshard.core.runtime import retry
from reshard.core.storage.endpoints import CONNECT_SECONDS, READ_SECONDS
from reshard.core.storage.store import AbandonedUpload

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

SENDING_SECONDS = 256.0
"""For a part of 8 MiB at 32 KiB/s; the client counts it as time in which no answer begins."""
_LONGEST_SECONDS = 600
"""For a whole request and its answer: 16 MiB at 32 KiB/s."""
_BACKOFF_BASE = 2


class Service(ABC):
    """A service, and the credentials for it."""

    protocol: str
    """Of the URLs that reach it."""
    bucket_word: ClassVar[str] = "bucket"
    bucket_names: ClassVar[re.Pattern[str]]
    certificates_word: str = "SSL_CERT_FILE"
    """Of what names certificates to trust."""
    keeps_parts: ClassVar[bool] = False
    """Abandoned uploads can be listed and aborted."""
    max_copied_bytes: ClassVar[int] = 5 * 2**30
    """Larger objects cannot be copied by one request, or not as fast as it must be answered."""
    copies_whole: ClassVar[bool] = True
    """A copy is whole when the service answers that it is made."""
    has_slashless_markers: ClassVar[bool] = False
    """Empty objects may mark directories without a slash at the end of their keys."""
    puts_by_generation: ClassVar[bool] = False
    """Conditions of writing name an object's generation, not its etag."""
    no_credentials: ClassVar[str] = ""
    """What to do if the client has found no credentials by itself."""

    def check_bucket(self, bucket: str) -> None:
        """Check that a bucket can have such a name.

        Raises:
            ValueError: it cannot.
        """
        if not bucket:
            raise ValueError(f"it names no {self.bucket_word}")
        if not self.bucket_names.fullmatch(bucket):
            raise ValueError(f"{bucket!r} cannot be a {self.bucket_word}'s name")

    @abstractmethod
    def client(self, bucket: str, retry_config: "RetryConfig", sending_seconds: float = 0) -> "ObjectStore":
        """Make a client of a bucket; `sending_seconds` more are allowed until an answer begins."""

    @abstractmethod
    def server(self) -> object:
        """Return what two services have in common if equal paths of theirs are the same place."""

    @property
    def address(self) -> str:
        """The server as messages name it: its URL."""
        return self.protocol

    def copy_large(self, source: tuple[str, str], target: tuple[str, str]) -> bool:
        """Let the service copy an object (bucket, key) of any size; False if it has no way of its own."""
        return False

    def abandoned(self, bucket: str, prefix: str) -> Sequence[AbandonedUpload]:
        """List abandoned uploads of keys that begin so."""
        return ()

    def abort(self, bucket: str, key: str, upload_id: str) -> None:
        """Abort an abandoned upload."""
        raise NotImplementedError


def client_options(
    connect_seconds: float = CONNECT_SECONDS, read_seconds: float = READ_SECONDS, **more: Any
) -> "ClientConfig":
    """Return options of obstore's HTTP client."""
    options: Any = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=connect_seconds),
        "read_timeout": timedelta(seconds=read_seconds),
        "timeout": timedelta(seconds=max(_LONGEST_SECONDS, read_seconds)),
    }
    return cast("ClientConfig", options | more)


NO_RETRIES: "RetryConfig" = {"max_retries": 0}
"""For single requests, which `reshard.core.storage.transfers` repeats: retries of several layers multiply."""


def part_retries() -> "RetryConfig":
    """Return how often the parts of an upload are repeated, which nothing but the client can do."""
    first = timedelta(seconds=retry.REQUESTS.first_pause_seconds)
    return {
        "max_retries": retry.REQUESTS.attempts - 1,
        "retry_timeout": timedelta(seconds=retry.REQUESTS.attempts * _LONGEST_SECONDS),
        "backoff": {"init_backoff": first, "base": _BACKOFF_BASE, "max_backoff": first * 2**retry.REQUESTS.attempts},
    }

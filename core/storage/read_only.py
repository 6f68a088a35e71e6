"""Storages that are only read: what they have in common is how they refuse to be written."""

from abc import abstractmethod
from typing import ClassVar, NoReturn

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.store import Output, Reason, Store
from reshard.core.storage.system_errors import reason_of_system


class NotWritableError(OSError):
    """Files were to be written where they can only be read."""


class ReadOnlyStore(Store):
    """A storage from which files are read.

    Attributes:
        place: what it is, in the refusal to write there.
    """

    place: ClassVar[str]

    def put(self, path: str, data: bytes) -> str:
        """Refuse to write."""
        self._refuse()

    def create(self, path: str, buffers: UploadBuffers) -> Output:
        """Refuse to write."""
        self._refuse()

    def copy(self, source: str, target: str) -> None:
        """Refuse to write."""
        self._refuse()

    def remove(self, path: str) -> None:
        """Refuse to remove."""
        self._refuse()

    def reason_of(self, error: Exception, path: str) -> Reason | None:
        """Explain a refusal, or an error of what is behind this storage."""
        if isinstance(error, NotWritableError):
            return Reason(str(error), unusable=True)
        return self.reason_of_reading(error, path) or reason_of_system(error)

    @abstractmethod
    def reason_of_reading(self, error: Exception, path: str) -> Reason | None:
        """Explain an error met while reading; None if it is not this storage's own."""

    def _refuse(self) -> NoReturn:
        raise NotWritableError(f"{self.place} can only be read: name a target elsewhere")

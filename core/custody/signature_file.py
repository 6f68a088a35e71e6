"""The signature beside a target's files, as it is read: bounded, and not believed."""

from reshard.core.errors import SignatureError
from reshard.core.signing.bundle import Bundle, parse_bundle
from reshard.core.signing.documents import MAX_DOCUMENT_BYTES
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.publishing import SIGNATURE_NAME
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.urls import Location


def read_signature(directory: Location) -> bytes | None:
    """Return the bytes of a directory's signature; None if it has none.

    Raises:
        TargetError: it is too large, or not a regular file.
        StorageError: it cannot be read.
    """
    return unless_missing(lambda: read_own_file(directory.child(SIGNATURE_NAME), MAX_DOCUMENT_BYTES))


def find_bundle(directory: Location) -> Bundle | None:
    """Return a directory's signature, parsed; None if it has none.

    Raises:
        SignatureError: it is damaged, or of an unsupported kind.
        TargetError, StorageError: as `read_signature`.
    """
    data = read_signature(directory)
    return None if data is None else parse_bundle(data, str(directory.child(SIGNATURE_NAME)))


def needed_bundle(directory: Location) -> Bundle:
    """Return a directory's signature, parsed; a SignatureError if it has none. Raises as `find_bundle`."""
    bundle = find_bundle(directory)
    if bundle is None:
        raise SignatureError(f"{directory.child(SIGNATURE_NAME)}: does not exist: the checkpoint is not signed")
    return bundle

"""JSON of signatures and statements, which may come from strangers: bounded, and read in one way only."""

import base64
import binascii
from typing import Any, TypeVar

import msgspec

from reshard.core.errors import SignatureError
from reshard.core.runtime.metadata import parse_json, refuse_constant
from reshard.core.runtime.wording import size_text
from reshard.core.text.printing import printable

MAX_DOCUMENT_BYTES = 2**28
"""Size of a signature; one with a million files has 250 MB."""

Shape = TypeVar("Shape")


def parse_document(data: bytes, shape: type[Shape], origin: str) -> Shape:
    """Parse a JSON document to a record; members that the record does not have are passed over.

    Raises:
        SignatureError: it is too large, not JSON, ambiguous (a key twice, NaN), nested too deeply, or of another shape.
        LimitError: parsing would exceed the memory limit.
    """
    return shaped(load_document(data, origin), shape, origin)


def load_document(data: bytes, origin: str) -> Any:
    """Parse a JSON document; raises as `parse_document`."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise SignatureError(f"{origin}: has more than {size_text(MAX_DOCUMENT_BYTES)}: not a signature")
    return parse_json(data, origin, SignatureError, constants=refuse_constant)


def shaped(value: Any, shape: type[Shape], origin: str) -> Shape:
    """Convert parsed JSON to a record; a SignatureError that says which member is missing or of another type."""
    try:
        return msgspec.convert(value, shape)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:  # a key may be half a surrogate pair
        raise SignatureError(f"{origin}: not a readable signature: {printable(str(error))[:200]}") from error


def decoded(text: str, what: str, origin: str) -> bytes:
    """Decode base64; a SignatureError names `what` it was."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise SignatureError(f"{origin}: its {what} is not base64") from error


def encoded(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode()

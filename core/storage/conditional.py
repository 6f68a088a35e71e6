"""Requests that a server of the S3 protocol carries out only while an object has a certain etag.

Not every server judges such conditions: some ignore them, some refuse each request that has one. So a refusal proves
nothing by itself; look at the object.
"""

from typing import Any

from reshard.core.storage.s3_answers import status_of
from reshard.core.storage.urls import Location

_REFUSALS = (400, 404, 412, 501)
"""HTTP statuses: the object has changed or is gone, or the server does not support conditions."""


def replaced_if(location: Location, data: bytes, etag: str) -> bool:
    """Replace a small object that has an etag; False if the server refuses. A single attempt."""
    return _carried_out(location, "put_object", Body=data, IfMatch=_quoted(etag))


def removed_if(location: Location, etag: str) -> bool:
    """Remove an object that has an etag; False if the server refuses. A single attempt."""
    return _carried_out(location, "delete_object", IfMatch=_quoted(etag))


def _quoted(etag: str) -> str:
    return f'"{etag.strip(chr(34))}"'  # some servers list etags without quotation marks


def _carried_out(location: Location, method: str, **arguments: Any) -> bool:
    bucket, key, _ = location.fs.split_path(location.path)
    try:
        location.fs.call_s3(method, Bucket=bucket, Key=key, **arguments)
    except OSError as error:
        if status_of(error) in _REFUSALS:
            return False
        raise
    return True

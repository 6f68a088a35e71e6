"""Who signed a request."""

import re

from tests.support.canned_server import Asked

_CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/[0-9]{8}/(?P<region>[^/]+)/s3/aws4_request")


def signed_by(request: Asked) -> tuple[str, str, str | None]:
    """The key and the region of a request's signature, and its token."""
    found = _CREDENTIAL.search(request.headers["authorization"])
    assert found
    return found["key"], found["region"], request.headers.get("x-amz-security-token")

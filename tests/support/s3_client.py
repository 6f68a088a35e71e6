"""A plain S3 client that makes one request for each call and tries nothing again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.s3_server import ACCESS_KEY, SECRET_KEY


def s3_client(url: str, *, secret_key: str = SECRET_KEY, verify: str | None = None, **settings: object) -> Any:
    """A client of the endpoint; `verify` is a file of certificates, `settings` are botocore's."""
    plain: dict[str, object] = {
        "signature_version": "s3v4",
        "retries": {"total_max_attempts": 1},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "max_pool_connections": 32,
    }
    return _session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=secret_key,
        verify=verify,
        config=Config(**(plain | settings)),
    )


@cache
def _session() -> Any:
    # it reads megabytes of descriptions, once
    return botocore.session.get_session()


@contextmanager
def shared_descriptions() -> Iterator[None]:
    """Lets sessions share S3's descriptions: megabytes of JSON, which each file system would parse anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


def code_of(request: Callable[[], object]) -> str:
    """The code of the error that a request is answered with; the status, if the answer has no body."""
    try:
        request()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "none"

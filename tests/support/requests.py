"""Requests with a source and a target, and how they are refused."""

import pytest

from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionRequest, build_request


def request(**options: object) -> ConversionRequest:
    return build_request(**({"source": "/src", "target": "/out"} | options))


def refusal(**options: object) -> str:
    with pytest.raises(InputError) as caught:
        request(**options)
    return str(caught.value)

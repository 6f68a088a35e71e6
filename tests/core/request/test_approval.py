"""The request of a conversion that somebody approves."""

from typing import Any

import pytest
from pydantic import ValidationError

from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.request.conversion import ConversionRequest


def test_it_is_the_conversion_but_for_the_question() -> None:
    fields: dict[str, Any] = {"source": "/a", "target": "/b", "cast": ["*=bfloat16"], "overwrite": True}
    assert ApprovedConversionRequest(**fields, approval_seconds=60).conversion() == ConversionRequest(**fields)


def test_there_is_time_to_decide() -> None:
    with pytest.raises(ValidationError, match="approval_seconds"):
        ApprovedConversionRequest(source="/a", target="/b", approval_seconds=0)

"""The request of a conversion that somebody approves."""

from typing import Any

import pytest
from pydantic import ValidationError

from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.request.conversion import ConversionRequest


def test_it_is_the_conversion_but_for_the_question() -> None:
    fields: dict[str, Any] = {"source": "/a", "target": "/b", "cast": ["*=bfloat16"], "overwrite": True}
    assert ApprovedConversionRequest(**fields, approval_seconds=60).conversion() == ConversionRequest(**fields)


@pytest.mark.parametrize("seconds", [0, 10**15])
def test_there_is_time_to_decide_that_a_calendar_has(seconds: int) -> None:
    with pytest.raises(ValidationError, match="approval_seconds"):
        ApprovedConversionRequest(source="/a", target="/b", approval_seconds=seconds)

"""A conversion that is only planned, or loaded as arrays."""

import pytest

from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.planning import PlanRequest
from reshard.core.request.validation import build_options


def test_a_plan_needs_no_target() -> None:
    assert build_options(PlanRequest, source="s").target == ""
    with pytest.raises(InputError, match="TARGET"):
        build_request(source="s")


def test_a_plan_has_all_options_of_a_conversion() -> None:
    assert list(PlanRequest.model_fields) == list(ConversionRequest.model_fields)
    with pytest.raises(InputError, match="TARGET: a URL must not carry credentials"):
        build_options(PlanRequest, source="s", target="s3://me:secret@host/x")

"""Options of a conversion that is only planned."""

import pytest

from reshard.core.errors import InputError
from reshard.core.options.validation import build_options
from reshard.core.request.planning import PlanRequest


def test_no_target_is_needed() -> None:
    assert build_options(PlanRequest, source="/src").target == ""


def test_a_target_carries_no_credentials() -> None:
    with pytest.raises(InputError, match="target: a URL must not carry credentials"):
        build_options(PlanRequest, source="/src", target="s3://user:password@bucket/x")

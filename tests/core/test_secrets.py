"""Secrets in URLs are refused, and never repeated."""

import pytest

from core.errors import InputError
from core.request import build_request


@pytest.mark.parametrize("field", ["source", "target", "source_strategy", "target_strategy"])
def test_a_url_with_a_password_is_refused_without_repeating_it(field: str) -> None:
    options = {"source": "a", "target": "b", field: "s3://bob:hunter2@bucket/x"}
    with pytest.raises(InputError, match="must not carry credentials") as caught:
        build_request(**options)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)

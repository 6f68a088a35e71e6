"""Building requests from options: messages that name each wrong option."""

import pytest

from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from tests.support.requests import refusal


def test_what_is_missing_is_named_alone() -> None:
    with pytest.raises(InputError) as caught:
        build_request(source="/src", ranks="1")
    assert str(caught.value) == "target: is missing"


def test_all_that_is_wrong_is_told_at_once() -> None:
    lines = refusal(ranks="x", step="y", workers=-1).splitlines()
    assert [line.split()[0] for line in lines] == ["workers", "step", "ranks"]

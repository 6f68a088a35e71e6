"""Options of targets with rank folders."""

import pytest

from reshard.core.layouts.options import own_options
from reshard.core.layouts.ranks.options import RanksOptions
from tests.support.requests import refusal, request


@pytest.mark.parametrize("prefix", ["a/b", "/", "..", "a..b", ".hidden", "a\\b", "a\0"])
def test_prefixes_that_lead_elsewhere(prefix: str) -> None:
    assert refusal(prefix=prefix) == f"prefix {prefix!r}: must be a plain name: no '/', no '..', no dot in front"


@pytest.mark.parametrize("prefix", ["", "checkpoint_", "net-10_5_", "a.b ü"])
def test_plain_prefixes(prefix: str) -> None:
    assert own_options(request(prefix=prefix), RanksOptions).prefix == prefix

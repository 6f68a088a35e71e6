"""Times in records."""

from datetime import UTC, datetime

import pytest

from reshard.core.runtime.moments import parse_moment


@pytest.mark.parametrize("text", ["2026-11-26T17:37:00", "2026-11-26T17:37:00+00:00", "2026-11-26T19:37:00+02:00"])
def test_a_time_is_given_in_utc_whatever_its_zone(text: str) -> None:
    assert parse_moment(text) == datetime(2026, 11, 26, 17, 37, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_time_in_utc_is_none(text: str) -> None:
    assert parse_moment(text) is None

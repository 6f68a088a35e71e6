"""Values for common.json, as texts."""

import pytest

from reshard.core.layouts.checkpoint2.common_texts import parse_common_texts
from reshard.core.layouts.state_numbers import Number


@pytest.mark.parametrize(
    ("text", "value"), [("40", 40), ("-1", -1), ("2.5", 2.5), ("1e3", 1000.0), ("null", None), (" 4", 4)]
)
def test_numbers_and_null(text: str, value: Number) -> None:
    [parsed] = parse_common_texts([f"loss_scale={text}"]).values()
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize("text", ["", "true", '"4"', "[1]", "Infinity", "NaN", "0x10", "[" * 100_000])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="step_num is a number or null in common.json"):
        parse_common_texts([f"step_num={text}"])

"""Text as it may be printed."""

import pytest

from reshard.core.text.printing import listed_lines, printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 大", "größe 大"),
        ("größe\x1b[0m\r", "größe\\x1b[0m\\r"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\udcff\u202e\x9b", "\\udcff\\u202e\\x9b"),
    ],
)
def test_what_a_terminal_would_act_on_is_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_line_breaks_of_a_message_stay() -> None:
    assert printable_lines("a\x1b\n  - b\r\n") == "a\\x1b\n  - b\\r\n"


def test_what_takes_lines_of_its_own_is_limited() -> None:
    assert listed_lines(["a", "b"], 2) == ["a", "b"]
    assert listed_lines(["a", "b", "c"], 2) == ["a", "b", "and 1 more"]
    assert listed_lines([]) == []

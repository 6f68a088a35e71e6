import pytest

from reshard.core.options.fields import parse_ranks
from reshard.core.runtime.wording import (
    NameText,
    counted,
    html_text,
    listed,
    quoted,
    ranks_text,
    seconds_text,
    size_text,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**30, "1.0 GiB"),
        (5 * 2**50, "5.0 PiB"),
        (2**70, "1048576.0 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (245, "4 min 05 s"), (7384, "2 h 03 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize("text", ["0", "0-3,7", "1,3,5-6", ""])
def test_ranks_are_written_as_the_option_reads_them(text: str) -> None:
    assert ranks_text(parse_ranks(text)) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_counts(count: int, text: str) -> None:
    assert counted(count, "rank") == text


def test_expressions_stand_in_quotes_as_they_were_written() -> None:
    assert [quoted(text) for text in (r"h\.(\d)", "a'b", "a\nb")] == [r"'h\.(\d)'", '"a\'b"', r"'a\nb'"]


def test_html_shows_a_text_as_it_is() -> None:
    assert html_text('<b>"&\x1b') == "&lt;b&gt;&quot;&amp;\\x1b"


def test_a_name_is_exact_but_in_messages() -> None:
    name = NameText("a\nb")
    assert name == "a\nb"
    assert str(name) + "/c" == "a\nb/c"
    assert f"{name}: is damaged" == "a\\nb: is damaged"


def test_what_a_line_lists_is_limited() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert listed(["a", "b"], None) == "a, b"
    assert listed([]) == ""

import pytest

from cli.output import print_table, printable, ranks_text, seconds_text, size_text
from core.request import parse_ranks


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


def test_a_table_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("x" * 150, 1), ("[red]", 1000)], right=("n",))
    assert capsys.readouterr().out.splitlines() == [
        "name".ljust(150) + "     n",
        "x" * 150 + "     1",
        "[red]".ljust(150) + "  1000",
    ]


def test_what_cannot_be_printed_is_escaped() -> None:
    assert printable("größe\x1b[0m\r") == "gr\\xf6\\xdfe\\x1b[0m\\r"
    assert printable("größe") == "größe"

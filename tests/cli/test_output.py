import pytest

from cli.output import print_table
from core.wording import printable


def test_a_table_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("x" * 150, 1), ("[red]", 1000)], right=("n",))
    assert capsys.readouterr().out.splitlines() == [
        "name".ljust(150) + "     n",
        "x" * 150 + "     1",
        "[red]".ljust(150) + "  1000",
    ]


def test_what_cannot_be_printed_is_escaped() -> None:
    assert printable("größe\x1b[0m\r") == "größe\\x1b[0m\\r"
    assert printable("größe") == "größe"

import pytest

from reshard.cli.output import print_error, print_facts, print_line, print_table


def test_a_table_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("x" * 150, 1), ("[red]", 1000)], right=("n",))
    assert capsys.readouterr().out.splitlines() == [
        "name".ljust(150) + "     n",
        "x" * 150 + "     1",
        "[red]".ljust(150) + "  1000",
    ]


def test_nothing_that_is_printed_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("one\x1b[2J\nline")
    print_facts([("name", "a\nb\r")])
    print_error("wrong\x1b\n  - here")
    shown = capsys.readouterr()
    assert shown.out == "one\\x1b[2J\\nline\nname  a\\nb\\r\n"
    assert shown.err == "reshard: error: wrong\\x1b\n  - here\n"


def test_no_secret_of_a_url_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("server http://admin:hunter2@host:4200/api")
    assert capsys.readouterr().out == "server http://…@host:4200/api\n"

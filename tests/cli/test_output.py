import fcntl
import io
import os
import struct
import sys
import termios

import pytest

from reshard.cli.output import print_error, print_facts, print_line, print_table, terminal_width

PATH = "rank_0/checkpoint_0-of-a-model-with-a-long-name.safetensors"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals of 40 columns on stdout and stderr."""
    monkeypatch.setattr("reshard.cli.output.terminal_width", lambda stream: 40)


def test_the_width_is_that_of_the_streams_own_terminal() -> None:
    main, terminal = os.openpty()
    with open(main, "rb"), open(terminal, "w") as stream:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 62, 0, 0))
        assert terminal_width(stream) == 62


def test_a_pipe_has_no_width() -> None:
    reading, writing = os.pipe()
    with open(reading), open(writing, "w") as stream:
        assert terminal_width(stream) is None


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    return lines


@pytest.mark.usefixtures("narrow")
def test_a_narrow_terminal_shortens_paths_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("rank", "file", "bytes"), [(0, PATH, 123456789012)], right=("rank", "bytes"))
    assert lines_of(capsys) == [
        "rank  file                         bytes",
        "   0  rank_0/checkpoint_0…  123456789012",
    ]


@pytest.mark.usefixtures("narrow")
def test_a_narrow_terminal_leaves_columns_out_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    headers = ("rank", "file", "size", "from", "seconds")
    row = (0, PATH, "123.4 GiB", "0-511", "1234.5")
    print_table(headers, [row], right=("rank", "size", "seconds"), optional=("seconds", "from"))
    assert lines_of(capsys) == [
        "rank  file                          size",
        "   0  rank_0/checkpoint_0…ors  123.4 GiB",
        "(no room for: seconds, from; --json has",
        " all)",
    ]


@pytest.mark.usefixtures("narrow")
def test_long_notes_are_wrapped_in_their_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("to", "/a/" + "long/" * 10), ("note", "using step 3_1200, the newest that all ranks have")])
    assert capsys.readouterr().out.splitlines() == [
        "to    /a/" + "long/" * 10,  # whole, to be copied
        "note  using step 3_1200, the newest that",
        "      all ranks have",
    ]


@pytest.mark.usefixtures("narrow")
def test_long_errors_are_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("2 ranks failed:\n  rank_0: the file differs from what was written")
    assert capsys.readouterr().err.splitlines() == [
        "reshard: error: 2 ranks failed:",
        "  rank_0: the file differs from what was",
        "  written",
    ]


@pytest.mark.usefixtures("narrow")
def test_a_terminal_without_the_ellipsis_gets_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    print_table(("file",), [(PATH,)])
    sys.stdout.flush()
    assert written.getvalue().decode().splitlines()[1] == "rank_0/checkpoint_0..ng-name.safetensors"


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

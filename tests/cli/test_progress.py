import io
import sys
import threading
import time

import pytest
from rich.console import Console

from reshard.cli.bar import Bar
from reshard.cli.progress import LineProgress, shown_progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LineProgress("converting", clock)
    clock.now = 100.0
    progress.begin(100 * 2**20)
    for second in range(1, 26):
        clock.now = 100.0 + second
        progress.advance(2**20)
    assert capsys.readouterr().err.splitlines() == [
        "reshard: converting: 10 %, 10.0 MiB of 100.0 MiB, 1.0 MiB/s, 1 min 30 s left",
        "reshard: converting: 20 %, 20.0 MiB of 100.0 MiB, 1.0 MiB/s, 1 min 20 s left",
    ]


def test_notes_are_lines_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("converting") as progress:
        progress.note("[0:4] is " + "long " * 100)
    assert capsys.readouterr() == ("", "reshard: [0:4] is " + "long " * 100 + "\n")


def test_many_threads_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LineProgress("converting", clock)
    progress.begin(80_001)

    def work() -> None:
        for _ in range(10_000):
            progress.advance(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now = 10.0
    progress.advance(1)
    assert "100 %, 78.1 KiB of 78.1 KiB" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with shown_progress("converting"):
        pass
    assert "looking" in capsys.readouterr().err


def test_the_bar_stays_one_line_on_a_narrow_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with Bar("converting", console) as bar:
        bar.begin(2**50)
        for _ in range(3):
            bar.advance(2**40)
            time.sleep(0.01)
        shown = screen.getvalue()
        bar._display.refresh()
        state = screen.getvalue()[len(shown) :]
    assert "3.0 TiB of 1.0 PiB" in state
    assert "left" in state
    assert "\n" not in state


def test_the_bar_shows_bytes_and_notes_without_markup() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with Bar("converting", console) as bar:
        bar.note("resuming [0:4] of [bold]ranks[/bold]")
        bar.begin(4 * 2**20)
        bar.advance(2**20)
    shown = screen.getvalue()
    assert "resuming [0:4] of [bold]ranks[/bold]" in shown
    assert "converting" in shown
    assert "1.0 MiB of 4.0 MiB" in shown

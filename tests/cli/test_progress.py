import io
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from reshard.cli.bar import Bar
from reshard.cli.progress import LineProgress, shown_progress
from reshard.core.conversion.convert import convert
from reshard.core.runtime.progress import SilentProgress
from tests.support.checkpoints import case


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LineProgress(clock)
    clock.now = 100.0
    progress.begin("converting", 100 * 2**20)
    for second in range(1, 26):
        clock.now = 100.0 + second
        progress.advance(2**20)
    assert capsys.readouterr().err.splitlines() == [
        "reshard: converting: 10 %, 10.0 MiB of 100.0 MiB, 1.0 MiB/s, 1 min 30 s left",
        "reshard: converting: 20 %, 20.0 MiB of 100.0 MiB, 1.0 MiB/s, 1 min 20 s left",
    ]


def test_notes_are_lines_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress() as progress:
        progress.note("[0:4] is " + "long " * 100)
    assert capsys.readouterr() == ("", "reshard: [0:4] is " + "long " * 100 + "\n")


def test_many_threads_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = LineProgress(clock)
    progress.begin("converting", 80_001)

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
    with shown_progress():
        pass
    assert "starting" in capsys.readouterr().err


def test_the_bar_stays_one_line_on_a_narrow_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with Bar(console) as bar:
        bar.begin("converting", 2**50)
        for _ in range(3):
            bar.advance(2**40)
            time.sleep(0.01)
        shown = screen.getvalue()
        bar._display.refresh()
        state = screen.getvalue()[len(shown) :]
    assert "3.0 TiB of 1.0 PiB" in state
    assert "left" in state
    assert "\n" not in state


def test_no_number_is_cut_on_a_narrower_one() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=62, color_system=None)
    with Bar(console) as bar:
        bar.begin("converting, checking", 2**50)
        for _ in range(3):
            bar.advance(2**48)
            time.sleep(0.01)
        shown = screen.getvalue()
        bar._display.refresh()
        state = screen.getvalue()[len(shown) :]
    assert "converting, checking" in state
    assert re.search(r" 75 %, [\d.]+ [PT]iB/s, [\d.]+ s left", state)
    assert "…" not in state


def test_the_bar_shows_bytes_and_notes_without_markup() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with Bar(console) as bar:
        bar.note("resuming [0:4] of [bold]ranks[/bold]")
        bar.begin("converting", 4 * 2**20)
        bar.advance(2**20)
    shown = screen.getvalue()
    assert "resuming [0:4] of [bold]ranks[/bold]" in shown
    assert "converting" in shown
    assert "1.0 MiB of 4.0 MiB" in shown


def test_each_phase_has_a_bar_of_its_own() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with Bar(console) as bar:
        bar.begin("converting", 4 * 2**20)
        bar.advance(4 * 2**20)
        bar.begin("publishing")
        bar._display.refresh()
        publishing = screen.getvalue().rpartition("publishing")[2]
        bar.begin("comparing values", 8 * 2**20)
        bar._display.refresh()
    assert "MiB" not in publishing
    assert "0 B of 8.0 MiB" in screen.getvalue()


def test_a_conversion_goes_through_its_phases(tmp_path: Path) -> None:
    begun: list[tuple[str, int]] = []
    done: dict[str, int] = {}

    class Listener(SilentProgress):
        def begin(self, phase: str, total_bytes: int = 0) -> None:
            begun.append((phase, total_bytes))

        def advance(self, count_bytes: int) -> None:
            done[begun[-1][0]] = done.get(begun[-1][0], 0) + count_bytes

    convert(case(7009).request(tmp_path / "out", verify="content", workers=1), Listener())
    assert [phase for phase, _ in begun] == [
        *("reading headers", "planning", "converting, checking", "comparing values", "publishing"),
    ]
    for phase, total_bytes in begun[2:4]:
        assert total_bytes <= done[phase] <= 1.5 * total_bytes  # headers, and gaps between shards
    assert set(done) == {"converting, checking", "comparing values"}

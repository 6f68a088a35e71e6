import logging

import pytest

from reshard.core.runtime.progress import SilentProgress
from reshard.core.runtime.progress_lines import LoggedProgress, ProgressLines, state_text


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 0, 5, "100 %, 0 B of 0 B"),
        (0, 2048, 5, "0 %, 0 B of 2.0 KiB"),
        (2060, 2048, 2, "100 %, 2.0 KiB of 2.0 KiB, 1.0 KiB/s, 0.0 s left"),
    ],
)
def test_state(done: int, total: int, seconds: float, text: str) -> None:
    assert state_text(done, total, seconds) == text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_notes_at_once_and_the_state_every_ten_seconds() -> None:
    said: list[str] = []
    clock = Clock()
    lines = ProgressLines(said.append, clock)
    lines.begin("reading", 100)
    lines.advance(10)
    lines.note("resuming")
    clock.now = 10.0
    lines.advance(10)
    lines.advance(10)
    assert said == ["resuming", "reading: 20 %, 20 B of 100 B, 2 B/s, 40.0 s left"]


def test_phases_count_their_own_bytes_and_long_ones_end_with_a_line() -> None:
    said: list[str] = []
    clock = Clock()
    lines = ProgressLines(said.append, clock)
    lines.begin("reading headers")
    clock.now = 12.0
    lines.begin("converting", 1000)
    lines.advance(1000)
    clock.now = 17.0  # short: no line
    lines.begin("comparing values", 100)
    clock.now = 37.0
    lines.advance(40)
    lines.advance(60)
    lines.end()
    lines.end()
    assert said == [
        "reading headers: done, 12.0 s",
        "comparing values: 40 %, 40 B of 100 B, 2 B/s, 30.0 s left",
        "comparing values: done, 100 B, 5 B/s, 20.0 s",
    ]


class Counted(SilentProgress):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def note(self, message: str) -> None:
        self.seen.append(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        self.seen.append((phase, total_bytes))

    def advance(self, count_bytes: int) -> None:
        self.seen.append(count_bytes)


def test_a_listener_gets_everything_and_so_does_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reshard")
    listener = Counted()
    progress = LoggedProgress(listener)
    progress.note("from s3://me:secret@bucket\x1b[1m")
    progress.begin("reading", 8)
    progress.advance(8)
    assert listener.seen == ["from s3://me:secret@bucket\x1b[1m", ("reading", 8), 8]
    assert caplog.record_tuples == [("reshard", logging.INFO, "from s3://…@bucket\\x1b[1m")]


def test_without_a_listener_it_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reshard")
    LoggedProgress().note("waiting")
    assert caplog.messages == ["waiting"]

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
    lines = ProgressLines(said.append, "reading", clock)
    lines.begin(100)
    lines.advance(10)
    lines.note("resuming")
    clock.now = 10.0
    lines.advance(10)
    lines.advance(10)
    assert said == ["resuming", "reading: 20 %, 20 B of 100 B, 2 B/s, 40.0 s left"]


class Counted(SilentProgress):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def note(self, message: str) -> None:
        self.seen.append(message)

    def begin(self, total_bytes: int) -> None:
        self.seen.append(("begin", total_bytes))

    def advance(self, count_bytes: int) -> None:
        self.seen.append(count_bytes)


def test_a_listener_gets_everything_and_so_does_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reshard")
    listener = Counted()
    progress = LoggedProgress(listener)
    progress.note("from s3://me:secret@bucket\x1b[1m")
    progress.begin(8)
    progress.advance(8)
    assert listener.seen == ["from s3://me:secret@bucket\x1b[1m", ("begin", 8), 8]
    assert caplog.record_tuples == [("reshard", logging.INFO, "from s3://…@bucket\\x1b[1m")]


def test_without_a_listener_it_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reshard")
    LoggedProgress().note("waiting")
    assert caplog.messages == ["waiting"]

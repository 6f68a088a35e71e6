"""Prefect's log lines of runs and tasks after reshard's filter."""

import logging

import pytest

from reshard.core.errors import InputError
from reshard.flows.outcome import failed, tail_of


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.formatted: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.formatted.append(self.format(record))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    handler = Lines()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
    return handler


def test_log_lines_and_state_messages_are_printable_and_hold_no_secrets(lines: Lines) -> None:
    state = failed(InputError("a\x1b[2J: https://h/x?token=hunter2\n  - b"))
    assert state.message == "a\\x1b[2J: https://h/x?token=…\n  - b"
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).error("%s of %s", "b\x1b[2J\r", "s3://AK:hunter2@b")
    assert lines.messages == ["b\\x1b[2J\\r of s3://…@b"] * 2


def test_the_stack_trace_of_a_bug_is_printable_too(lines: Lines) -> None:
    failed(InputError("no"))
    try:
        raise KeyError("a\x1b https://h/x?token=hunter2")
    except KeyError:
        logging.getLogger("prefect.flow_runs").exception("Encountered exception")
    (line,) = lines.formatted
    assert "Traceback" in line
    assert "hunter2" not in line
    assert all(each.isprintable() for each in line.split("\n"))


def test_a_cancelled_run_is_called_neither_running_nor_its_tasks_failed(lines: Lines) -> None:
    failed(InputError("no"))
    logging.getLogger("prefect.flow_runs").error("Flow run was cancelled.")
    logging.getLogger("prefect.flow_runs").error("Finished in state Running()")
    tasks = logging.getLogger("prefect.task_runs")
    tasks.error("Finished in state Cancelled('stopped')")
    tasks.error("Crash detected! Execution was aborted by a termination signal.")
    tasks.error("Finished in state Crashed('Execution was aborted by a termination signal.')")
    tasks.error("Finished in state Failed('no space')")
    assert lines.messages == ["Flow run was cancelled.", "Finished in state Failed('no space')"]


def test_a_process_that_is_ended_from_outside_still_says_so(lines: Lines) -> None:
    failed(InputError("no"))
    crash = "Crash detected! Execution was aborted by a termination signal."
    logging.getLogger("prefect.flow_runs").error(crash)
    assert lines.messages == [crash]


@pytest.mark.parametrize(
    ("url", "tail"),
    [
        ("/data/llama/out/", "llama/out"),
        ("out", "out"),
        ("/data/llama-3-8b-continued-pretraining-2026-11/out", "llama-3-8b-c…ing-2026-11/out"),
        ("/data/run@5/x", "run@5/x"),
        ("s3://AK:hunter2@bucket/x", "…@bucket/x"),
        ("https://h/x?token=hunter2", "h/x?token=…"),
        ("/data/a\x1b\n\udcff", "data/a\\x1b\\n\\udcff"),
    ],
)
def test_a_run_is_named_by_printable_names_without_secrets(url: str, tail: str) -> None:
    assert tail_of(url) == tail

"""What `reshard schedule` refuses before it asks a server."""

from collections.abc import Callable
from typing import Any

import pytest

JOB = ("/data/checkpoint", "/data/serving")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (JOB, "give either --cron or --every"),
        ((*JOB, "--cron", "0 2 * * *", "--every", "1h"), "give either --cron or --every"),
        ((*JOB, "--every", "1h", "--timezone", "UTC"), "--timezone applies to --cron: leave it out, or use"),
        ((), "Missing argument 'SOURCE'."),
        (("/data/checkpoint", "--every", "1h"), "Missing argument 'TARGET'."),
        (
            ("--list", "--pause", "llama"),
            "--list can only be combined with --json: leave out --pause\n",
        ),
        (
            ("--remove", "llama", *JOB, "--workers", "2"),
            "--remove can only be combined with --json: leave out SOURCE, TARGET, --workers\n",
        ),
        ((*JOB, "--cron", "0 2 * *"), "--cron '0 2 * *': not a cron expression: give minute, hour, "),
        ((*JOB, "--every", "1h", "--workers", "-1"), "--workers -1: "),
    ],
)
def test_wrong_input_needs_no_server(reshard: Callable[..., Any], arguments: tuple[str, ...], message: str) -> None:
    shown = reshard("schedule", *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith(f"reshard: error: {message}")


def test_without_a_server_it_says_how_to_name_one(reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    shown = reshard("schedule", *JOB, "--every", "1h")
    assert shown.code == 2
    assert shown.err.startswith("reshard: error: no Prefect server is configured. Set PREFECT_API_URL=")

"""Progress of a run, and the signal that stops its work."""

import threading

import pytest
from prefect.logging import disable_run_logger

from reshard.core.errors import StoppedError
from reshard.core.runtime.progress import SilentProgress
from reshard.tasks.progress import RunProgress


def test_work_ends_at_its_next_block_when_the_run_is_stopped() -> None:
    with disable_run_logger():
        progress = RunProgress(SilentProgress(), threading.Event())
    progress.advance(1)
    progress.stop()
    with pytest.raises(StoppedError, match="stopped"):
        progress.advance(1)

"""What a manifest says of the run that completed its target."""

from datetime import UTC, datetime, timedelta

from reshard.core.checkpoint.manifest import RunRecord
from reshard.core.runtime.retry import retries_counted
from reshard.core.runtime.this_process import host_name, user_name


def run_record(
    seconds: float, *, read_bytes: int, written_bytes: int, resumed_ranks: int, peak_memory_bytes: int | None
) -> RunRecord:
    """Describe a run in this process that has taken so many seconds."""
    return RunRecord(
        begun=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        user=user_name(),
        host=host_name(),
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        resumed_ranks=resumed_ranks,
        retried_requests=retries_counted(),
        peak_memory_bytes=peak_memory_bytes,
    )

"""What a conversion writes down with its own flow run, as labels: they come with the run whenever it is read.

Artifacts and events have the same figures, but each costs a request of its own to read, and a server keeps events for
a week. Labels stay as long as the run.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect import get_client
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from reshard.core.conversion.report import ConversionReport
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.retry import retries_counted
from reshard.core.runtime.this_process import host_name, peak_memory_bytes, user_name
from reshard.core.text.printing import printable

PREFIX = "reshard."
USER, HOST, PARENT_RUN = "user", "host", "parent-run"
MEMORY_LIMIT, PEAK_MEMORY, RETRIED = "memory-limit-bytes", "peak-memory-bytes", "retried-requests"
DECISION, COMMENT = "decision", "comment"
COMMITTED, SIZE, RESUMED = "committed", "size-bytes", "resumed-ranks"
FIGURES = {
    "identity": "identity",
    "source": "source",
    "step": "step",
    "target": "target",
    "source_world_size": "source-ranks",
    "target_world_size": "target-ranks",
    "read_bytes": "read-bytes",
    "written_bytes": "written-bytes",
    "verified": "verified",
    "fingerprint": "fingerprint",
}
"""Field of a report, which is a field of an entry as well -> its label."""
_MAX_CHARACTERS = 2000

Label = str | int | float | bool


@contextmanager
def labelled(request: ConversionRequest) -> Iterator[None]:
    """Write down who carries out the run before the block, and what it took after it, unless it was interrupted.

    A run that is being stopped does not wait for a server that does not answer.
    """
    is_alone = not request.dask_scheduler  # the memory of other processes is not known
    facts: dict[str, Label] = {USER: user_name(), HOST: host_name()}
    label_run(facts | ({MEMORY_LIMIT: request.memory_limit_bytes} if is_alone else {}) | _parent())
    try:
        yield
    except Exception:
        _label_end(is_alone)
        raise
    _label_end(is_alone)


def _parent() -> dict[str, Label]:
    try:
        parent = flow_run.parent_flow_run_id
    except (httpx.HTTPError, PrefectException) as error:
        _warn(error)
        return {}
    return {PARENT_RUN: str(parent)} if parent else {}


def _label_end(is_alone: bool) -> None:
    peak_bytes = peak_memory_bytes() if is_alone else None
    label_run({RETRIED: retries_counted()} | ({} if peak_bytes is None else {PEAK_MEMORY: peak_bytes}))


def label_report(report: ConversionReport) -> None:
    """Write down the figures of a conversion."""
    figures = report.model_dump(mode="json", include=set(FIGURES), exclude_none=True)
    facts: dict[str, Label] = {FIGURES[name]: value for name, value in figures.items()}
    facts[COMMITTED] = report.committed
    facts[RESUMED] = sum(rank.outcome == "resumed" for rank in report.ranks)
    if len(report.ranks) == report.target_world_size:
        facts[SIZE] = sum(rank.size_bytes for rank in report.ranks)
    label_run(facts)


def label_decision(decision: str, comment: str) -> None:
    """Write down what was answered to the question of the run."""
    label_run({DECISION: decision, COMMENT: comment})


def label_run(facts: Mapping[str, Label]) -> None:
    """Add labels to the current run. A failure is a warning in the run's log: the conversion is what counts."""
    labels = {f"{PREFIX}{name}": _bounded(value) for name, value in facts.items()}
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(UUID(str(flow_run.id)), labels)
    except (httpx.HTTPError, PrefectException) as error:
        _warn(error)


def _warn(error: Exception) -> None:
    get_run_logger().warning("figures for the history could not be stored: %s", error)


def _bounded(value: Label) -> Label:
    return printable(value)[:_MAX_CHARACTERS] if isinstance(value, str) else value

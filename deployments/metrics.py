"""Metrics of conversions for Prometheus, made of what a Prefect server knows.

Nothing is counted here. Gauges say what the server knows now. Counters are sums over the conversions that the server
has as completed, which stay completed, so the exporter may be restarted, or run twice, without losing or doubling any.
A conversion that fails and is retried with success is one completed conversion: failures are gauges, and may go down.

Labels are names of deployments, schedules, work pools and states, never places.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from reshard.core.conversion.history import FAILURES, ConversionState, HistoryEntry
from reshard.core.errors import ReshardError
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import parse_url
from reshard.deployments.job_schedules import LATEST, name_of

OPEN_STATES = {
    StateType.SCHEDULED: "scheduled",
    StateType.PENDING: "pending",
    StateType.RUNNING: "running",
    StateType.PAUSED: "suspended",
    StateType.CANCELLING: "cancelling",
}
_BY_NAME = {"Late": "late", "AwaitingRetry": "retrying", "AwaitingConcurrencySlot": "waiting_for_slot"}
"""Names of scheduled states that mean more than that a run is due."""
_WAITING = ("scheduled", "late", "retrying", "waiting_for_slot", "pending")
_RUN_STATES = (*_WAITING, "running", "suspended", "cancelling")
ENDED = (
    *(ConversionState.COMMITTED, ConversionState.UNFINISHED, ConversionState.FAILED),
    *(ConversionState.CRASHED, ConversionState.CANCELLED, ConversionState.REFUSED),
)
_NAME_OF_LATEST = LATEST.partition("/")[2]
_CONVERTING = ("convert", "convert-expert", "convert-with-approval", "convert-latest")
_WITHOUT_DEPLOYMENT = "none"
"""The label of conversions that scripts and commands started."""
_BUCKETS_SECONDS = (1, 10, 30, 60, 300, 900, 1800, 3600, 4 * 3600, 12 * 3600)


class Pool(Record):
    """A work pool, and the statuses of its workers."""

    name: str
    is_paused: bool
    worker_statuses: Sequence[str]


def run_metrics(runs: Sequence[FlowRun], deployments: Sequence[DeploymentResponse], now: datetime) -> Iterator[Metric]:
    """Yield the runs that are due or in progress, by deployment and state."""
    names = {each.id: each.name for each in deployments}
    states = Counter((names[run.deployment_id], _run_state(run)) for run in runs if run.deployment_id in names)
    counted = GaugeMetricFamily(
        "reshard_runs", "Runs of deployments that are due or in progress.", labels=["deployment", "state"]
    )
    oldest = GaugeMetricFamily(
        "reshard_queue_oldest_seconds", "Time that the run that waits longest has been due.", labels=["deployment"]
    )
    for name in sorted(names.values()):
        for state in _RUN_STATES:
            counted.add_metric([name, state], states[name, state])
        due = [
            run.expected_start_time
            for run in runs
            if run.deployment_id is not None
            and names.get(run.deployment_id) == name
            and _run_state(run) in _WAITING
            and run.expected_start_time is not None
        ]
        oldest.add_metric([name], max(0.0, (now - min(due)).total_seconds()) if due else 0.0)
    yield from (counted, oldest)


def pool_metrics(pools: Iterable[Pool]) -> Iterator[Metric]:
    """Yield the workers of work pools."""
    workers = GaugeMetricFamily("reshard_work_pool_workers", "Workers of a work pool.", labels=["pool", "status"])
    paused = GaugeMetricFamily("reshard_work_pool_paused", "1 if the work pool is paused, else 0.", labels=["pool"])
    for pool in pools:
        statuses = Counter(pool.worker_statuses)
        for status in ("online", "offline"):
            workers.add_metric([pool.name, status], statuses[status])
        paused.add_metric([pool.name], float(pool.is_paused))
    yield from (workers, paused)


def conversion_metrics(entries: Sequence[HistoryEntry]) -> Iterator[Metric]:
    """Yield how conversions ended, and what the completed ones took."""
    ended = GaugeMetricFamily(
        "reshard_conversions", "Conversions on the server, by how they ended.", labels=["deployment", "state"]
    )
    by_deployment: dict[str, list[HistoryEntry]] = {name: [] for name in (*_CONVERTING, _WITHOUT_DEPLOYMENT)}
    for entry in entries:
        by_deployment.setdefault(entry.deployment or _WITHOUT_DEPLOYMENT, []).append(entry)
    for name, ours in by_deployment.items():
        states = Counter(entry.state for entry in ours)
        for state in ENDED:
            ended.add_metric([name, state.value], states[state])
    yield ended
    yield from _sums(
        {
            name: [entry for entry in ours if entry.state is ConversionState.COMMITTED]
            for name, ours in by_deployment.items()
        }
    )
    yield from _last_times(by_deployment)


def schedule_metrics(deployments: Sequence[DeploymentResponse], entries: Sequence[HistoryEntry]) -> Iterator[Metric]:
    """Yield the schedules of convert-latest, and when a step was last converted into the target of each."""
    active = GaugeMetricFamily("reshard_schedule_active", "1 if the schedule is switched on.", labels=["schedule"])
    converted = GaugeMetricFamily(
        "reshard_schedule_last_conversion_timestamp_seconds",
        "When the last conversion into the schedule's target was completed.",
        labels=["schedule"],
    )
    ends: dict[str, float] = {}
    for entry in entries:
        if entry.state is ConversionState.COMMITTED and entry.target and entry.ended:
            url = _url_of(entry.target)
            for place in (url, url.rpartition("/")[0]):  # in the layout checkpoint2, steps share a target
                ends[place] = max(ends.get(place, 0.0), entry.ended.timestamp())
    for schedule in (each for one in deployments if one.name == _NAME_OF_LATEST for each in one.schedules):
        active.add_metric([name_of(schedule)], float(schedule.active))
        if (end := ends.get(_url_of(schedule.parameters.get("target")))) is not None:
            converted.add_metric([name_of(schedule)], end)
    yield from (active, converted)


def _sums(completed: Mapping[str, Sequence[HistoryEntry]]) -> Iterator[Metric]:
    counters = {
        "read_bytes": "Bytes read from sources by completed conversions.",
        "written_bytes": "Bytes written by completed conversions.",
        "retried_requests": "Requests to storages that completed conversions repeated.",
    }
    for field, help_text in counters.items():
        family = CounterMetricFamily(f"reshard_{field}", help_text, labels=["deployment"])
        for name, entries in completed.items():
            family.add_metric([name], sum(getattr(entry, field) or 0 for entry in entries))
        yield family
    seconds = HistogramMetricFamily(
        "reshard_conversion_seconds", "Time that completed conversions took.", labels=["deployment"]
    )
    for name, entries in completed.items():
        took = [entry.seconds or 0.0 for entry in entries]
        buckets = [(str(float(limit)), sum(each <= limit for each in took)) for limit in _BUCKETS_SECONDS]
        # exact, so that the order in which the server lists runs does not show
        seconds.add_metric([name], [*buckets, ("+Inf", len(took))], math.fsum(took))
    yield seconds


def _last_times(by_deployment: Mapping[str, Sequence[HistoryEntry]]) -> Iterator[Metric]:
    kinds = {
        "success": ("When a conversion was last completed.", {ConversionState.COMMITTED}),
        "failure": ("When a conversion last failed, or was killed.", FAILURES),
    }
    for kind, (help_text, states) in kinds.items():
        family = GaugeMetricFamily(f"reshard_last_{kind}_timestamp_seconds", help_text, labels=["deployment"])
        for name, entries in by_deployment.items():
            ends = [entry.ended.timestamp() for entry in entries if entry.ended and entry.state in states]
            if ends:
                family.add_metric([name], max(ends))
        yield family


def _run_state(run: FlowRun) -> str:
    return _BY_NAME.get(run.state_name or "", OPEN_STATES[run.state_type or StateType.PENDING])


def _url_of(target: object) -> str:
    """Return the URL of a schedule's target as conversions name it; empty for one that there is not."""
    try:
        return str(parse_url(str(target))).rstrip("/") if target else ""
    except ReshardError:
        return ""

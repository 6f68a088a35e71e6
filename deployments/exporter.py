"""Reads a Prefect server's runs and conversions whenever Prometheus scrapes, and answers with their metrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Lock
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reshard import __version__
from reshard.core.conversion.history import ConversionState, HistoryEntry, HistoryFilter
from reshard.core.errors import InputError
from reshard.deployments.described import Described
from reshard.deployments.metrics import (
    ENDED,
    OPEN_STATES,
    Pool,
    conversion_metrics,
    pool_metrics,
    run_metrics,
    schedule_metrics,
)
from reshard.tasks.history import read_history

_PAGE_RUNS = 200
_REREAD = timedelta(days=7)
"""Older conversions are read once: they change only by a retry."""


def serve_metrics(address: str, port: int, exporter: "Exporter") -> None:
    """Answer Prometheus at /metrics, in threads of this process.

    Raises:
        InputError: the port is not free, or the address is not this machine's.
    """
    registry = CollectorRegistry()
    registry.register(exporter)
    try:
        start_http_server(port, address, registry)
    except OSError as error:
        raise InputError(
            f"cannot listen on {address}:{port}: {error.strerror or error}: choose another port"
        ) from error


def metrics_text(exporter: "Exporter") -> str:
    """Return the metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(exporter)
    return generate_latest(registry).decode()


class Exporter(Collector):
    """Reads the server's runs and conversions at each scrape.

    Args:
        descriptions: the deployments.
        say: receives a message when the server stops answering, and when it answers again.
    """

    def __init__(self, descriptions: Sequence[Described], say: Callable[[str], None]) -> None:
        self._descriptions = descriptions
        self._say = say
        self._conversions = Conversions()
        self._problem = ""
        self._lock = Lock()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is depends on the server, which is not asked before a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what the server knows; `reshard_up` is 0 if it does not answer."""
        with self._lock:
            metrics = self._read()
        up = GaugeMetricFamily("reshard_up", "1 if the Prefect server answered, else 0.")
        up.add_metric([], float(metrics is not None))
        info = GaugeMetricFamily("reshard_build_info", "Version of the exporter; always 1.", labels=["version"])
        info.add_metric([__version__], 1)
        yield from (up, info, *(metrics or ()))

    def _read(self) -> list[Metric] | None:
        try:
            with get_client(sync_client=True) as client:
                deployments = _read_deployments(client, self._descriptions)
                metrics = [
                    *run_metrics(_read_open_runs(client, deployments), deployments, datetime.now(UTC)),
                    *pool_metrics(_read_pools(client, deployments)),
                    *conversion_metrics(self._conversions.read(client)),
                    *schedule_metrics(deployments, self._conversions.entries),
                ]
        except (httpx.HTTPError, PrefectException, ValueError) as error:
            problem = str(error) or repr(error)
            if not self._problem:
                self._say(f"the Prefect server does not answer: {problem}")
            self._problem = problem
            return None
        if self._problem:
            self._say("the Prefect server answers again")
        self._problem = ""
        return metrics


class Conversions:
    """The conversions of a server, of which only recent ones are read again."""

    def __init__(self) -> None:
        self._by_run: dict[str | None, HistoryEntry] = {}
        self._since: datetime | None = None

    @property
    def entries(self) -> list[HistoryEntry]:
        """All conversions as they were when they were last read."""
        return list(self._by_run.values())

    def read(self, client: SyncPrefectClient) -> list[HistoryEntry]:
        """Read what is new; return all."""
        since = self._since
        now = datetime.now(UTC)
        fresh = {entry.flow_run_id: entry for entry in read_history(client, HistoryFilter(since=since))}
        # completed ones stay counted even if their runs were deleted: counters do not go down
        kept = {
            run: entry
            for run, entry in self._by_run.items()
            if entry.state is ConversionState.COMMITTED or (since is not None and entry.when < since)
        }
        self._by_run = kept | fresh
        open_since = [entry.when for entry in self._by_run.values() if entry.state not in ENDED]
        self._since = min([now - _REREAD, *open_since])
        return self.entries


def _read_deployments(client: SyncPrefectClient, descriptions: Sequence[Described]) -> list[DeploymentResponse]:
    ours = {each.name: each.entrypoint for each in descriptions}
    named = DeploymentFilter(name=DeploymentFilterName(any_=list(ours)))
    found = client.read_deployments(deployment_filter=named, limit=_PAGE_RUNS)
    return [each for each in found if each.entrypoint == ours[each.name]]


def _read_open_runs(client: SyncPrefectClient, deployments: Sequence[DeploymentResponse]) -> list[FlowRun]:
    """Read the runs that have not ended, without those that schedules have planned for later."""
    if not deployments:
        return []
    ours = DeploymentFilter(id=DeploymentFilterId(any_=[each.id for each in deployments]))
    is_due = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(OPEN_STATES))),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),  # type: ignore[arg-type]
    )
    runs: dict[UUID, FlowRun] = {}  # a run that changes its place between two pages is in both
    for offset in count(step=_PAGE_RUNS):
        page = client.read_flow_runs(
            deployment_filter=ours,
            flow_run_filter=is_due,
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            limit=_PAGE_RUNS,
            offset=offset,
        )
        runs |= {run.id: run for run in page}
        if len(page) < _PAGE_RUNS:
            break
    return list(runs.values())


def _read_pools(client: SyncPrefectClient, deployments: Sequence[DeploymentResponse]) -> Iterator[Pool]:
    """Read the deployments' work pools that there are."""
    for name in sorted({each.work_pool_name for each in deployments if each.work_pool_name}):
        try:
            is_paused = client.read_work_pool(name).is_paused
            statuses = [each.status.value.lower() for each in client.read_workers_for_work_pool(name)]
        except ObjectNotFound:
            continue
        yield Pool(name, is_paused, statuses)

"""The conversions of a Prefect server, from their flow runs: states, parameters, and the labels of `labels`.

A page of 200 runs takes one request, and up to two more for the names of deployments and the runs above conversions.
What Prefect does not know is not guessed: it records which schedule or automation started a run, but no user, and of
an approval its answer, but not who gave it.

Runs of `convert-latest-checkpoint` are listed where they did not come to a conversion: each conversion has a run of its
own, and a look that finds nothing new is none.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import islice, takewhile
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.history import (
    ALL_ENTRIES,
    UNKNOWN,
    ConversionState,
    History,
    HistoryEntry,
    HistoryFilter,
    MemoryBasis,
    make_history,
)
from reshard.core.runtime.records import Record
from reshard.core.text.foreign import shown_text
from reshard.tasks import labels
from reshard.tasks.labels import FIGURES

CONVERT_FLOW = "convert-checkpoint"
LATEST_FLOW = "convert-latest-checkpoint"
_PAGE_RUNS = 200
"""The most that Prefect's server gives in one answer."""
_AHEAD = timedelta(hours=1)
"""The server's clock may be ahead of this one: of later runs only those that are still planned are left out."""

_STATES = {
    StateType.COMPLETED: ConversionState.COMMITTED,
    StateType.SCHEDULED: ConversionState.QUEUED,
    StateType.PENDING: ConversionState.QUEUED,
    StateType.RUNNING: ConversionState.RUNNING,
    StateType.CANCELLING: ConversionState.RUNNING,
    StateType.PAUSED: ConversionState.WAITING,
    StateType.CANCELLED: ConversionState.CANCELLED,
    StateType.FAILED: ConversionState.FAILED,
    StateType.CRASHED: ConversionState.CRASHED,
}
_TYPES_OF_OTHERS = {
    ConversionState.UNFINISHED: StateType.COMPLETED,
    ConversionState.REFUSED: StateType.CANCELLED,
}
_WITH_REASON = frozenset({StateType.CANCELLED, StateType.CANCELLING, StateType.FAILED, StateType.CRASHED})
_PLAIN_NAMES = frozenset({"Scheduled", "Pending"})
_DECISIONS = {"convert": "approved", "refuse": "refused"}
_LEFT_TO_OTHERS = "this run converted its ranks; other target ranks are left"
_SOME_RANKS = "this run converted some ranks; it was not recorded that the target is complete"


def read_history(
    client: SyncPrefectClient, wanted: HistoryFilter = ALL_ENTRIES, limit: int | None = None
) -> list[HistoryEntry]:
    """Read the conversions of a server, those that began last first. This function is synchronous.

    Runs that a schedule has planned for later are not listed; those that are due and wait for a worker are `queued`.

    Raises:
        httpx.HTTPError, PrefectException: the server does not answer, or not as a Prefect server does.
    """
    return list(islice(_wanted(client, wanted), limit))


def server_history(client: SyncPrefectClient, wanted: HistoryFilter = ALL_ENTRIES, limit: int | None = None) -> History:
    """Read the conversions of a server with their totals; otherwise as `read_history`."""
    more = None if limit is None else limit + 1  # one more tells that there are more
    return make_history(read_history(client, wanted, more), limit)


def _wanted(client: SyncPrefectClient, wanted: HistoryFilter) -> Iterator[HistoryEntry]:
    now = datetime.now(UTC)
    types = _types(wanted.states)
    looks = [each for each in types if each is not StateType.COMPLETED]
    conversions = _entries(client, CONVERT_FLOW, types, now)
    failed_looks = _entries(client, LATEST_FLOW, looks, now) if looks else iter(())
    # each is in this order, so only what is asked for is read
    found = merge(conversions, failed_looks, key=lambda each: each.entry.when, reverse=True)
    explained: set[UUID] = set()
    for each in takewhile(lambda each: wanted.since is None or each.entry.when >= wanted.since, found):
        if each.run_id in explained:  # its conversion, which began later, tells why it ended like this
            continue
        if each.parent is not None and each.entry.state is not ConversionState.COMMITTED:
            explained.add(each.parent)
        if wanted.matches(each.entry):
            yield each.entry


def _types(states: Collection[ConversionState]) -> list[StateType]:
    """Return the types of Prefect's states that may mean one of some states; all of them if none is given."""
    if not states:
        return list(_STATES)
    others = {_TYPES_OF_OTHERS[state] for state in states if state in _TYPES_OF_OTHERS}
    return [each for each, state in _STATES.items() if state in states or each in others]


class _Found(Record):
    """The entry of a run, and the run that it is a part of."""

    entry: HistoryEntry
    run_id: UUID
    parent: UUID | None


class _Above(Record):
    """What runs of a page refer to: names of deployments, and the runs that they are parts of."""

    deployments: Mapping[UUID, str]
    parents: Mapping[UUID, FlowRun]


def _entries(client: SyncPrefectClient, flow: str, types: Sequence[StateType], now: datetime) -> Iterator[_Found]:
    """Yield the runs of a flow that have begun or are due, those that began last first; each once."""
    seen: set[UUID] = set()
    for page in _pages(client, flow, types, now + _AHEAD):
        runs = [run for run in page if run.id not in seen and _is_due(run, now) and not _is_dry(run)]
        seen.update(run.id for run in page)  # a run that changes its place between two pages is in both
        above = _read_above(client, runs)
        for run in runs:
            yield _Found(_entry(run, above), run.id, _parent_id(run))


def _pages(
    client: SyncPrefectClient, flow: str, types: Sequence[StateType], before: datetime
) -> Iterator[list[FlowRun]]:
    offset = 0
    while True:
        page = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))),
                expected_start_time=FlowRunFilterExpectedStartTime(before_=before),  # type: ignore[arg-type]
            ),
            sort=FlowRunSort.START_TIME_DESC,
            limit=_PAGE_RUNS,
            offset=offset,
        )
        yield page
        if len(page) < _PAGE_RUNS:
            return
        offset += len(page)


def _is_due(run: FlowRun, now: datetime) -> bool:
    is_queued = _STATES.get(run.state_type or StateType.PENDING) is ConversionState.QUEUED
    return not is_queued or run.expected_start_time is None or run.expected_start_time <= now


def _is_dry(run: FlowRun) -> bool:
    return bool(_parameters(run).get("dry_run"))


def _read_above(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> _Above:
    parent_ids = {parent for run in runs if (parent := _parent_id(run)) is not None}
    parents = _read_runs(client, parent_ids) if parent_ids else {}
    ids = {run.deployment_id for run in (*runs, *parents.values()) if run.deployment_id is not None}
    return _Above(_read_deployments(client, ids) if ids else {}, parents)


def _read_runs(client: SyncPrefectClient, ids: Collection[UUID]) -> dict[UUID, FlowRun]:
    ours = FlowRunFilter(id=FlowRunFilterId(any_=sorted(ids)))
    return {run.id: run for run in client.read_flow_runs(flow_run_filter=ours, limit=_PAGE_RUNS)}


def _read_deployments(client: SyncPrefectClient, ids: Collection[UUID]) -> dict[UUID, str]:
    ours = DeploymentFilter(id=DeploymentFilterId(any_=sorted(ids)))
    return {each.id: each.name for each in client.read_deployments(deployment_filter=ours, limit=_PAGE_RUNS)}


def _entry(run: FlowRun, above: _Above) -> HistoryEntry:
    recorded = _Labels(run)
    parameters = _parameters(run)
    parent = above.parents.get(parent_id) if (parent_id := _parent_id(run)) else None
    deployment_id = run.deployment_id or (parent.deployment_id if parent else None)
    state, reason = _state(run, recorded, parameters)
    memory_bytes, basis = _memory(recorded)
    ran_as = f"{recorded.text(labels.USER)}@{recorded.text(labels.HOST)}" if recorded.text(labels.USER) else None
    return HistoryEntry(
        state=state,
        reason=reason,
        queued=run.expected_start_time,
        begun=run.start_time,
        ended=run.end_time,
        seconds=round(run.estimated_run_time.total_seconds(), 3) if run.start_time else None,
        source=recorded.text(FIGURES["source"]) or _text(parameters.get("source")),
        step=recorded.text(FIGURES["step"]) or _text(parameters.get("step")),
        target=recorded.text(FIGURES["target"]) or _text(parameters.get("target")),
        source_world_size=recorded.number(FIGURES["source_world_size"]),
        target_world_size=recorded.number(FIGURES["target_world_size"]),
        read_bytes=recorded.number(FIGURES["read_bytes"]),
        written_bytes=recorded.number(FIGURES["written_bytes"]),
        size_bytes=recorded.number(labels.SIZE),
        resumed_ranks=recorded.number(labels.RESUMED),
        retried_requests=recorded.number(labels.RETRIED),
        attempts=run.run_count,
        verified=_level(recorded.text(FIGURES["verified"])),
        fingerprint=recorded.text(FIGURES["fingerprint"]),
        memory_bytes=memory_bytes,
        memory_basis=basis,
        started_by=_started_by(parent or run, ran_as if deployment_id is None else None),
        ran_as=ran_as,
        approval=_approval(recorded),
        identity=recorded.text(FIGURES["identity"]),
        deployment=_text(above.deployments.get(deployment_id)) if deployment_id else None,
        flow_run=shown_text(run.name),
        flow_run_id=str(run.id),
    )


class _Labels:
    """The labels that a conversion gave its run. Other programs may have changed them."""

    def __init__(self, run: FlowRun) -> None:
        self._labels = run.labels

    def text(self, name: str) -> str | None:
        return _text(self._labels.get(f"{labels.PREFIX}{name}"))

    def number(self, name: str) -> int | None:
        value = self._labels.get(f"{labels.PREFIX}{name}")
        return value if type(value) is int and value >= 0 else None

    def flag(self, name: str) -> bool | None:
        value = self._labels.get(f"{labels.PREFIX}{name}")
        return value if isinstance(value, bool) else None


def _state(run: FlowRun, recorded: _Labels, parameters: Mapping[str, Any]) -> tuple[ConversionState, str]:
    """Return the state of a conversion, and the reason for it if one is known."""
    kind, name = run.state_type or StateType.PENDING, run.state_name or ""
    if kind is StateType.COMPLETED:
        committed = recorded.flag(labels.COMMITTED)
        if committed or (committed is None and not str(parameters.get("ranks") or "").strip()):
            return ConversionState.COMMITTED, ""
        return ConversionState.UNFINISHED, _SOME_RANKS if committed is None else _LEFT_TO_OTHERS
    if kind is StateType.CANCELLED and recorded.text(labels.DECISION) == "refuse":
        return ConversionState.REFUSED, ""  # the approval tells why
    if kind in _WITH_REASON:
        return _STATES[kind], _reason(run)
    if kind is StateType.PAUSED:
        return ConversionState.WAITING, "for approval"
    is_odd = _STATES[kind] is ConversionState.QUEUED and name not in _PLAIN_NAMES
    return _STATES[kind], shown_text(name) if is_odd else ""


def _reason(run: FlowRun) -> str:
    message = (run.state.message if run.state else None) or ""
    return shown_text(message.strip().split("\n", 1)[0])


def _memory(recorded: _Labels) -> tuple[int | None, MemoryBasis | None]:
    if (peak_bytes := recorded.number(labels.PEAK_MEMORY)) is not None:
        return peak_bytes, MemoryBasis.PEAK
    limit_bytes = recorded.number(labels.MEMORY_LIMIT)
    return limit_bytes, None if limit_bytes is None else MemoryBasis.LIMIT


def _started_by(run: FlowRun, user: str | None) -> str:
    """Return what started a run; a run without a deployment was started by the `user` whose process it is."""
    if run.created_by is not None and run.created_by.type:
        return shown_text(f"{run.created_by.type.lower()} {run.created_by.display_value or ''}".rstrip())
    return user or UNKNOWN


def _approval(recorded: _Labels) -> str | None:
    decision = _DECISIONS.get(recorded.text(labels.DECISION) or "")
    comment = recorded.text(labels.COMMENT)
    return f"{decision}: {comment}" if decision and comment else decision


def _level(text: str | None) -> VerifyLevel | None:
    return VerifyLevel(text) if text in list(VerifyLevel) else None


def _parent_id(run: FlowRun) -> UUID | None:
    try:
        return UUID(str(run.labels.get(f"{labels.PREFIX}{labels.PARENT_RUN}")))
    except ValueError:
        return None


def _parameters(run: FlowRun) -> Mapping[str, Any]:
    """Return the fields of a run's request: programs give it whole, deployments field by field."""
    request = run.parameters.get("request")
    return request if isinstance(request, dict) else run.parameters


def _text(value: object) -> str | None:
    return shown_text(value) if isinstance(value, str) and value.strip() else None

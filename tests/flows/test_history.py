"""The conversions of a Prefect server, as its flow runs tell them, and their page."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import ArtifactSort

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.history import ConversionState, HistoryEntry, HistoryFilter, MemoryBasis
from reshard.core.conversion.target_history import target_history
from reshard.core.errors import InputError
from reshard.core.request.history import HistoryRequest
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.convert_latest_checkpoint import convert_latest_checkpoint
from reshard.flows.report_history import report_history
from reshard.tasks import history as reading
from reshard.tasks import history_page
from reshard.tasks.history import CONVERT_FLOW, LATEST_FLOW, read_history, server_history
from tests.support.checkpoints import case
from tests.support.flow_runs import Run
from tests.support.training import latest_request, save_step

FOUR_TO_THREE = case(7009)
KIND = StateType


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


def entry_of(client: SyncPrefectClient, target: Path | str) -> HistoryEntry:
    """The only conversion into this target."""
    [found] = read_history(client, HistoryFilter(target=str(target)))
    return found


def make_run(
    client: SyncPrefectClient,
    *states: tuple[StateType, str],
    flow: str = CONVERT_FLOW,
    labels: dict[str, object] | None = None,
    **parameters: object,
) -> UUID:
    """A run as somebody else may have left it on the server."""
    flow_id = client.create_flow_from_name(flow)
    document = {
        "flow_id": str(flow_id),
        "parameters": parameters,
        "labels": labels or {},
        "state": {"type": "PENDING", "name": "Pending"},
    }
    run_id = UUID(client.request("POST", "/flow_runs/", json=document).json()["id"])
    for kind, message in states:
        client.set_flow_run_state(run_id, State(type=kind, message=message), force=True)
    return run_id


# ---- conversions that were really made ----


def test_a_conversion_says_all_that_its_report_says(client: SyncPrefectClient, tmp_path: Path) -> None:
    target = tmp_path / "out"
    run = Run(convert_checkpoint, FOUR_TO_THREE.request(target, verify="content"))
    report = run.state.result()
    entry = entry_of(client, target)
    assert entry.state is ConversionState.COMMITTED
    assert (entry.source, entry.step, entry.target) == (report.source, report.step, report.target)
    assert (entry.source_world_size, entry.target_world_size) == (4, 3)
    assert (entry.read_bytes, entry.written_bytes) == (report.read_bytes, report.written_bytes)
    assert entry.size_bytes == report.written_bytes
    assert (entry.verified, entry.fingerprint) == (VerifyLevel.CONTENT, report.fingerprint)
    assert (entry.identity, entry.resumed_ranks, entry.retried_requests) == (report.identity, 0, 0)
    assert entry.memory_basis is MemoryBasis.PEAK
    assert entry.seconds
    assert entry.seconds >= report.seconds
    assert entry.cost_gb_hours
    holder = new_holder(())
    assert entry.started_by == entry.ran_as == f"{holder.user}@{holder.host}"  # the process of whoever called the flow
    assert (entry.deployment, entry.approval, entry.attempts) == (None, None, 1)
    stored = run.stored_run
    assert (entry.flow_run, entry.flow_run_id) == (stored.name, str(stored.id))
    assert (entry.begun, entry.ended) == (stored.start_time, stored.end_time)


def test_the_manifest_and_the_server_tell_the_same(client: SyncPrefectClient, tmp_path: Path) -> None:
    target = tmp_path / "out"
    Run(convert_checkpoint, FOUR_TO_THREE.request(target))
    [there], told = target_history(str(target)), entry_of(client, target)
    same = {"state", "source", "step", "target", "read_bytes", "written_bytes", "size_bytes", "verified", "identity"}
    same |= {"source_world_size", "target_world_size", "resumed_ranks", "retried_requests", "ran_as"}
    assert there.model_dump(include=same) == told.model_dump(include=same)


def test_ranks_in_two_runs_are_an_unfinished_and_a_committed_one(client: SyncPrefectClient, tmp_path: Path) -> None:
    target = tmp_path / "out"
    Run(convert_checkpoint, FOUR_TO_THREE.request(target, ranks="0-1"))
    entry = entry_of(client, target)
    assert (entry.state, entry.reason) == (
        ConversionState.UNFINISHED,
        "this run converted its ranks; other target ranks are left",
    )
    assert entry.size_bytes is None
    Run(convert_checkpoint, FOUR_TO_THREE.request(target))
    last, first = read_history(client, HistoryFilter(target=str(target)))
    assert (last.state, first.state) == (ConversionState.COMMITTED, ConversionState.UNFINISHED)
    assert last.resumed_ranks == 2


def test_a_failure_has_its_reason_and_leaves_blank_what_was_not_done(client: SyncPrefectClient, tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out", source_strategy="/nowhere/x")
    with pytest.raises(InputError):
        Run(convert_checkpoint, request).state.result()
    entry = entry_of(client, tmp_path / "out")
    assert entry.state is ConversionState.FAILED
    assert entry.reason == "/nowhere/x: cannot read the strategy: no such file or directory"
    assert (entry.written_bytes, entry.identity, entry.verified, entry.source_world_size) == (None, None, None, None)
    assert entry.source == str(FOUR_TO_THREE.directory / "src")
    assert entry.memory_basis is MemoryBasis.PEAK


def test_a_scheduled_conversion_is_one_entry_and_a_look_that_finds_nothing_is_none(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    request = latest_request(tmp_path / "training", tmp_path / "converted")
    save_step(tmp_path / "training", "1_1")
    for _ in range(2):
        Run(convert_latest_checkpoint, request).state.result()
    entry = entry_of(client, tmp_path / "converted")
    assert (entry.state, entry.target, entry.step) == (
        ConversionState.COMMITTED,
        str(tmp_path / "converted" / "1_1"),
        "1_1",
    )


def test_a_look_that_fails_is_an_entry_unless_its_conversion_tells_why(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    first = latest_request(tmp_path / "nothing", tmp_path / "first")
    with pytest.raises(InputError):
        Run(convert_latest_checkpoint, first).state.result()
    entry = entry_of(client, tmp_path / "first")
    assert (entry.state, entry.target) == (ConversionState.FAILED, str(tmp_path / "first"))
    save_step(tmp_path / "training", "1_1")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "1_1").mkdir()
    (tmp_path / "second" / "1_1" / "notes.txt").write_text("not a checkpoint")
    second = latest_request(tmp_path / "training", tmp_path / "second")
    with pytest.raises(InputError):
        Run(convert_latest_checkpoint, second).state.result()
    entry = entry_of(client, tmp_path / "second")
    assert (entry.state, entry.target) == (ConversionState.FAILED, str(tmp_path / "second" / "1_1"))


def test_figures_that_cannot_be_stored_are_a_warning(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(**settings: object) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr("reshard.tasks.labels.get_client", failing)
    assert Run(convert_checkpoint, FOUR_TO_THREE.request(tmp_path / "out")).state.is_completed()
    assert "figures for the history could not be stored: connection refused" in caplog.text
    entry = entry_of(client, tmp_path / "out")
    assert (entry.state, entry.target) == (ConversionState.COMMITTED, str(tmp_path / "out"))
    assert (entry.written_bytes, entry.verified, entry.cost_gb_hours, entry.started_by) == (None, None, None, "unknown")


# ---- runs of every state, by anybody ----


@pytest.mark.parametrize(
    ("states", "labels", "state", "reason"),
    [
        ([], {}, "queued", ""),
        ([(KIND.RUNNING, "")], {}, "running", ""),
        ([(KIND.RUNNING, ""), (KIND.CANCELLING, "soon")], {}, "running", "soon"),
        ([(KIND.RUNNING, ""), (KIND.PAUSED, "")], {}, "waiting", "for approval"),
        ([(KIND.RUNNING, ""), (KIND.CANCELLED, "by Ann")], {}, "cancelled", "by Ann"),
        ([(KIND.CANCELLED, "Refused: no")], {"reshard.decision": "refuse"}, "refused", ""),
        ([(KIND.RUNNING, ""), (KIND.FAILED, "2 ranks failed\n  rank_1: …")], {}, "failed", "2 ranks failed"),
        ([(KIND.RUNNING, ""), (KIND.CRASHED, "killed")], {}, "crashed", "killed"),
        ([(KIND.RUNNING, ""), (KIND.COMPLETED, "")], {}, "committed", ""),
        ([(KIND.COMPLETED, "")], {"reshard.committed": False}, "unfinished", reading._LEFT_TO_OTHERS),
    ],
)
def test_the_states_of_runs(
    client: SyncPrefectClient,
    states: list[tuple[StateType, str]],
    labels: dict[str, object],
    state: str,
    reason: str,
) -> None:
    target = f"/{uuid4()}"
    make_run(client, *states, labels=labels, source="/in", target=target)
    entry = entry_of(client, target)
    assert (entry.state.value, entry.reason) == (state, reason)
    assert entry.cost_gb_hours is None
    assert [each.target for each in read_history(client, HistoryFilter(states=[entry.state], target=target))] == [
        target
    ]
    others = [other for other in ConversionState if other is not entry.state]
    assert not read_history(client, HistoryFilter(states=others, target=target))


def test_some_ranks_of_an_earlier_version_are_not_called_committed(client: SyncPrefectClient) -> None:
    target = f"/{uuid4()}"
    make_run(client, (KIND.COMPLETED, ""), source="/in", target=target, ranks="0-3")
    assert entry_of(client, target).state is ConversionState.UNFINISHED


@pytest.mark.parametrize(
    ("labels", "approval"),
    [
        ({}, None),
        ({"reshard.decision": "convert", "reshard.comment": ""}, "approved"),
        ({"reshard.decision": "convert", "reshard.comment": "Ann"}, "approved: Ann"),
        ({"reshard.decision": "refuse", "reshard.comment": "the wrong step"}, "refused: the wrong step"),
        ({"reshard.decision": "perhaps"}, None),
    ],
)
def test_what_was_answered_is_told_with_its_comment(
    client: SyncPrefectClient, labels: dict[str, object], approval: str | None
) -> None:
    target = f"/{uuid4()}"
    make_run(client, (KIND.COMPLETED, ""), labels=labels, target=target)
    assert entry_of(client, target).approval == approval


def test_labels_and_parameters_of_others_are_bounded_and_typed(client: SyncPrefectClient) -> None:
    target = f"/{uuid4()}"
    labels = {
        "reshard.written-bytes": "many",
        "reshard.read-bytes": -1,
        "reshard.size-bytes": True,
        "reshard.verified": "very",
        "reshard.committed": "yes",
        "reshard.parent-run": "nobody",
        "reshard.step": "\x1b[2J" + "x" * 10**5,
        "reshard.peak-memory-bytes": 1.5,
    }
    make_run(client, (KIND.COMPLETED, ""), labels=labels, source="s3://me:hunter2@b/" + "y" * 10**5, target=target)
    make_run(client, (KIND.COMPLETED, ""), source=["a"], target={"b": 1}, request=7)
    entry = entry_of(client, target)
    assert (entry.written_bytes, entry.read_bytes, entry.size_bytes, entry.verified) == (None, None, None, None)
    assert (entry.memory_bytes, entry.cost_gb_hours) == (None, None)
    text = entry.model_dump_json()
    assert len(text) < 5000
    assert "hunter2" not in text
    assert "\x1b" not in str(entry.step)


def test_a_killed_run_costs_its_limit(client: SyncPrefectClient) -> None:
    target = f"/{uuid4()}"
    labels: dict[str, object] = {"reshard.memory-limit-bytes": 2**31, "reshard.user": "u", "reshard.host": "h"}
    make_run(client, (KIND.RUNNING, ""), (KIND.CRASHED, ""), labels=labels, target=target)
    entry = entry_of(client, target)
    assert (entry.memory_bytes, entry.memory_basis, entry.ran_as) == (2**31, MemoryBasis.LIMIT, "u@h")


def test_what_a_schedule_plans_for_later_is_not_listed_and_a_dry_run_is_none(client: SyncPrefectClient) -> None:
    target = f"/{uuid4()}"
    later = make_run(client, target=target)
    soon = datetime.now(UTC) + timedelta(minutes=10)
    document = {"flow_id": str(client.create_flow_from_name(CONVERT_FLOW)), "parameters": {"target": target}}
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": soon.isoformat()}}
    client.request("POST", "/flow_runs/", json=document | {"state": state})
    make_run(client, (KIND.FAILED, ""), flow=LATEST_FLOW, target=target, dry_run=True)
    assert [each.flow_run_id for each in read_history(client, HistoryFilter(target=target))] == [str(later)]


# ---- many of them ----


def test_pages_are_read_as_far_as_needed(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"/{uuid4()}"
    ids = [str(make_run(client, (KIND.COMPLETED, ""), target=f"{mark}/{number}")) for number in range(7)]
    monkeypatch.setattr(reading, "_PAGE_RUNS", 2)
    asked: list[dict[str, Any]] = []
    read = client.read_flow_runs

    def counted(**query: Any) -> list[FlowRun]:
        asked.append(query)
        return read(**query)

    monkeypatch.setattr(client, "read_flow_runs", counted)
    found = read_history(client, HistoryFilter(target=mark), 3)
    assert [each.flow_run_id for each in found] == ids[:3:-1]
    assert len(asked) == 3  # two pages of conversions, and one of looks for new steps
    found = read_history(client, HistoryFilter(since=found[-1].when, target=mark))
    assert [each.flow_run_id for each in found] == ids[:3:-1]
    history = server_history(client, HistoryFilter(target=mark), 7)
    assert (history.totals.conversions, history.is_cut) == (7, False)
    assert server_history(client, HistoryFilter(target=mark), 6).is_cut


# ---- the page ----


def versions(client: SyncPrefectClient) -> list[str]:
    ours = ArtifactFilter(key=ArtifactFilterKey(any_=[history_page.HISTORY_KEY]))
    found = client.read_artifacts(artifact_filter=ours, sort=ArtifactSort.CREATED_DESC, limit=200)
    return [str(each.data) for each in found]


def test_the_page_has_sums_and_a_row_for_each_conversion(client: SyncPrefectClient, tmp_path: Path) -> None:
    Run(convert_checkpoint, FOUR_TO_THREE.request(tmp_path / "out"))
    odd = f"/{uuid4()}/<script>|`x`"
    run_id = make_run(client, (KIND.RUNNING, ""), (KIND.FAILED, "# no | way *here*"), source="[a](b)", target=odd)
    totals = report_history(HistoryRequest(days=2, rows=5))
    page, *_ = versions(client)
    assert page.startswith(f"# {totals.conversions} conversions in 2 days\n")
    assert totals.conversions > 5
    for heading in ("## By day", "## By week", "## Conversions"):
        assert f"\n{heading}\n" in page
    rows = [line for line in page.splitlines() if "/runs/flow-run/" in line]
    assert len(rows) == 5
    assert f"… and {totals.conversions - 5} earlier, which are counted above." in page
    [row] = [row for row in rows if f"/runs/flow-run/{run_id}" in row]
    assert "**failed**" in row
    assert r"\<script>\|\`x\`" in row
    assert r"\# no \| way \*here\*" in row
    assert r"\[a\](b)" in row
    [row] = [row for row in rows if str(tmp_path).rpartition("/")[2] in row]
    assert "| 4 → 3 |" in row


def test_a_bounded_number_of_versions_is_kept(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_page, "_KEPT_VERSIONS", 2)
    for days in (1, 2, 3):
        report_history(HistoryRequest(days=days))
    assert [page.splitlines()[0].rpartition(" in ")[2] for page in versions(client)] == ["3 days", "2 days"]


def test_a_server_that_fails_is_named_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr("reshard.tasks.history_page.server_history", failing)
    state = report_history(HistoryRequest(), return_state=True)
    assert state.is_failed()
    assert "the server's conversions could not be read, or their page not stored: connection refused" in str(
        state.message
    )

"""Slots of a concurrency limit: who takes them, and when they are given back."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate

from reshard.core.conversion.dispatch import Unit
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import ConversionError, InputError, StorageError
from reshard.core.request.conversion import ConversionRequest
from reshard.flows import slots
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.slots import Answer, Slot, Slots
from tests.support.checkpoints import case, read_tree
from tests.support.columns import COLUMN_RANKS, column_case
from tests.support.conversions import failing
from tests.support.flow_runs import Run
from tests.support.patience import PATIENCE_SECONDS

FOUR_TO_THREE = case(7009)


def converted(request: ConversionRequest) -> Run[ConversionRequest, ConversionReport]:
    return Run(convert_checkpoint, request)


@pytest.fixture
def limit() -> Iterator[str]:
    """A limit of one slot."""
    name = f"limit-{uuid4().hex[:8]}"
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    yield name
    with get_client(sync_client=True) as client, suppress(Exception):
        client.delete_global_concurrency_limit_by_name(name)


def slots_taken(name: str) -> int:
    with get_client(sync_client=True) as client:
        return int(client.read_global_concurrency_limit_by_name(name).active_slots)


def test_ranks_hold_a_slot_while_they_are_written_and_checked(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    at_work: list[int] = []
    lock = threading.Lock()

    def seen(step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(work: RankWork, rank: Unit | int) -> Any:
            number = rank.rank if isinstance(rank, Unit) else rank
            with lock:
                at_work.append(number)
                taken.append(slots_taken(limit))
                assert set(at_work) == {number}, "two at once"
            try:
                return step(work, rank)
            finally:
                at_work.remove(number)

        return counted

    monkeypatch.setattr(RankWork, "make", seen(RankWork.make))
    monkeypatch.setattr(RankWork, "check", seen(RankWork.check))
    report = convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=3))
    assert report.committed
    assert taken == [1] * 6
    assert slots_taken(limit) == 0


def test_a_slot_is_freed_however_a_task_ends(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: StorageError("broken"), 1: SystemExit("gone"), 2: KeyError("a bug")}
    failing(monkeypatch, ends.get)
    with pytest.raises(KeyError):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=3))
    assert slots_taken(limit) == 0


@pytest.mark.parametrize(("kept_seconds", "taken"), [(3600.0, 1), (0.0, 3)])
def test_a_slot_is_handed_on_from_rank_to_rank_for_a_while(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_seconds: float, taken: int
) -> None:
    asked: list[object] = []
    take = SyncPrefectClient.increment_concurrency_slots_with_lease

    def counted(client: SyncPrefectClient, *args: Any) -> Any:
        answer = take(client, *args)
        asked.append(answer)
        return answer

    monkeypatch.setattr(SyncPrefectClient, "increment_concurrency_slots_with_lease", counted)
    monkeypatch.setattr("reshard.flows.slots._KEPT_SECONDS", kept_seconds)
    assert convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=1)).committed
    assert len(asked) == taken
    assert slots_taken(limit) == 0


def test_a_busy_limit_is_no_error(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = Slots(limit)
    held: SimpleQueue[Answer] = SimpleQueue()
    other.ask(held.put)
    slot = held.get(timeout=60)
    assert isinstance(slot, Slot)

    def freed_once_refused(error: Exception) -> bool:
        other.give_back(slot)
        return is_taken(error)

    is_taken = slots._is_taken
    monkeypatch.setattr(slots, "_is_taken", freed_once_refused)
    try:
        assert convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit)).committed
    finally:
        other.close()
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert slots_taken(limit) == 0


def test_two_runs_share_a_limit(limit: str, tmp_path: Path) -> None:
    reports: list[ConversionReport] = []

    def convert(name: str) -> None:
        reports.append(convert_checkpoint(FOUR_TO_THREE.request(tmp_path / name, concurrency_limit=limit)))

    runs = [threading.Thread(target=convert, args=(name,)) for name in ("one", "other")]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert [report.committed for report in reports] == [True, True]
    assert slots_taken(limit) == 0


def test_a_run_that_waits_for_a_slot_can_be_stopped(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.concurrency.sync import concurrency

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with concurrency(limit, strict=True):
        monkeypatch.setattr("reshard.flows.runners.ThreadRunner.check", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit))
        assert slots_taken(limit) == 1
    assert slots_taken(limit) == 0


def test_a_limit_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    state = converted(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit="nobody")).state
    assert "concurrency_limit nobody: " in str(state.message)
    assert "`prefect gcl create nobody --limit N`" in str(state.message)
    with pytest.raises(InputError):
        state.result()
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_is_deleted_meanwhile_fails_the_run(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(_: int) -> None:
        with get_client(sync_client=True) as client, suppress(Exception):
            client.delete_global_concurrency_limit_by_name(limit)

    failing(monkeypatch, delete)
    monkeypatch.setattr("reshard.flows.slots._KEPT_SECONDS", 0.0)
    with pytest.raises(ConversionError, match=f"could not acquire a slot of the concurrency limit {limit}"):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit, workers=1))


def test_an_unexpected_answer_of_the_server_reaches_the_run_that_waits_for_a_slot(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    taking = Slots(limit)
    taking.ask(answers.put)
    assert isinstance(answers.get(timeout=PATIENCE_SECONDS), Slot)
    unexpected = httpx.Response(200, text="<html>a proxy's page</html>")
    monkeypatch.setattr(SyncPrefectClient, "increment_concurrency_slots_with_lease", lambda *_: unexpected)
    for _ in range(2):
        taking.ask(answers.put)
        assert isinstance(answers.get(timeout=PATIENCE_SECONDS), ValueError)
    taking.close()
    assert slots_taken(limit) == 0, "the slot taken before is given back"


def test_an_inactive_limit_holds_nobody_up(limit: str, tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        client.update_global_concurrency_limit(limit, GlobalConcurrencyLimitUpdate(active=False))
    assert convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", concurrency_limit=limit)).committed


@pytest.mark.parametrize("ranks", [COLUMN_RANKS])
def test_a_group_takes_one_slot(limit: str, tmp_path: Path, ranks: int) -> None:
    columns = column_case(tmp_path)
    report = convert_checkpoint(columns.request(workers=4, concurrency_limit=limit))
    assert len(report.ranks) == ranks
    assert read_tree(columns.target) == columns.want

"""Batches of units: what fails in them, and what a repeated batch does."""

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion import batches
from reshard.core.conversion.batches import RanksFailedError, run_batch
from reshard.core.conversion.dispatch import Kind, Unit, batched
from reshard.core.conversion.finish import finish
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.session import Session, open_session
from reshard.core.errors import StoppedError, StorageError
from tests.support.checkpoints import read_tree
from tests.support.columns import COLUMN_RANKS, column_case
from tests.support.conversions import failing

GROUP = Unit(Kind.WRITE, tuple(range(COLUMN_RANKS)))


def batch_of(session: Session) -> Unit:
    [batch] = batched([Unit(Kind.WRITE, group) for group in session.groups], 1)
    return batch


def test_a_batch_that_is_repeated_writes_only_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group used to be written as a whole again, and its other ranks to lose that they were checked."""
    columns = column_case(tmp_path)
    request = columns.request(workers=1)
    with open_session(request, make_plan(request)) as session:
        work, batch = session.work(lambda _: None), batch_of(session)
        assert batch.units == (GROUP,)
        with monkeypatch.context() as patch:
            failing(patch, lambda rank: StorageError("slow down", transient=True) if rank == 0 else None)
            with pytest.raises(RanksFailedError, match="1 ranks failed\n  rank_0: slow down") as raised:
                run_batch(work, batch)
        assert raised.value.transient
        tried = failing(monkeypatch, lambda _: None)
        run_batch(work, batch)
        assert tried == [0]
        assert finish(session, 1.0).committed
    assert read_tree(columns.target) == columns.want


def test_a_failed_check_is_repeated_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = column_case(tmp_path)
    request = columns.request(workers=1)
    check = RankWork.check

    def fails_once(work: RankWork, rank: int) -> object:
        if rank == 0:
            raise StorageError("slow down", transient=True)
        return check(work, rank)

    with open_session(request, make_plan(request)) as session:
        work, batch = session.work(lambda _: None), batch_of(session)
        with monkeypatch.context() as patch:
            patch.setattr(RankWork, "check", fails_once)
            with pytest.raises(RanksFailedError):
                run_batch(work, batch)
        run_batch(work, batch)
        assert finish(session, 1.0).committed
    assert read_tree(columns.target) == columns.want


def test_a_batch_ends_when_the_run_is_stopped(tmp_path: Path) -> None:
    columns = column_case(tmp_path)
    request = columns.request(workers=1)

    def stopped(_: int) -> None:
        raise StoppedError("stopped")

    with open_session(request, make_plan(request)) as session, pytest.raises(StoppedError):
        run_batch(session.work(stopped), batch_of(session))


def test_a_group_begins_when_all_ranks_of_the_one_before_are_done() -> None:
    """They shared the memory of a batch: the ranks of a failed group are written one by one, beside nothing else."""
    done: list[Unit] = []
    at_once: list[set[Kind]] = []

    @dataclass(frozen=True)
    class Work:
        workspace: object = None
        level: VerifyLevel = VerifyLevel.STRUCTURE
        prefetch: int = 4
        under_way: list[Unit] = field(default_factory=list)

        def advance(self, _: int) -> None: ...

        def make(self, unit: Unit) -> None:
            self.under_way.append(unit)
            time.sleep(0.02)
            at_once.append({each.kind for each in self.under_way})
            self.under_way.remove(unit)
            done.append(unit)

        def check(self, _: int) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "read_records", lambda *_: iter(()))
        [batch] = batched([Unit(Kind.WRITE, (0, 1, 2, 3)), Unit(Kind.WRITE, (4, 5, 6, 7))], 1)
        run_batch(cast("RankWork", Work()), batch)
    assert sorted(unit.rank for unit in done) == list(range(8))
    assert all(kinds == {Kind.WRITE} for kinds in at_once if Kind.WRITE in kinds)


@pytest.mark.parametrize("transient", [False, True])
def test_failures_of_a_batch_come_from_another_process_as_they_are(transient: bool) -> None:
    error = RanksFailedError({3: StorageError("broken"), 1: StorageError("slow down", transient=transient)})
    there = pickle.loads(pickle.dumps(error))
    assert str(there) == str(error) == "2 ranks failed\n  rank_1: slow down\n  rank_3: broken"
    assert there.transient is error.transient is transient
    assert there.failures.keys() == {1, 3}

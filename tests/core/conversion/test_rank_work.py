"""The work on single ranks: writing, completing a group, copying, checking, and judging earlier work."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.rank_work import RankWork, find_sound_ranks, rank_or_file
from reshard.core.conversion.session import open_session
from reshard.core.errors import StorageError, VerificationError
from reshard.core.storage.writing import write_bytes
from reshard.core.transfer.writer import transform_ranks
from tests.support.checkpoints import case
from tests.support.columns import COLUMN_RANKS, column_case
from tests.support.conversions import damage, whole_copies

FOUR_TO_THREE = case(7009)
GROUP = tuple(range(COLUMN_RANKS))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[RankWork]:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with open_session(request, make_plan(request)) as session:
        yield session.work(lambda _: None)


@pytest.fixture
def group_work(tmp_path: Path) -> Iterator[RankWork]:
    request = column_case(tmp_path).request(workers=1)
    with open_session(request, make_plan(request)) as session:
        yield session.work(lambda _: None)


def file_of(work: RankWork, rank: int) -> Path:
    return Path(work.workspace.directory.child(work.plan.file_name(rank)).path)


def write(work: RankWork, rank: int) -> None:
    work.make(Unit(Kind.WRITE, (rank,)))


def test_a_checked_rank_says_so_in_its_record(work: RankWork) -> None:
    write(work, 0)
    assert work.workspace.read_record(0).verified is VerifyLevel.NONE
    assert work.check(0).level is VerifyLevel.CHECKSUM
    assert work.workspace.read_record(0).verified is VerifyLevel.CHECKSUM


def test_a_rank_that_fails_its_check_loses_its_record(work: RankWork) -> None:
    write(work, 0)
    damage(file_of(work, 0))
    with pytest.raises(VerificationError):
        work.check(0)
    assert work.workspace.recorded_ranks() == set()


def test_a_group_is_written_side_by_side_and_completed_without_writing(
    group_work: RankWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, ...]] = []

    def counted(plan: Any, ranks: Sequence[int], *args: Any, **options: Any) -> Any:
        written.append(tuple(ranks))
        return transform_ranks(plan, ranks, *args, **options)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", counted)
    assert group_work.make(Unit(Kind.WRITE, GROUP)).rank == 0
    assert group_work.workspace.recorded_ranks() == set(GROUP)
    assert group_work.make(Unit(Kind.COMPLETE, (3,))).rank == 3
    assert group_work.make(Unit(Kind.WRITE, GROUP)).rank == 0, "a repeated group is not written again"
    assert written == [GROUP]


def test_of_a_group_that_fails_only_the_first_rank_is_written(
    group_work: RankWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[int] = []

    def alone(plan: Any, ranks: Sequence[int], *args: Any, **options: Any) -> Any:
        shares.append(options["prefetch"])
        if len(ranks) > 1:
            raise StorageError("no")
        return transform_ranks(plan, ranks, *args, **options)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", alone)
    group_work.make(Unit(Kind.WRITE, GROUP))
    assert group_work.workspace.recorded_ranks() == {0}
    group_work.make(Unit(Kind.COMPLETE, (5,)))
    assert group_work.workspace.recorded_ranks() == {0, 5}
    assert shares[1:] == [1, 1], "each with the memory of one worker"


def test_a_copy_has_its_primarys_bytes_and_a_record_of_its_own(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out", target_strategy=whole_copies(tmp_path, 2))
    with open_session(request, make_plan(request)) as session:
        work = session.work(lambda _: None)
        assert session.copies == (1,)
        write(work, 0)
        work.check(0)
        record = work.make(Unit(Kind.COPY, (1,)))
    assert (record.rank, record.copy_of, record.read_bytes, record.verified) == (1, 0, 0, VerifyLevel.NONE)
    assert file_of(work, 1).read_bytes() == file_of(work, 0).read_bytes()


@pytest.mark.parametrize("mends", [False, True])
def test_only_sound_ranks_are_kept(work: RankWork, mends: bool) -> None:
    for rank in range(3):
        write(work, rank)
    damage(file_of(work, 1))
    write_bytes(work.workspace.record_location(2), b"{")
    sound = find_sound_ranks(work.workspace, work.plan, work.level, range(3), work.budget, mends=mends)
    assert sound == {0}
    assert work.workspace.recorded_ranks() == ({0} if mends else {0, 1, 2})


def test_ranks_are_called_by_number_or_by_file(work: RankWork, tmp_path: Path) -> None:
    assert rank_or_file(work.plan, 2) == "rank_2"
    whole = make_plan(FOUR_TO_THREE.request(tmp_path / "whole", target_strategy="", layout="unified"))
    assert rank_or_file(whole, 0) == whole.file_name(0)

"""The end of a run: its failures, other runs that complete the target first, and what is committed."""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.finish import finish
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import open_session
from reshard.core.errors import StorageError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.publishing import PARTIAL_SUFFIX, IsOwn, publish
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.workspace import Workspace
from reshard.core.verification.files import RankVerification, verify_rank
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_tree
from tests.support.conversions import damage, do_ranks
from tests.support.runs import partial

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def plan_of(target: Path) -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request(target))


@pytest.mark.parametrize("level", ["none", "structure", "checksum"])
def test_levels_are_recorded(target: Path, level: str) -> None:
    assert convert(FOUR_TO_THREE.request(target, verify=level)).verified == level
    manifest = json.loads((target / ".reshard" / "manifest.json").read_text())
    assert manifest["verified"] == level
    assert manifest["target_world_size"] == 3


def test_a_finished_target_verified_more_closely_later_stays_sound(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, verify="none"))
    assert convert(FOUR_TO_THREE.request(target, verify="checksum")).committed
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert json.loads((target / ".reshard" / "manifest.json").read_text())["verified"] == "checksum"


def test_a_run_whose_target_was_completed_by_another_says_so(target: Path) -> None:
    first, last = FOUR_TO_THREE.request(target, ranks="0-1"), FOUR_TO_THREE.request(target, ranks="2")
    plan = make_plan(first)
    with open_session(last, plan) as slow:
        do_ranks(slow)
        with open_session(first, plan) as quick:
            do_ranks(quick)
            assert finish(quick, 0).committed
        report = finish(slow, 0)
    assert (report.committed, report.missing_ranks) == (True, ())
    assert [rank.rank for rank in report.ranks] == [2]
    assert not partial(target).exists()


def test_a_run_whose_target_is_completed_by_another_while_it_reads_the_records(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = FOUR_TO_THREE.request(target, ranks="0-1"), FOUR_TO_THREE.request(target, ranks="2")
    plan = make_plan(first)
    read_record = Workspace.read_record

    def slow_read(workspace: Workspace, rank: int) -> ShardRecord:
        if rank == 1 and workspace.directory.path.endswith(PARTIAL_SUFFIX) and not ended:
            ended.append(True)
            assert finish(quick, 0).committed
        return read_record(workspace, rank)

    ended: list[bool] = []
    with open_session(last, plan) as slow:
        do_ranks(slow)
        with open_session(first, plan) as quick:
            do_ranks(quick)
            monkeypatch.setattr(Workspace, "read_record", slow_read)
            report = finish(slow, 0)
    assert ended
    assert (report.committed, report.missing_ranks) == (True, ())
    assert [rank.outcome for rank in report.ranks] == ["written"]
    assert read_tree(target) == FOUR_TO_THREE.want
    assert not partial(target).exists()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_whose_target_is_completed_by_a_less_careful_one_while_it_checks(
    target: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It used to fail, or to begin another target beside; it checks its file where that is by then."""
    ended: list[bool] = []

    def slow_verify(*args: Any, **kwargs: Any) -> RankVerification:
        found = verify_rank(*args, **kwargs) if moment == "after" else None
        if not ended:
            ended.append(True)
            assert convert(FOUR_TO_THREE.request(target, ranks="0-1", verify="none")).committed
        return found or verify_rank(*args, **kwargs)

    with open_session(FOUR_TO_THREE.request(target, ranks="0-1", verify="none"), plan_of(target)) as session:
        do_ranks(session)
    monkeypatch.setattr("reshard.core.conversion.rank_work.verify_rank", slow_verify)
    report = convert(FOUR_TO_THREE.request(target, ranks="2", verify="checksum"))
    assert ended
    assert report.committed
    assert [(rank.rank, rank.verified) for rank in report.ranks] == [(2, VerifyLevel.CHECKSUM)]
    assert read_tree(target) == FOUR_TO_THREE.want
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_two_runs_that_complete_a_target_at_the_same_moment(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second used to pass the first one's gate, publish, and have its target moved aside by the first."""
    convert(FOUR_TO_THREE.request(target, ranks="2"))
    others: list[Future[ConversionReport]] = []

    def slow_publish(working: Location, final: Location, own: IsOwn) -> None:
        if not others:
            others.append(pool.submit(convert, FOUR_TO_THREE.request(target, ranks="2")))
            time.sleep(0.5)
        publish(working, final, own)

    monkeypatch.setattr("reshard.core.target.claim.publish", slow_publish)
    with ThreadPoolExecutor(1) as pool:
        assert convert(FOUR_TO_THREE.request(target, ranks="0-1")).committed
    assert others[0].result().committed
    assert read_tree(target) == FOUR_TO_THREE.want
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_two_runs_that_mend_a_target_complete_it_at_the_same_moment(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    damage(next((target / "rank_1").iterdir()))
    request = FOUR_TO_THREE.request(target)
    with open_session(request, make_plan(request)) as session:
        do_ranks(session)
        assert finish(session, 1.0).committed
        manifest = read_manifest(parse_url(str(target)))
        assert manifest is not None
        session.target.commit(manifest)  # as the other run does, which saw all ranks there and no manifest yet
    assert read_tree(target) == FOUR_TO_THREE.want
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


def test_a_rank_that_was_written_again_after_its_check_is_not_taken_for_done(tmp_path: Path) -> None:
    """A task that was given to two workers: one ends when the other's file is checked already."""
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with open_session(request, make_plan(request)) as session:
        work = session.work(lambda _: None)
        for rank in (0, 1, 2):
            work.make(Unit(Kind.WRITE, (rank,)))
            work.check(rank)
        work.make(Unit(Kind.WRITE, (1,)))
        with pytest.raises(StorageError, match="rank_1: reported as done, but no checked file is recorded"):
            finish(session, 1.0)
    assert not (tmp_path / "out").exists()
    assert convert(request).committed

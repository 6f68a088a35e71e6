"""The target: what may replace or resume what is there, row by row of the module's table, on both kinds of storage."""

import pytest

from reshard.core.errors import TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.listing import exists, find_entries
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leases_of
from reshard.core.target.target import Target
from reshard.core.target.upkeep import reopen
from reshard.core.target.workspace import Workspace, read_records
from tests.support.small_files import contents
from tests.support.targets import convert_ranks, manifest_of, record_of


def finish(target: Target) -> None:
    convert_ranks(target, *target.plan.target_ranks, commit=True)


def checkpoint_files(location: Location) -> list[str]:
    paths = [path.removeprefix(location.path + "/") for path in find_entries(location)]
    return sorted(path for path in paths if path.startswith("rank_"))


def files_of(plan: ConversionPlan) -> list[str]:
    return [plan.file_name(rank) for rank in plan.target_ranks]


# ---- nothing, or an empty directory ----


def test_nothing_there(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    assert not target.is_committed()
    finish(target)
    assert target.is_committed()
    assert checkpoint_files(final) == files_of(plan)
    assert read_manifest(final) == manifest_of(target)
    assert [record.rank for record in read_records(Workspace(final, target.identity), range(3))] == [0, 1, 2]


def test_only_a_claim_that_found_nothing_is_of_an_empty_target(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    with Target(final, plan).claimed([0]) as claim:
        assert claim.was_empty is not final.store.renames
        write_bytes(claim.workspace.directory.child("rank_0", "checkpoint_0.ckpt"), b"ours")
    with Target(final, plan).claimed([0]) as claim:
        assert not claim.was_empty  # whatever an earlier run of the same plan found
    with Target(final, other_plan, overwrite=True).claimed([0]) as claim:
        assert claim.is_new
        assert not claim.was_empty


def test_a_lease_in_an_empty_target_may_be_of_a_run_that_still_writes(final: Location, plan: ConversionPlan) -> None:
    write_bytes(leases_of(final).child("1234abcd.json"), new_holder([7]).dump(renewal=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0)
        with Target(final, plan).claimed([0]) as claim:
            assert not claim.was_empty


def test_what_appears_beside_the_files_is_looked_for_unless_nothing_was_there(
    final: Location, plan: ConversionPlan
) -> None:
    stranger = final.child("rank_9", "old.ckpt")
    if final.store.renames:
        pytest.skip("object stores only")
    target = Target(final, plan)
    for was_empty in (True, False):
        with target.claimed(plan.target_ranks) as claim:
            for rank in plan.target_ranks:
                write_bytes(claim.workspace.directory.child(plan.file_name(rank)), b"x")
            write_bytes(stranger, b"somebody's")
            assert claim.was_empty is was_empty
            target.commit(manifest_of(target), was_empty=claim.was_empty)
            reopen(target)
        assert exists(stranger) is was_empty


# ---- unfinished work ----


def test_unfinished_work_of_the_same_plan_is_resumed(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0, 2)
    with Target(final, plan).claimed([0, 1, 2]) as claim:
        workspace = claim.workspace
        assert workspace.recorded_ranks() == {0, 2}
        assert workspace.read_record(2) == record_of(Target(final, plan), 2)


def test_unfinished_work_of_another_plan(final: Location, plan: ConversionPlan, other_plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0, 2)
    with pytest.raises(
        TargetError,
        match="out: an unfinished conversion by another plan, or of a source that .*, or pass over",
    ):
        convert_ranks(Target(final, other_plan), 1)
    with Target(final, other_plan, overwrite=True).claimed([0, 1, 2]) as claim:
        workspace = claim.workspace
        assert workspace.recorded_ranks() == set()
    finish(Target(final, other_plan, overwrite=True))
    assert checkpoint_files(final) == files_of(other_plan)


def test_overwrite_does_not_discard_what_the_same_plan_did(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0)
    with Target(final, plan, overwrite=True).claimed([1]) as claim:
        workspace = claim.workspace
        assert workspace.recorded_ranks() == {0}


# ---- finished conversions and other checkpoints ----


def test_a_finished_conversion_by_the_same_plan(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    for overwrite in (False, True):
        Target(final, plan, overwrite).check_usable()
        with Target(final, plan, overwrite).claimed([0]):
            assert Target(final, plan).is_committed()
    assert checkpoint_files(final) == files_of(plan)


def test_a_finished_conversion_by_another_plan(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    finish(Target(final, plan))
    with pytest.raises(TargetError, match="out: is not empty. Name another target, or pass overwrite=True to replace"):
        convert_ranks(Target(final, other_plan), 0)
    assert Target(final, plan).is_committed()
    finish(Target(final, other_plan, overwrite=True))
    assert checkpoint_files(final) == files_of(other_plan)
    assert Target(final, other_plan).is_committed()


def test_while_it_is_being_replaced_it_counts_only_if_it_is_whole(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    finish(Target(final, plan))
    convert_ranks(Target(final, other_plan, overwrite=True), 0)
    assert Target(final, plan).is_committed() is final.store.renames, "in place, the commit marker goes first"
    assert not Target(final, other_plan).is_committed()


def test_another_checkpoint(final: Location, plan: ConversionPlan) -> None:
    write_bytes(final.child("rank_0", "net-10_5.ckpt"), b"old")
    write_bytes(final.child("rank_7", "net-10_5.ckpt"), b"old")
    with pytest.raises(TargetError, match="out: is not empty. Name another target, or pass overwrite=True to replace"):
        convert_ranks(Target(final, plan), 0)
    assert checkpoint_files(final) == ["rank_0/net-10_5.ckpt", "rank_7/net-10_5.ckpt"]
    finish(Target(final, plan, overwrite=True))
    assert checkpoint_files(final) == files_of(plan)


# ---- anything else ----


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "rank_table.json", "rank_/x", "logs/rank_0/x"])
def test_anything_else_is_left_alone(final: Location, plan: ConversionPlan, name: str, overwrite: bool) -> None:
    write_bytes(final.child("rank_0", "net-10_5.ckpt"), b"old")
    write_bytes(final.child(*name.split("/")), b"precious")
    with pytest.raises(TargetError, match=r"holds foreign files \(.*\). Name another target, or move"):
        finish(Target(final, plan, overwrite))
    assert contents(final.child(*name.split("/"))) == b"precious"
    assert checkpoint_files(final)


def test_a_file_in_the_place_of_the_target(final: Location, plan: ConversionPlan) -> None:
    write_bytes(final, b"precious")
    with pytest.raises(TargetError, match="out: is a file, "):
        convert_ranks(Target(final, plan, overwrite=True), 0)
    assert contents(final) == b"precious"


def test_a_damaged_manifest_is_named(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    write_bytes(final.child(".reshard", "manifest.json"), b"{")
    with pytest.raises(TargetError, match=r"\.reshard/manifest\.json: not a readable manifest: "):
        convert_ranks(Target(final, plan), 0)

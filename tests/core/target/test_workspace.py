"""The workspace: the plan's file, records that count and records that do not, and abandoned uploads."""

import pytest

from reshard.core.errors import StorageError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.listing import exists
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.target import Target
from reshard.core.target.workspace import Workspace, read_identity, read_records
from tests.support.targets import record_of


def test_the_plan_is_beside_its_records(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as claim:
        workspace = claim.workspace
        again = Workspace.of_plan(workspace.plan_url, target.identity)
        assert (again.directory, again.identity) == (workspace.directory, workspace.identity)
        assert exists(parse_url(workspace.plan_url))
    assert read_manifest(final) is None


def test_records_of_another_conversion_do_not_count(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0, 1, 2]) as claim:
        workspace = claim.workspace
        workspace.write_record(record_of(target, 0))
        workspace.write_record(record_of(target, 1).model_copy(update={"identity": "another"}))
        write_bytes(workspace.record_location(2), b"{")
        write_bytes(workspace.record_location(0).parent.child("rank_x.json"), b"{")
        with pytest.raises(TargetError, match="rank_1.json: is of another conversion"):
            workspace.read_record(1)
        assert [record.rank for record in read_records(workspace, [0, 1, 2])] == [0]
        assert workspace.recorded_ranks() == {0, 1}, "what is damaged is forgotten, what is another's is left to it"
        with pytest.raises(StorageError, match="rank_2.json: cannot read it: no such file"):
            workspace.read_record(2)


def test_a_record_that_was_moved_does_not_count(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as claim:
        workspace = claim.workspace
        workspace.write_record(record_of(target, 0))
        final.store.copy(workspace.record_location(0).path, workspace.record_location(1).path)
        with pytest.raises(TargetError, match="rank_1.json: is of another conversion"):
            workspace.read_record(1)


def test_a_record_is_parsed_again_unless_its_bytes_are_those_that_were_written(
    final: Location, plan: ConversionPlan
) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as claim:
        workspace = claim.workspace
        written = record_of(target, 0)
        workspace.write_record(written)
        assert workspace.read_record(0) is written
        other = Workspace(workspace.directory, workspace.identity)
        changed = written.model_copy(update={"seconds": 2.5})
        other.write_record(changed)
        assert workspace.read_record(0) == changed
        assert other.read_record(0) is changed
        write_bytes(workspace.record_location(0), b"{")
        with pytest.raises(TargetError, match="rank_0.json: not a readable record"):
            workspace.read_record(0)


def test_known_records_are_parsed_to_the_same(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as claim:
        claim.workspace.write_record(record_of(target, 0))
        known = claim.workspace.read_record(0)
        assert Workspace(claim.workspace.directory, target.identity).read_record(0) == known


def test_few_records_are_known_at_once(final: Location, plan: ConversionPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(final, plan)
    with target.claimed([0, 1, 2]) as claim:
        workspace = claim.workspace
        records = [record_of(target, rank) for rank in range(3)]
        monkeypatch.setattr("reshard.core.target.workspace._MAX_KNOWN_RECORDS", 2)
        for record in records:
            workspace.write_record(record)
        assert [workspace.read_record(rank) is records[rank] for rank in range(3)] == [False, True, True]
        monkeypatch.setattr("reshard.core.target.workspace._MAX_KNOWN_BYTES", 10)
        workspace.write_record(records[0])
        assert workspace.read_record(0) == records[0]
        assert workspace.read_record(0) is not records[0]


def test_only_the_record_that_failed_is_withdrawn(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0, 1]) as claim:
        workspace = claim.workspace
        failed = record_of(target, 0)
        workspace.write_record(failed.model_copy(update={"seconds": 1.0}))
        workspace.withdraw_record(failed)
        assert workspace.recorded_ranks() == {0}, "another run has repeated the rank"
        workspace.write_record(failed)
        workspace.withdraw_record(failed)
        assert workspace.find_record(0) is None
        write_bytes(workspace.record_location(1), b"{")
        workspace.withdraw_record(record_of(target, 1))
        assert workspace.recorded_ranks() == {1}


def test_a_workspace_is_current_while_it_has_its_plans_identity(final: Location, plan: ConversionPlan) -> None:
    target = Target(final, plan)
    with target.claimed([0]) as claim:
        workspace = claim.workspace
        assert workspace.is_current()
        write_bytes(workspace.state.child("identity"), b"another")
        assert not workspace.is_current()
        final.store.remove(workspace.state.child("identity").path)
        assert not workspace.is_current()
        assert read_identity(workspace.state) is None

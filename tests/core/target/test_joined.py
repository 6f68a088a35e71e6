"""The target of joined parts: a target without a plan, which replaces nothing."""

from pathlib import Path

import pytest

from reshard.core.errors import TargetBusyError, TargetError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.listing import find_files
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.joined import JoinedTarget, check_joinable
from reshard.core.target.target import Target
from reshard.core.target.workspace import read_identity
from tests.support.targets import convert_ranks


def joined(final: Location, plan: ConversionPlan, identity: str = "parts") -> JoinedTarget:
    return JoinedTarget(final, plan, parts_identity=identity)


def test_a_claim_notes_whose_it_is_and_writes_no_plan(final: Location, plan: ConversionPlan) -> None:
    with joined(final, plan).claimed(plan.target_ranks) as claim:
        assert claim.is_new
        assert read_identity(claim.workspace.state) == "parts"
        names = {file.name for file in find_files(claim.workspace.state) if file.parent.name != "leases"}
        assert names == {"identity"}
    with joined(final, plan).claimed(plan.target_ranks) as claim:
        assert not claim.is_new


def test_one_run_at_a_time(tmp_path: Path, plan: ConversionPlan) -> None:
    final = parse_url(str(tmp_path / "out"))  # remote leases take seconds
    refused = pytest.raises(TargetBusyError)
    with joined(final, plan).claimed([0, 1]), refused, joined(final, plan).claimed([1, 2]):
        pass


def test_neither_a_conversion_nor_other_parts_are_replaced(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0)
    refused = pytest.raises(TargetError, match="out: something else is unfinished in .*Finish that, or remove it$")
    with refused, joined(final, plan).claimed([0]):
        pass
    convert_ranks(Target(final, plan), *plan.target_ranks, commit=True)
    refused = pytest.raises(TargetError, match="out: is not empty. Name another target, or remove it$")
    with refused, joined(final, plan).claimed([0]):
        pass
    assert Target(final, plan).is_committed()


def test_unusable_places_are_refused_before_parts_are_read(final: Location, plan: ConversionPlan) -> None:
    check_joinable(final)
    with joined(final, plan).claimed([0]):
        check_joinable(final)
    write_bytes(final.child("rank_0", "net.ckpt"), b"x")
    if final.store.renames:  # on an object store, the work that was begun may be these parts'
        with pytest.raises(TargetError, match="out: is not empty. Name another target, or remove it$"):
            check_joinable(final)

"""Claiming a target: runs that begin or leave together."""

from pathlib import Path

import pytest

from reshard.core.errors import TargetBusyError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import parse_url
from reshard.core.target.look import Look
from reshard.core.target.target import Target
from tests.support.targets import convert_ranks


def finish(target: Target) -> None:
    convert_ranks(target, *target.plan.target_ranks, commit=True)


def test_what_another_run_of_the_plan_did_while_this_one_began_stays(
    plan: ConversionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing keeps runs of different ranks apart that begin together on an object store."""
    final = parse_url("memory://began_together/out")
    begin = Target._begin

    def slow_begin(target: Target, look: Look) -> None:
        monkeypatch.setattr(Target, "_begin", begin)
        convert_ranks(Target(final, plan), 2)
        begin(target, look)

    monkeypatch.setattr(Target, "_begin", slow_begin)
    with Target(final, plan).claimed([0, 1]) as claim:
        workspace = claim.workspace
        assert workspace.recorded_ranks() == {2}


@pytest.mark.parametrize("mends", [False, True])
def test_two_plans_never_work_at_a_target_at_the_same_time(
    tmp_path: Path, plan: ConversionPlan, other_plan: ConversionPlan, mends: bool
) -> None:
    """Who mends a target in its place used to be replaced, and to give its manifest to what replaced it."""
    final = parse_url(str(tmp_path / "out"))
    if mends:
        finish(Target(final, plan))
    ours, theirs = Target(final, plan, overwrite=True), Target(final, other_plan, overwrite=True)
    for first, second in ((ours, theirs), (theirs, ours)):
        refused = pytest.raises(TargetBusyError, match=r"another run is already .* It uses other options")
        with first.claimed([0]), refused, second.claimed([1]):
            pass


def test_a_refused_run_leaves_nothing(tmp_path: Path, plan: ConversionPlan) -> None:
    final = parse_url(str(tmp_path / "out"))
    finish(Target(final, plan))
    with Target(final, plan).claimed([0]) as claim, pytest.raises(TargetBusyError):
        convert_ranks(Target(final, plan), 0, 1)
    assert claim.workspace.directory == final
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / ".reshard" / "leases").exists()

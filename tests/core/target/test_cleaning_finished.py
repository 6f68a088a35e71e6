"""A finished checkpoint is never removed: every state in which a killed run leaves one, on both kinds of storage."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.listing import exists, find_entries, find_files
from reshard.core.storage.publishing import MANIFEST_NAME, REMOVING_NAME, STATE_DIRECTORY, WITHDRAWN_NAME
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leases_of
from reshard.core.target.cleaning import clean
from reshard.core.target.target import Target
from reshard.core.target.upkeep import reopen
from reshard.core.target.workspace import Workspace
from tests.support.small_files import contents
from tests.support.targets import convert_ranks


@pytest.fixture(autouse=True)
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remote leases are dead after a moment."""
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease.RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.2)


class KilledError(BaseException):
    """A run ends in the middle."""


def finish(target: Target) -> None:
    convert_ranks(target, *target.plan.target_ranks, commit=True)


def state_of(final: Location, *names: str) -> Location:
    return final.child(STATE_DIRECTORY, *names)


def files_below(final: Location) -> set[str]:
    """Paths of all files at a target but its leases."""
    return {path for path in find_entries(final) if "/leases/" not in path}


def leave_lease(target: Target) -> None:
    holder = new_holder([0])
    write_bytes(leases_of(target.final).child(f"{holder.run}.json"), holder.dump())


def leave_identity_of_another(target: Target) -> None:
    write_bytes(state_of(target.final, "identity"), b"another plan's")


def damage_plan(target: Target) -> None:
    write_bytes(state_of(target.final, "plan.json.gz"), b"damaged")


def lose_state(target: Target) -> None:
    for file in find_files(state_of(target.final)):
        if file.name != MANIFEST_NAME:
            remove_file(file)


def mend(target: Target) -> None:
    """A run has found a damaged file, and is killed before it writes it again."""
    reopen(target)
    remove_file(target.final.child(target.plan.file_name(1)))
    Workspace(target.final, target.identity).remove_record(1)


def mend_and_leave_lease(target: Target) -> None:
    mend(target)
    leave_lease(target)


def mend_without_state(target: Target) -> None:
    mend(target)
    for name in ("identity", "plan.json.gz"):
        remove_file(state_of(target.final, name))


def confirm_halfway(target: Target) -> None:
    """A run has mended it, and is killed just after it has written the manifest."""
    manifest = state_of(target.final, MANIFEST_NAME)
    data = contents(manifest)
    reopen(target)
    write_bytes(manifest, data)


def begin_removal(target: Target) -> None:
    """convert-latest is killed before it withdraws the manifest of a conversion that it removes."""
    manifest = state_of(target.final, MANIFEST_NAME)
    write_bytes(state_of(target.final, REMOVING_NAME), contents(manifest))


def begin_removal_and_withdraw(target: Target) -> None:
    begin_removal(target)
    remove_file(state_of(target.final, MANIFEST_NAME))


class Case(Record):
    """What is done to a finished checkpoint, what `clean` says of it, and whether the same conversion completes it."""

    leave: Callable[[Target], None]
    kept: str = ""
    completed: bool = False


MENDED = "a finished conversion that was being repaired or replaced; repeat the conversion to complete it"
CASES = [
    Case(lambda _: None),
    Case(leave_lease),
    Case(leave_identity_of_another),
    Case(damage_plan),
    Case(lose_state),
    Case(reopen, MENDED, completed=True),
    Case(mend, MENDED, completed=True),
    Case(mend_and_leave_lease, MENDED, completed=True),
    Case(mend_without_state, MENDED),
    Case(confirm_halfway),
    Case(begin_removal),
    Case(begin_removal_and_withdraw, "a conversion that was being removed; the next run of convert-latest"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.leave.__name__)
def test_a_finished_checkpoint_is_never_removed(final: Location, plan: ConversionPlan, case: Case) -> None:
    target = Target(final, plan)
    finish(target)
    case.leave(target)
    before = files_below(final) - {state_of(final, WITHDRAWN_NAME).path}
    report = clean(str(final), remove=True)
    assert files_below(final) >= before
    assert [case.kept in kept for kept in report.kept] == ([True] if case.kept else [])
    if case.completed:
        finish(Target(final, plan))
        assert target.is_committed()
        assert not exists(state_of(final, WITHDRAWN_NAME))
    assert clean(str(final), remove=True).found == ()


def kill_at(patch: pytest.MonkeyPatch, last: int) -> None:
    """Let a run be killed just before it removes or writes a file when it has done so `last` times."""
    done = 0

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal done
            if done == last:
                raise KilledError
            done += 1
            change(*arguments)

        return call

    remove = counted(remove_file)

    def remove_each(files: Iterable[Location]) -> None:
        for file in files:
            remove(file)

    patch.setattr("reshard.core.target.clearing.remove_files", remove_each)
    for module in ("target", "clearing", "claim"):
        patch.setattr(f"reshard.core.target.{module}.remove_file", remove)
    for module in ("target", "claim"):
        patch.setattr(f"reshard.core.target.{module}.write_bytes", counted(write_bytes))


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("leave", [Target.is_committed, reopen])
def test_a_checkpoint_stays_whose_replacement_is_killed_as_it_begins(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan, steps: int, leave: Callable[[Target], object]
) -> None:
    finish(Target(final, plan))
    leave(Target(final, plan))
    files = [final.child(plan.file_name(rank)) for rank in plan.target_ranks]
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, steps)
        with suppress(KilledError):  # it may be begun before
            convert_ranks(Target(final, other_plan, overwrite=True))
    clean(str(final), remove=True)
    assert files_below(final) >= {file.path for file in files}
    assert set(map(contents, files)) == {Target(final, plan).identity.encode()}
    if final.store.renames and leave is Target.is_committed:
        assert read_manifest(final)
    finish(Target(final, other_plan, overwrite=True))
    assert Target(final, other_plan).is_committed()
    assert not exists(state_of(final, WITHDRAWN_NAME))


def test_of_a_checkpoint_that_was_being_replaced_only_the_new_files_are_removed(
    final: Location, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    finish(Target(final, plan))
    convert_ranks(Target(final, other_plan, overwrite=True), 0)
    assert clean(str(final), remove=True).removed
    assert files_below(final) >= {final.child(plan.file_name(rank)).path for rank in plan.target_ranks}
    assert final.child(other_plan.file_name(0)).path not in files_below(final)

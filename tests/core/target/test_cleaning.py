"""Cleaning up after killed runs: what is removed, and each state that is refused or kept, on both kinds of storage."""

import os
import shutil
from pathlib import Path

import pytest

from reshard.core.errors import InputError, TargetBusyError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.listing import exists, find_entries
from reshard.core.storage.publishing import MANIFEST_NAME, REMOVING_NAME, STATE_DIRECTORY, working_location
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leases_of
from reshard.core.target.cleaning import clean
from reshard.core.target.leftovers import CleanReport, LeftoverKind
from reshard.core.target.target import Target
from tests.support.targets import convert_ranks


@pytest.fixture(autouse=True)
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remote leases are dead after a moment."""
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease.RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.2)


def finish(target: Target) -> None:
    convert_ranks(target, *target.plan.target_ranks, commit=True)


def kinds(report: CleanReport) -> list[LeftoverKind]:
    return [each.kind for each in report.found]


def files_at(location: Location) -> set[str]:
    """Paths of all files there and beside it."""
    return set(find_entries(location.parent))


def leave_dead_lease(final: Location) -> Location:
    holder = new_holder([0])
    lease = leases_of(final).child(f"{holder.run}.json")
    write_bytes(lease, holder.dump())
    return lease


def test_nothing_there(final: Location) -> None:
    with pytest.raises(InputError, match="out: does not exist, and has no unfinished work .* Check the path"):
        clean(str(final), remove=True)
    assert files_at(final) == set()


@pytest.mark.parametrize("suffix", [".reshard-partial", ".reshard-replaced"])
def test_a_directory_of_targets(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"9_9{suffix}").mkdir()
    with pytest.raises(TargetError, match=f"holds unfinished work of targets in it. Name the target: {tmp_path}/9_9$"):
        clean(str(tmp_path), remove=True)
    assert (tmp_path / f"9_9{suffix}").exists()


def test_unfinished_work_is_listed_and_then_removed(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0, 2)
    before = files_at(final)
    listed = clean(str(final))
    assert (kinds(listed), listed.removed, listed.kept) == ([LeftoverKind.UNFINISHED], False, ())
    assert listed.found[0].files == len(before)
    assert listed.found[0].size_bytes == sum(entry.size_bytes for entry in find_entries(final.parent).values())
    assert (listed.found[0].ranks_done, listed.found[0].ranks) == (2, len(plan.target_ranks))
    assert files_at(final) == before
    assert clean(str(final), remove=True).removed
    assert files_at(final) == set()
    assert not final.store.renames or os.listdir(final.parent.path) == []


def test_the_ranks_of_an_unreadable_plan_are_unknown(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0)
    write_bytes(working_location(final).child(".reshard/plan.json.gz"), b"damaged")
    unfinished = clean(str(final)).found[0]
    assert (unfinished.ranks_done, unfinished.ranks) == (1, None)


def test_a_finished_conversion_is_never_touched(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    before = files_at(final)
    assert clean(str(final), remove=True).found == ()
    assert files_at(final) == before


def test_stale_leases_of_a_finished_conversion(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    before = files_at(final)
    leave_dead_lease(final)
    assert kinds(clean(str(final))) == [LeftoverKind.LEASE]
    assert files_at(final) != before
    assert clean(str(final), remove=True).removed
    assert files_at(final) == before
    assert not exists(working_location(final)) or not final.store.renames


def test_a_living_run_is_named_and_left_alone(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0)
    holder = new_holder([1], "another plan")
    with held_lease(leases_of(final), holder):
        before = files_at(final)
        for remove in (False, True):
            with pytest.raises(TargetBusyError, match=f"run {holder.run} of .* is working on it. Nothing was removed"):
                clean(str(final), remove=remove)
        assert files_at(final) == before


def test_a_lease_that_cannot_be_read(final: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(final, plan), 0)
    write_bytes(leases_of(final).child("hostile.json"), b"[]")
    if final.store.renames:  # nobody holds it: it is dead, whatever it says
        assert clean(str(final), remove=True).removed
        return
    with pytest.raises(TargetError, match=r"hostile\.json: not a readable lease"):
        clean(str(final), remove=True)


def test_an_interrupted_removal_by_retention_is_kept(final: Location, plan: ConversionPlan) -> None:
    finish(Target(final, plan))
    state = final.child(STATE_DIRECTORY)
    final.store.copy(state.child(MANIFEST_NAME).path, state.child(REMOVING_NAME).path)
    final.store.remove(state.child(MANIFEST_NAME).path)
    before = files_at(final)
    report = clean(str(final), remove=True)
    assert (report.found, len(report.kept)) == ((), 1)
    assert "a conversion that was being removed; the next run of convert-latest" in report.kept[0]
    assert files_at(final) == before


@pytest.mark.parametrize("suffix", [".reshard-partial", ".reshard-replaced", "/.reshard"])
def test_the_target_itself_is_to_be_named(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(TargetError, match=f"name the target, {tmp_path}/out$"):
        clean(f"{tmp_path}/out{suffix}")


def test_a_file_is_no_target(final: Location) -> None:
    write_bytes(final, b"mine")
    with pytest.raises(TargetError, match="is a file, the target of a conversion is a directory"):
        clean(str(final), remove=True)


# ---- local directories ----


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "out"


def begun(local: Path, plan: ConversionPlan) -> Path:
    """An unfinished conversion; its working directory."""
    convert_ranks(Target(place(local), plan), 0)
    return local.with_name("out.reshard-partial")


def place(path: Path) -> Location:
    return parse_url(str(path))


@pytest.mark.parametrize("name", ["thesis.tex", "rank_0/thesis.tex", ".reshard/thesis.tex", ".reshard/records/x.json"])
def test_foreign_files_in_the_working_directory(local: Path, plan: ConversionPlan, name: str) -> None:
    working = begun(local, plan)
    (working / name).write_text("mine")
    before = files_at(place(local))
    with pytest.raises(TargetError, match=f"{name}: is not a file that conversions write"):
        clean(str(local), remove=True)
    assert files_at(place(local)) == before


def test_a_link_in_the_working_directory(local: Path, plan: ConversionPlan, tmp_path: Path) -> None:
    working = begun(local, plan)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.ckpt").write_text("mine")
    (working / "rank_7").symlink_to(tmp_path / "mine")
    with pytest.raises(TargetError, match="rank_7: is a link to"):
        clean(str(local), remove=True)
    assert (tmp_path / "mine/a.ckpt").read_text() == "mine"


def test_a_working_directory_that_is_a_link_to_a_checkpoint(local: Path, plan: ConversionPlan) -> None:
    other = local.with_name("other")
    finish(Target(place(other), plan))
    local.with_name("out.reshard-partial").symlink_to(other)
    with pytest.raises(TargetError, match=r"out\.reshard-partial: is a link to"):
        clean(str(local), remove=True)
    assert read_manifest(place(other))


def test_a_complete_conversion_without_its_name_is_kept(local: Path, plan: ConversionPlan) -> None:
    finish(Target(place(local), plan))
    local.rename(working := local.with_name("out.reshard-partial"))
    with pytest.raises(TargetError, match="holds a complete conversion, which was about to become .*/out"):
        clean(str(local), remove=True)
    assert (working / ".reshard/manifest.json").exists()


def test_a_replaced_checkpoint_goes_once_the_new_one_is_there(
    local: Path, plan: ConversionPlan, other_plan: ConversionPlan
) -> None:
    replaced = local.with_name("out.reshard-replaced")
    finish(Target(place(local), other_plan))
    local.rename(replaced)
    with pytest.raises(TargetError, match="holds the checkpoint that was at .*/out, .* may be the only copy"):
        clean(str(local), remove=True)
    assert replaced.exists()
    finish(Target(place(local.with_name("new")), plan))
    local.with_name("new").rename(local)
    report = clean(str(local), remove=True)
    assert (kinds(report), report.removed) == ([LeftoverKind.REPLACED], True)
    assert sorted(path.name for path in local.parent.iterdir()) == ["out"]
    assert read_manifest(place(local))


@pytest.mark.parametrize("size", [None, 10])
def test_a_replaced_checkpoint_is_kept_if_the_new_one_is_damaged(
    local: Path, plan: ConversionPlan, size: int | None
) -> None:
    finish(Target(place(local), plan))
    replaced = local.with_name("out.reshard-replaced")
    shutil.copytree(local, replaced)
    file = next(local.glob("rank_0/*"))
    if size is None:
        file.unlink()
    else:
        os.truncate(file, size)
    with pytest.raises(TargetError, match=r"rank_0/.*: is missing, or has another size .* may be the only copy"):
        clean(str(local), remove=True)
    assert next(replaced.glob("rank_0/*")).exists()


def test_foreign_files_of_a_replaced_directory(local: Path, plan: ConversionPlan) -> None:
    finish(Target(place(local), plan))
    replaced = local.with_name("out.reshard-replaced")
    replaced.mkdir()
    (replaced / "thesis.tex").write_text("mine")
    with pytest.raises(TargetError, match=r"out\.reshard-replaced: holds foreign files \(thesis\.tex\)"):
        clean(str(local), remove=True)
    assert (replaced / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("name", ["rank_0/notes.txt", "rank_9/rank_0/a.ckpt", ".reshard/notes.txt"])
def test_foreign_files_deep_in_a_replaced_directory(local: Path, plan: ConversionPlan, name: str) -> None:
    finish(Target(place(local), plan))
    file = local.with_name("out.reshard-replaced") / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(TargetError, match="is not a file that conversions write. Its directory is a replaced target"):
        clean(str(local), remove=True)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", [".z.deadbeef.tmp", "rank_0/.z.deadbeef.tmp"])
def test_a_directory_with_the_name_of_an_unfinished_file(local: Path, plan: ConversionPlan, name: str) -> None:
    finish(Target(place(local), plan))
    (local / name).mkdir()
    assert clean(str(local), remove=True).found == ()
    assert (local / name).exists()


def test_unfinished_files_in_a_finished_target(local: Path, plan: ConversionPlan) -> None:
    finish(Target(place(local), plan))
    before = files_at(place(local))
    (local / "rank_0/.checkpoint_0.ckpt.0123abcd.tmp").write_bytes(bytes(10))
    shutil.copytree(local / ".reshard/records", local / ".reshard/leases")
    report = clean(str(local), remove=True)
    assert kinds(report) == [LeftoverKind.TEMPORARY, LeftoverKind.LEASE]
    assert report.found[0].size_bytes == 10
    assert files_at(place(local)) == before


def test_unfinished_files_of_others_are_not_ours(local: Path) -> None:
    file = local / "rank_0/.checkpoint_0.ckpt.0123abcd.tmp"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")
    assert clean(str(local), remove=True).found == ()
    assert file.exists()


def test_a_finished_conversion_being_mended_is_kept(local: Path, plan: ConversionPlan) -> None:
    finish(Target(place(local), plan))
    (local / ".reshard/manifest.json").unlink()
    before = files_at(place(local))
    report = clean(str(local), remove=True)
    assert report.found == ()
    mended = f"{local}: a finished conversion that was being repaired or replaced; repeat the conversion "
    assert report.kept == (f"{mended}to complete it. Remove it yourself if you do not want it",)
    assert files_at(place(local)) == before


# ---- object stores ----


@pytest.fixture
def remote(final: Location) -> Location:
    if final.store.renames:
        pytest.skip("object stores only")
    return final


def test_files_without_a_record_are_kept_and_named(remote: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(remote, plan), 0)
    foreign = [remote.child("rank_0/net-1_1.ckpt"), remote.child("rank_9/checkpoint_9.ckpt")]
    for file in (*foreign, remote.child("thesis.tex"), remote.child(".reshard/thesis.tex")):
        write_bytes(file, b"mine")
    report = clean(str(remote), remove=True)
    assert report.removed
    named = "2 checkpoint files without a manifest, of which the unfinished conversion has no record: "
    named += f"{foreign[0]}, {foreign[1]}. "
    assert report.kept == (f"{named}They may be of an earlier checkpoint: remove them yourself if they are not",)
    left = {path.removeprefix(f"{remote.path}/") for path in find_entries(remote)}
    assert left == {"rank_0/net-1_1.ckpt", "rank_9/checkpoint_9.ckpt", "thesis.tex", ".reshard/thesis.tex"}


def test_a_file_that_was_replaced_since_is_kept(remote: Location, plan: ConversionPlan) -> None:
    convert_ranks(Target(remote, plan), 0)
    write_bytes(remote.child(plan.file_name(0)), b"mine, and longer than what was recorded")
    assert "1 checkpoint file without a manifest, of which" in clean(str(remote), remove=True).kept[0]
    assert set(find_entries(remote)) == {remote.child(plan.file_name(0)).path}


def test_a_record_of_another_conversion(remote: Location, plan: ConversionPlan, other_plan: ConversionPlan) -> None:
    convert_ranks(Target(remote, plan), 0)
    write_bytes(remote.child(".reshard/identity"), Target(remote, other_plan).identity.encode())
    with pytest.raises(TargetError, match=r"rank_0\.json: is of another conversion"):
        clean(str(remote), remove=True)
    assert exists(remote.child(plan.file_name(0)))


def test_a_checkpoint_that_reshard_did_not_write(remote: Location) -> None:
    write_bytes(remote.child("rank_0/net-1_1.ckpt"), b"mine")
    kept = (f"{remote}: has no manifest and no records of a conversion",)
    assert clean(str(remote), remove=True) == CleanReport(target=str(remote), found=(), removed=False, kept=kept)
    assert exists(remote.child("rank_0/net-1_1.ckpt"))

"""Cleaning up after a run that was stopped just before the manifest, in every layout and on both kinds of storage."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import StorageError, TargetBusyError, TargetError
from reshard.core.request.conversion import build_request
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.leases.local_lease import exclusive
from reshard.core.storage.listing import exists, find_entries
from reshard.core.storage.publishing import working_location
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leases_of
from reshard.core.target.cleaning import clean
from reshard.core.target.leftovers import CleanReport, LeftoverKind
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.families import Family
from tests.support.iterations import iteration_case

RANKS = case(7010)
LLAMA = Family("llama")
OPTIONS: dict[str, dict[str, Any]] = {
    "ranks": {
        "source": str(RANKS.directory / "src"),
        "source_strategy": str(RANKS.directory / "src_strategy.ckpt"),
        "target_strategy": str(RANKS.directory / "dst_strategy.ckpt"),
    },
    "unified": {"source": str(LLAMA.hf), "layout": "unified", "like": str(LLAMA.hf), "max_shard_size": "16KB"},
    "dcp": {"source": str(LLAMA.hf), "layout": "dcp", "shards": 2},
    "checkpoint2": {"source": str(iteration_case(1).source), "layout": "checkpoint2"},
}


@pytest.fixture
def final(folder: Location) -> Location:
    return folder.child("out")


@contextmanager
def stopping() -> Iterator[pytest.MonkeyPatch]:
    """Conversions end with an error where they would write the manifest."""

    def stop(*_: object) -> None:
        raise StorageError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reshard.core.target.target.publish_manifest", stop)
        yield patch


@pytest.fixture
def stopped() -> Iterator[pytest.MonkeyPatch]:
    """Conversions are stopped, until this is undone."""
    with stopping() as patch:
        yield patch


def begin(final: Location, layout: str, **options: Any) -> None:
    with pytest.raises(StorageError, match="stopped"):
        convert(build_request(target=str(final), **(OPTIONS[layout] | options)))


def begin_to_mend(final: Location, layout: str, **options: Any) -> None:
    """Convert, damage a file, and convert again: this run is stopped when it has written the file again."""
    convert(build_request(target=str(final), **(OPTIONS[layout] | options)))
    files = [path for path in find_entries(final) if path.endswith((".ckpt", ".safetensors", ".distcp"))]
    write_bytes(Location(final.store, min(files)), b"damaged")
    with stopping():
        begin(final, layout, **options)


def names_below(location: Location) -> set[str]:
    """Paths of all files at a target and beside it."""
    return {path.removeprefix(f"{location.parent.path}/") for path in find_entries(location.parent)}


@pytest.mark.parametrize("layout", OPTIONS)
def test_clean_removes_all_that_a_run_wrote(final: Location, layout: str, stopped: pytest.MonkeyPatch) -> None:
    begin(final, layout)
    assert names_below(final)
    report = clean(str(final))
    assert [each.kind for each in report.found] == [LeftoverKind.UNFINISHED]
    assert report.kept == ()
    assert report.found[0].files == len(names_below(final))
    assert clean(str(final), remove=True).removed
    assert names_below(final) == set()
    stopped.undo()
    assert convert(build_request(target=str(final), **OPTIONS[layout])).committed


@pytest.mark.parametrize("layout", OPTIONS)
def test_a_finished_target_that_was_being_mended_stays(final: Location, layout: str) -> None:
    begin_to_mend(final, layout)
    before = names_below(final)
    report = clean(str(final), remove=True)
    assert report.found == ()
    assert ["was being repaired" in kept for kept in report.kept] == [True]
    assert names_below(final) == before
    assert convert(build_request(target=str(final), **OPTIONS[layout])).committed
    assert verify_target(str(final), VerifyLevel.CHECKSUM).problems == ()
    assert clean(str(final)) == CleanReport(target=str(final), found=(), removed=False, kept=())


def test_documents_of_others_stay(final: Location, stopped: pytest.MonkeyPatch) -> None:
    if final.store.renames:
        pytest.skip("object stores only: locally a directory with foreign contents is refused as a whole")
    begin(final, "unified")
    mine = {"config.json": b"{}", "model.safetensors.index.json": b"mine"}
    for name, content in mine.items():
        write_bytes(final.child(name), content)
    report = clean(str(final), remove=True)
    assert names_below(final) == {f"out/{name}" for name in mine}
    assert "model.safetensors.index.json" in report.kept[0]


def test_documents_of_an_unreadable_plan_stay(final: Location, stopped: pytest.MonkeyPatch) -> None:
    if final.store.renames:
        pytest.skip("object stores only")
    begin(final, "dcp")
    write_bytes(final.child(".reshard/plan.json.gz"), b"damaged")
    assert ".metadata" in clean(str(final), remove=True).kept[0]
    assert names_below(final) == {"out/.metadata"}


def test_a_plan_without_an_identity_is_removed(final: Location, stopped: pytest.MonkeyPatch) -> None:
    """A run writes the plan first, and may be killed before the identity."""
    begin(final, "dcp")
    state = working_location(final).child(".reshard")
    for path in find_entries(final.parent):
        if not path.endswith("plan.json.gz"):
            final.store.remove(path)
    assert exists(state.child("plan.json.gz"))
    assert clean(str(final), remove=True).removed
    assert names_below(final) == set()


# ---- iterations of a Checkpoint 2.0 ----


def test_unfinished_iterations_are_found_in_the_directory_of_all(final: Location, stopped: pytest.MonkeyPatch) -> None:
    begin(final, "checkpoint2", iteration="7")
    begin(final, "checkpoint2", iteration="8")
    stopped.undo()
    convert(build_request(target=str(final), **OPTIONS["checkpoint2"], iteration="6"))
    finished = {name for name in names_below(final) if "iteration_00000006/" in name or name.endswith(".txt")}
    report = clean(str(final), remove=True)
    wheres = [working_location(final.child(f"iteration_0000000{number}")) for number in (7, 8)]
    assert [each.url for each in report.found] == list(map(str, wheres))
    assert report.kept == ()
    assert names_below(final) == finished
    assert clean(str(final)).found == ()


def test_of_several_iterations_only_the_unfinished_are_removed(final: Location) -> None:
    begin_to_mend(final, "checkpoint2", iteration="7")
    convert(build_request(target=str(final), **OPTIONS["checkpoint2"], iteration="6"))
    with stopping():
        begin(final, "checkpoint2", iteration="8")
    kept = {name for name in names_below(final) if "iteration_00000008" not in name}
    report = clean(str(final), remove=True)
    assert [each.url for each in report.found] == [str(working_location(final.child("iteration_00000008")))]
    assert ["iteration_00000007: a finished" in text for text in report.kept] == [True]
    assert names_below(final) == kept


@pytest.fixture
def killed_at_the_tracker(tmp_path: Path) -> Path:
    """A directory of iterations whose tracker a run was about to write when it was killed."""
    root = tmp_path / "out"
    script = (
        "import os, sys\n"
        "from reshard.core.layouts.tracker import Tracker, advance_tracker\n"
        "from reshard.core.storage.urls import parse_url\n"
        "os.replace = lambda *_: os._exit(9)\n"
        "advance_tracker(parse_url(sys.argv[1]), 7, Tracker())\n"
    )
    convert(build_request(target=str(root), **OPTIONS["checkpoint2"], iteration="6"))
    assert subprocess.run([sys.executable, "-c", script, str(root)]).returncode == 9
    return root


def test_what_a_run_left_that_was_killed_at_the_tracker_is_removed(killed_at_the_tracker: Path) -> None:
    root = killed_at_the_tracker
    left = {path.name for path in root.iterdir() if path.name.startswith(".")}
    assert ".reshard-tracker" in left
    assert len(left) == 2
    report = clean(str(root))
    assert {each.url: each.kind for each in report.found} == {
        str(root / name): LeftoverKind.LEASE if name == ".reshard-tracker" else LeftoverKind.TEMPORARY for name in left
    }
    assert clean(str(root), remove=True).removed
    assert sorted(path.name for path in root.iterdir()) == ["iteration_00000006", "latest_checkpointed_iteration.txt"]
    assert [path.name for path in root.parent.iterdir()] == ["out"]
    assert verify_target(str(root), VerifyLevel.CHECKSUM).problems == ()


def test_while_a_run_writes_the_tracker_nothing_is_removed(killed_at_the_tracker: Path) -> None:
    before = set(killed_at_the_tracker.iterdir())
    with (
        exclusive(parse_url(str(killed_at_the_tracker / ".reshard-tracker"))),
        pytest.raises(TargetBusyError, match=r"out: a run is writing .*_iteration\.txt. Nothing was removed"),
    ):
        clean(str(killed_at_the_tracker), remove=True)
    assert set(killed_at_the_tracker.iterdir()) == before


@pytest.mark.parametrize("is_link", [True, False])
def test_files_of_others_where_the_tracker_is_locked_stay(killed_at_the_tracker: Path, is_link: bool) -> None:
    gate = killed_at_the_tracker / ".reshard-tracker"
    if is_link:
        gate.rename(killed_at_the_tracker.parent / "elsewhere")
        gate.symlink_to(killed_at_the_tracker.parent / "elsewhere")
    else:
        (gate / "thesis.tex").write_text("mine")
    with pytest.raises(
        TargetError, match="is a link to" if is_link else r"thesis\.tex: is not a file that conversions"
    ):
        clean(str(killed_at_the_tracker), remove=True)
    assert {path.name for path in gate.iterdir()} == {".gate"} | (set() if is_link else {"thesis.tex"})


def test_a_run_into_one_iteration_keeps_all(final: Location, stopped: pytest.MonkeyPatch) -> None:
    stopped.setattr("reshard.core.storage.leases.remote_lease.RENEWAL_SECONDS", 0.05)  # renewals show that it lives
    begin(final, "checkpoint2", iteration="7")
    begin(final, "checkpoint2", iteration="8")
    before = names_below(final)
    with (
        held_lease(leases_of(final.child("iteration_00000008")), new_holder([0])),
        pytest.raises(TargetBusyError, match=r"iteration_00000008: .* is working on it. Nothing was removed"),
    ):
        clean(str(final), remove=True)
    assert {name for name in names_below(final) if not name.endswith("leases/.gate")} == before

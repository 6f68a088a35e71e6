"""Scheduled conversions from and to object stores: the newest complete step, once, and what is kept of them."""

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.latest import LatestReport, convert_latest
from reshard.core.conversion.rank_work import RankWork
from reshard.core.storage.leases import remote_lease
from reshard.core.storage.publishing import REMOVING_NAME
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.removal import remove_files
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from tests.support.checkpoints import read_tree
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stores import Store
from tests.support.training import CASE, RANKS, file_of, latest_request, save_step, truncate


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.conversion.training_steps.LOOK_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr("reshard.core.conversion.latest.RENEWAL_SECONDS", 0.5)
    monkeypatch.setattr(remote_lease, "RENEWAL_SECONDS", 0.3)


def save(store: Store, tmp_path: Path, step: str, **options: Any) -> None:
    """A step in the store, as old as the local files."""
    made = tmp_path / "made" / step
    save_step(made, step, **options)
    for path in made.rglob("*.ckpt"):
        there = store.files(f"training/{path.relative_to(made)}")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)
    store.server.look_again()


def run(store: Store, **options: Any) -> LatestReport:
    return convert_latest(latest_request(store.url("training"), store.url("converted"), **options))


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_the_newest_complete_step_and_the_ones_before_it(store: Store, tmp_path: Path) -> None:
    reports = []
    for number in range(3):
        save(store, tmp_path, f"1_{number}")
        reports.append(run(store, keep_checkpoint_max=2))
    assert [(report.outcome.value, report.step) for report in reports] == [
        ("converted", f"1_{number}") for number in range(3)
    ]
    assert reports[-1].target == store.url("converted/1_2")
    assert read_tree(store.files("converted/1_2")) == CASE.want
    assert [report.removed for report in reports] == [(), (), ("1_0",)], reports[-1].notes
    left = [path for path in store.files("converted/1_0").rglob("*") if path.is_file()]
    assert left == []
    again = run(store, keep_checkpoint_max=2)
    assert (again.outcome.value, again.kept) == ("nothing new", ("1_1", "1_2"))


def test_what_lacks_a_rank_or_its_end_is_passed_over(store: Store, tmp_path: Path) -> None:
    save(store, tmp_path, "1_0")
    save(store, tmp_path, "1_1")
    truncate(file_of(store.files("training"), "1_1", 3))
    save(store, tmp_path, "1_2", ranks={*RANKS} - {1})
    report = run(store)
    assert report.step == "1_0"
    assert "step 1_2 is skipped: no file of rank_1;" in report.notes[0]
    assert "step 1_1 is skipped: cannot be read to the end: rank_3: " in report.notes[1]


def test_a_step_that_comes_rank_by_rank_is_waited_for(store: Store, tmp_path: Path) -> None:
    save(store, tmp_path, "1_0")
    save(store, tmp_path, "1_1", ranks=[0], age_seconds=0)

    def go_on() -> None:
        for rank in (2, 1, 3):
            time.sleep(0.3)
            save(store, tmp_path, "1_1", ranks=[rank], age_seconds=0)

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(go_on)
        report = run(store, settle_seconds=1, patience_seconds=PATIENCE_SECONDS)
        training.result()
    assert (report.outcome.value, report.step) == ("converted", "1_1")
    assert read_tree(store.files("converted/1_1")) == CASE.want


def test_nothing_of_others_is_removed(store: Store, tmp_path: Path) -> None:
    for number in range(2):
        save(store, tmp_path, f"1_{number}")
        run(store)
    converted = store.files("converted")
    (converted / "1_0/rank_0/notes.txt").write_text("mine")
    (converted / "1_00").mkdir()
    (converted / "1_00/precious").write_text("mine")
    store.server.look_again()
    report = run(store, keep_checkpoint_max=1)
    assert report.removed == ("1_0",)
    [note] = report.notes
    stays = store.url("converted/1_0/rank_0/notes.txt")
    assert note == f"{store.url('converted/1_0')}: holds what no conversion wrote, and stays: {stays} and the like"
    left = [str(path.relative_to(converted)) for path in converted.rglob("*") if path.is_file()]
    assert {"1_0/rank_0/notes.txt", "1_00/precious"} == {path for path in left if not path.startswith("1_1/")}
    assert read_tree(converted / "1_1") == CASE.want


def test_what_was_changed_is_left_alone(store: Store, tmp_path: Path) -> None:
    for number in range(2):
        save(store, tmp_path, f"1_{number}")
        run(store)
    url = store.url("converted/1_0/rank_0/checkpoint_0.ckpt")
    file = parse_url(url)
    write_bytes(file, read_small_file(file, 2**30))
    # modification times have seconds
    os.utime(store.files("converted/1_0/rank_0/checkpoint_0.ckpt"), (time.time() + 10, time.time() + 10))
    store.server.look_again()
    report = run(store, keep_checkpoint_max=1)
    assert report.removed == ()
    assert report.notes == (f"{store.url('converted/1_0')}: left as it is: {url} was changed after it was written",)
    assert read_tree(store.files("converted/1_0")) == CASE.want


def test_a_removal_that_was_cut_short_is_gone_on_with(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        save(store, tmp_path, f"1_{number}")
        run(store)

    class KilledError(BaseException):
        pass

    def die(locations: Any) -> None:
        remove_files(locations[:1])
        if locations[0].name != "manifest.json":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("reshard.core.conversion.retention._remove_claimed", die)
        with pytest.raises(KilledError):
            run(store, keep_checkpoint_max=1)
    state = store.files("converted/1_0/.reshard")
    assert not (state / "manifest.json").exists()
    assert (state / REMOVING_NAME).exists()
    assert run(store, keep_checkpoint_max=1).removed == ("1_0",)
    assert [path for path in store.files("converted/1_0").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_runs_that_overlap_do_not_convert_twice(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, tmp_path, "1_0")
    make = RankWork.make
    under_way, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        under_way.set()
        go_on.wait(PATIENCE_SECONDS)
        return make(*args, **kwargs)

    monkeypatch.setattr(RankWork, "make", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, store)
        assert under_way.wait(PATIENCE_SECONDS)
        try:
            assert run(store).outcome.value == "another run is converting it"
        finally:
            go_on.set()
        assert first.result().outcome.value == "converted"


@pytest.mark.slow
def test_runs_that_begin_together_all_end_well(store: Store, tmp_path: Path) -> None:
    save(store, tmp_path, "1_0")
    with ThreadPoolExecutor(3) as pool:
        reports = [each.result() for each in [pool.submit(run, store) for _ in range(3)]]
    assert {report.outcome.value for report in reports} <= {"converted", "another run is converting it", "nothing new"}
    assert "converted" in {report.outcome.value for report in reports}
    assert read_tree(store.files("converted/1_0")) == CASE.want

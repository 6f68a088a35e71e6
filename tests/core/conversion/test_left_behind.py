"""A conversion that ends without a commit says what it leaves behind, and on a full disk what could make room."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CastError, ConversionError, ReshardError, StorageError, TargetError, notes_of
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.target.claim import leased
from reshard.core.target.cleaning import clean
from reshard.core.text.options import keyword, spelled_by
from reshard.core.transfer.writer import transform_ranks
from tests.support.checkpoints import case
from tests.support.small_files import forget_memory

FOUR_TO_THREE = case(7009)


@pytest.fixture
def failing_at_rank_1(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, StorageError("the disk is broken"))


def fail_at(monkeypatch: pytest.MonkeyPatch, error: BaseException, rank: int = 1) -> None:
    def failing(plan: Any, ranks: Sequence[int], *args: Any, **options: Any) -> object:
        if rank in ranks:
            raise error
        return transform_ranks(plan, ranks, *args, **options)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)


def notes_after(target: Path | str, kind: type[BaseException] = ReshardError, **options: object) -> list[str]:
    with pytest.raises(kind) as caught:
        convert(FOUR_TO_THREE.request(target, memory_limit="16MiB", workers=1, **options))
    return notes_of(caught.value)


def without_sizes(note: str) -> str:
    return re.sub(r"\d+(\.\d+)? (B|KiB|s\b)", "N", note)


# ---- what is left ----


@pytest.mark.usefixtures("failing_at_rank_1")
def test_where_how_much_and_what_to_do(tmp_path: Path) -> None:
    target = tmp_path / "out"
    [note] = notes_after(target)
    assert without_sizes(note) == (
        f"left in {target}.reshard-partial: N, 2 of 3 ranks done: the same command resumes it, 'reshard clean "
        f"{target}' removes it"
    )
    [found] = clean(str(target)).found
    assert f"{found.size_bytes / 1024:.1f} KiB, {found.ranks_done} of {found.ranks} ranks done" in note


@pytest.mark.usefixtures("failing_at_rank_1")
def test_a_target_that_is_replaced_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    shutil.copytree(FOUR_TO_THREE.directory / "want", target)
    [note] = notes_after(target, overwrite=True)
    assert note.endswith(f"removes it; {target} is unchanged")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_interruptions_and_bugs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    fail_at(monkeypatch, kind("now"), rank=0)
    [note] = notes_after(tmp_path / "out", kind)
    assert "0 of 3 ranks done" in note


def test_wrong_input_is_another_plan_when_it_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, CastError("infinite as Float16"))
    [note] = notes_after(tmp_path / "out")
    assert without_sizes(note) == (
        f"left in {tmp_path}/out.reshard-partial: N, 2 of 3 ranks done: 'reshard clean {tmp_path}/out' removes it"
    )


@pytest.mark.usefixtures("failing_at_rank_1")
def test_a_place_with_a_blank_in_its_name(tmp_path: Path) -> None:
    [note] = notes_after(tmp_path / "an out")
    assert f"reshard clean '{tmp_path}/an out'" in note


@pytest.mark.usefixtures("failing_at_rank_1")
def test_in_its_place_on_an_object_store() -> None:
    try:
        [note] = notes_after("memory:///bucket/out")
        assert without_sizes(note) == (
            "left in memory:///bucket/out: N, 2 of 3 ranks done: the same command resumes it, 'reshard clean "
            "memory:///bucket/out' removes it"
        )
    finally:
        forget_memory()


def test_a_storage_that_does_not_answer_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StorageError("no answer", transient=True)

    monkeypatch.setattr("reshard.core.conversion.driver._do_ranks", fails)
    try:
        [note] = notes_after("memory:///bucket/out")
        assert note == (
            "finished work is in memory:///bucket/out: the same command resumes it, 'reshard clean "
            "memory:///bucket/out' removes it"
        )
    finally:
        forget_memory()


def test_a_withdrawn_target_is_completed_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    convert(FOUR_TO_THREE.request(target))
    [file] = [*(target / "rank_1").glob("*.ckpt")]
    file.chmod(0o600)
    file.write_bytes(b"damaged")
    fail_at(monkeypatch, StorageError("the disk is broken"))
    [note] = notes_after(target)
    assert note == (
        f"{target}: a finished conversion that was being repaired or replaced; rerun the command to complete it"
    )


def test_a_complete_one_that_only_lacks_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StorageError("cannot rename")

    monkeypatch.setattr("reshard.core.target.claim.publish", fails)
    target = tmp_path / "out"
    [note] = notes_after(target)
    assert note == (
        f"{target}.reshard-partial: a complete conversion that only lacks its final name; rerun the command to rename "
        "it"
    )


def test_a_refused_target_was_not_touched(tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(FOUR_TO_THREE.request(target))
    assert notes_after(target, TargetError, write_crc=True) == []


# ---- what could make room ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`small_disk(kilobytes)`: a file system of its own."""
    disk = tmp_path / "small"
    disk.mkdir()

    def mounted(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(disk)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount a small file system")
        return disk

    yield mounted
    subprocess.run(["umount", str(disk)], capture_output=True, check=False)


def test_before_the_first_byte(small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk(4000)
    with monkeypatch.context() as patch:
        fail_at(patch, StorageError("the disk is broken"))
        notes_after(disk / "other")
    shutil.copytree(disk / "other.reshard-partial", disk / "busy.reshard-partial")
    (disk / "fill").write_bytes(bytes((disk_free(disk) - 20_000) // 4096 * 4096))
    with leased(parse_url(str(disk / "busy")), new_holder((), "a plan")):
        room, left = notes_after(disk / "out", StorageError)
    assert without_sizes(room) == (
        f"to make room, remove what you no longer need:\n  {disk}/other.reshard-partial (unfinished conversion, N, 2 "
        f"of 3 done, last changed N ago): 'reshard clean {disk}/other'"
    )
    assert without_sizes(left).startswith(f"left in {disk}/out.reshard-partial: N, 0 of 3 ranks done")


def disk_free(disk: Path) -> int:
    return shutil.disk_usage(disk).free


def test_nothing_that_reshard_left(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(200)
    room, _ = notes_after(disk / "out", StorageError)
    assert room == (
        "reshard left nothing beside it that could be removed: free space there, or choose a target elsewhere"
    )


def test_in_the_middle(small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk(200)
    monkeypatch.setattr("reshard.core.storage.publishing.free_room", lambda _: None)
    room, left = notes_after(disk / "out", ConversionError)
    assert room.startswith("reshard left nothing beside it")
    assert f"left in {disk}/out.reshard-partial: " in left


def test_what_is_replaced_at_the_end(
    small_disk: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk(4000)
    convert(FOUR_TO_THREE.request(disk / "out"))
    source = tmp_path / "elsewhere"
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    (disk / "fill").write_bytes(bytes((disk_free(disk) - 20_000) // 4096 * 4096))
    with spelled_by(keyword):
        room, _ = notes_after(disk / "out", StorageError, overwrite=True, write_crc=True)
        other, _ = notes_after(disk / "out", StorageError, overwrite=True, source=str(source))
    what = f"  {disk}/out (N): kept until its replacement by overwrite=True is complete; "
    heading = "to make room, remove what you no longer need:\n"
    assert without_sizes(room) == f"{heading}{what}it was converted from the same source: 'rm -r {disk}/out'"
    assert without_sizes(other) == (
        f"{heading}{what}it was converted from another source, and may be the only copy: move it elsewhere"
    )


def test_what_may_be_the_only_copy_is_not_named(
    small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk(4000)
    convert(FOUR_TO_THREE.request(disk / "first"))
    (disk / "first").rename(disk / "first.reshard-replaced")
    (disk / "fill").write_bytes(bytes((disk_free(disk) - 20_000) // 4096 * 4096))
    room, _ = notes_after(disk / "out", StorageError)
    assert "reshard-replaced" not in room
    convert_again = FOUR_TO_THREE.request(disk / "first")
    (disk / "fill").unlink()
    (disk / "first.reshard-replaced").rename(disk / "kept")
    convert(convert_again)
    (disk / "kept").rename(disk / "first.reshard-replaced")
    (disk / "fill").write_bytes(bytes((disk_free(disk) - 20_000) // 4096 * 4096))
    room, _ = notes_after(disk / "out", StorageError)
    assert f"{disk}/first.reshard-replaced (replaced checkpoint, " in room
    assert f"'reshard clean {disk}/first'" in room

"""The conversion as a whole: resuming, publishing, sharing the work, and what is refused."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.rank_work import RankWork
from reshard.core.errors import CatalogError, ConversionError, InputError, StorageError, TargetError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import build_request
from reshard.core.runtime.retry import WORK, RetryPolicy
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_ckpt, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.conversions import outcomes, stop_before_commit, whole_copies
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.runs import partial

FOUR_TO_THREE = case(7009)
PIPELINES = case(7011)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


# ---- resuming ----


def test_a_failing_rank_lets_the_others_finish_and_is_done_alone_next_time(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(plan: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        if 1 in ranks:
            raise StorageError("rank 1's disk is broken")
        return transform_ranks(plan, ranks, *args, **kwargs)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(ConversionError, match=r"1 of 3 target ranks failed.*\n  rank_1: rank 1's disk is broken"):
        convert(FOUR_TO_THREE.request(target))
    assert not target.exists()
    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", transform_ranks)
    report = convert(FOUR_TO_THREE.request(target))
    assert outcomes(report) == ["resumed", "written", "resumed"]
    assert read_tree(target) == FOUR_TO_THREE.want
    assert not partial(target).exists()


def test_transient_failures_are_tried_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.runtime.retry.WORK", RetryPolicy(WORK.attempts, 0.001))
    failures = iter([StorageError("busy", transient=True), StorageError("busy", transient=True)])

    def flaky(*args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        for error in failures:
            raise error
        return transform_ranks(*args, **kwargs)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", flaky)
    assert convert(FOUR_TO_THREE.request(target)).committed


def test_copies_of_a_failed_rank_are_not_written(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = FOUR_TO_THREE.request(target, target_strategy=whole_copies(target.parent, 3))
    assert make_plan(request).copies == {1: 0, 2: 0}

    def failing(*_: Any, **__: Any) -> tuple[ShardRecord, ...]:
        raise StorageError("broken")

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(ConversionError, match="rank_1: not written, because it is a copy of rank_0, which failed"):
        convert(request)
    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", transform_ranks)
    assert outcomes(convert(request)) == ["written", "copied", "copied"]
    [first, *others] = read_tree(target).values()
    assert others == [first, first]


SLOW_RUN = """
import sys
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
class Slow:
    def note(self, message): pass
    def begin(self, phase, total=0): total and print("begun", flush=True)
    def advance(self, count): print("block", flush=True); sys.stdin.readline()
convert(build_request(**eval(sys.argv[1])), Slow())
"""


def start_slowly(options: dict[str, object]) -> subprocess.Popen[str]:
    """Starts a conversion that waits for a line of input after each block."""
    command = [sys.executable, "-c", SLOW_RUN, repr(options)]
    return subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5])
def test_killed_in_the_middle_and_run_again(target: Path, blocks: int) -> None:
    request = FOUR_TO_THREE.request(target, workers=1, memory_limit="16MiB")
    run = start_slowly(request.model_dump(mode="json"))
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    run.stdin.write("\n" * (blocks - 1))
    run.stdin.flush()
    for _ in range(blocks):
        assert run.stdout.readline() == "block\n"
    run.kill()
    run.communicate()
    assert not target.exists()
    for file in partial(target).glob("rank_*/[!.]*"):
        rank = int(file.parent.name.removeprefix("rank_"))
        assert read_ckpt(file) == FOUR_TO_THREE.want[rank], "what has its name is whole"
    report = convert(request)
    assert report.committed
    assert read_tree(target) == FOUR_TO_THREE.want
    assert not [path for path in target.rglob("*") if path.name.endswith(".tmp")]


# ---- publishing ----


def test_another_checkpoint_at_the_target_needs_overwrite(target: Path) -> None:
    shutil.copytree(PIPELINES.directory / "src", target)
    for file in target.rglob("*.ckpt"):
        file.chmod(0o400)
    with pytest.raises(TargetError, match=r"is not empty.*overwrite=True"):
        convert(FOUR_TO_THREE.request(target))
    assert len(read_tree(target)) == 8
    report = convert(FOUR_TO_THREE.request(target, overwrite=True))
    assert report.committed
    assert read_tree(target) == FOUR_TO_THREE.want
    assert sorted(path.name for path in target.parent.iterdir()) == ["out"]


def test_the_old_target_stays_until_the_new_one_is_whole(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(PIPELINES.request(target))
    monkeypatch.setattr(RankWork, "check", lambda *_: (_ for _ in ()).throw(StorageError("no")))
    with pytest.raises(ConversionError):
        convert(FOUR_TO_THREE.request(target, overwrite=True))
    assert read_tree(target) == PIPELINES.want
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


def test_a_finished_target_with_files_that_do_not_belong(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    (target / "rank_0" / "zzz.ckpt").write_bytes(b"")
    with pytest.raises(TargetError, match=r"zzz.ckpt: does not belong to this checkpoint.*Move it away"):
        convert(FOUR_TO_THREE.request(target))


def test_source_and_target_inside_each_other(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    with pytest.raises(TargetError, match="lies inside the source"):
        convert(FOUR_TO_THREE.request(source / "out", source=str(source)))
    with pytest.raises(TargetError, match="the source .* lies inside it"):
        convert(FOUR_TO_THREE.request(tmp_path, source=str(source)))
    with pytest.raises(TargetError, match="is the source itself"):
        convert(FOUR_TO_THREE.request(source, source=str(source)))
    pattern = str(source / "rank_{rank}")
    with pytest.raises(TargetError, match="lies inside the source"):
        convert(FOUR_TO_THREE.request(source / "rank_0/out", source=pattern))
    with pytest.raises(TargetError, match="can be a part of the source"):
        convert(FOUR_TO_THREE.request(source / "rank_9", source=pattern))
    convert(FOUR_TO_THREE.request(source / "out", source=pattern))
    assert read_tree(source / "out") == FOUR_TO_THREE.want


def test_unfinished_work_is_no_source(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before_commit(monkeypatch, FOUR_TO_THREE.request(target))
    again = {"source_strategy": str(FOUR_TO_THREE.directory / "dst_strategy.ckpt"), "target_strategy": ""}
    with pytest.raises(CatalogError, match="unfinished conversion"):
        convert(FOUR_TO_THREE.request(target.parent / "next", source=str(partial(target)), **again))
    convert(FOUR_TO_THREE.request(target))
    assert convert(FOUR_TO_THREE.request(target.parent / "next", source=str(target), **again)).committed


def test_unknown_ranks(target: Path) -> None:
    with pytest.raises(InputError, match="the target has ranks 0 to 2, not 7"):
        convert(FOUR_TO_THREE.request(target, ranks="1,7"))


# ---- what may go wrong ----


def test_disk_full(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        with pytest.raises(StorageError, match=r"has no room: .* are needed, .* are free"):
            convert(FOUR_TO_THREE.request(small / "out"))
        assert os.listdir(small) in ([], ["out.reshard-partial"])
    finally:
        subprocess.run(["umount", str(small)], check=True)


FULL_RUN = """
import resource, sys
from reshard.core.conversion.convert import convert
from reshard.core.errors import ConversionError
from reshard.core.request.conversion import build_request
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    convert(build_request(**eval(sys.argv[1])))
except ConversionError as error:
    print(error)
"""


def test_no_more_room_in_the_middle(target: Path) -> None:
    request = FOUR_TO_THREE.request(target)
    run = subprocess.run(
        [sys.executable, "-c", FULL_RUN, repr(request.model_dump(mode="json"))],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "3 of 3 target ranks failed" in run.stdout
    assert "cannot write" in run.stdout
    assert "File too large" in run.stdout
    assert not target.exists()
    assert not list(partial(target).rglob("*.ckpt"))
    assert convert(request).committed


# ---- options and storages ----


def test_the_step_is_chosen_and_recorded(target: Path) -> None:
    source = target.parent / "src"
    for rank in range(4):
        folder = source / f"rank_{rank}"
        folder.mkdir(parents=True)
        good = FOUR_TO_THREE.directory / "src" / f"rank_{rank}" / f"checkpoint_{rank}.ckpt"
        shutil.copy(good, folder / "net-10_5.ckpt")
        (folder / "net-9_5.ckpt").write_bytes(b"not even a checkpoint")
    report = convert(FOUR_TO_THREE.request(target, source=str(source)))
    assert report.step == "10_5"
    assert read_tree(target) == FOUR_TO_THREE.want


@pytest.fixture
def memory() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    yield "memory://bucket"
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def test_object_stores(memory: str, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.put(str(FOUR_TO_THREE.directory / "src"), f"{memory}/src", recursive=True)
    report = convert(FOUR_TO_THREE.request(f"{memory}/out", source=f"{memory}/src"))
    assert report.committed
    assert not verify_target(f"{memory}/out", VerifyLevel.CHECKSUM).problems
    assert outcomes(convert(FOUR_TO_THREE.request(f"{memory}/out", source=f"{memory}/src"))) == ["resumed"] * 3
    with pytest.raises(TargetError, match="is not empty"):
        convert(FOUR_TO_THREE.request(f"{memory}/out", source=f"{memory}/src", prefix="p_"))
    again = convert(FOUR_TO_THREE.request(f"{memory}/out", source=f"{memory}/src", prefix="p_", overwrite=True))
    assert again.committed
    fs.get(f"{memory}/out", str(tmp_path / "back"), recursive=True)
    assert read_tree(tmp_path / "back") == FOUR_TO_THREE.want


def test_small_memory_gives_the_same_bytes(tmp_path: Path) -> None:
    convert(PIPELINES.request(tmp_path / "a"))
    convert(PIPELINES.request(tmp_path / "b", memory_limit="16MiB", workers=1024))
    for path in (tmp_path / "a").glob("rank_*/*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_no_time_is_lost_waiting_for_a_dead_run(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", PATIENCE_SECONDS)
    request = FOUR_TO_THREE.request(target, workers=1)
    run = start_slowly(request.model_dump(mode="json"))
    assert run.stdout is not None
    run.stdout.readline()
    with pytest.raises(TargetError, match=f"process {run.pid}"):
        convert(request)
    run.kill()
    run.communicate()
    started = time.monotonic()
    assert convert(request).committed
    assert time.monotonic() - started < PATIENCE_SECONDS


def test_links_from_the_source_into_the_target(tmp_path: Path, target: Path) -> None:
    shutil.copytree(FOUR_TO_THREE.directory / "src", target)
    (tmp_path / "src").mkdir()
    for rank in range(4):
        (tmp_path / "src" / f"rank_{rank}").symlink_to(target / f"rank_{rank}")
    with pytest.raises(TargetError, match="lies inside it, or in the directory where it is built"):
        convert(FOUR_TO_THREE.request(target, source=str(tmp_path / "src"), overwrite=True))
    assert len(read_tree(target)) == 4


def test_what_a_format_cannot_hold_is_told_even_if_it_stays_the_same(tmp_path: Path, target: Path) -> None:
    header = b'{"format":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    with pytest.raises(InputError, match="'format'"):
        convert(build_request(source=str(tmp_path / "m.safetensors"), target=str(target)))
    assert not partial(target).exists()


def test_tables_that_every_slice_repeats_are_no_proof(tmp_path: Path, target: Path) -> None:
    tables = [(f"table{number}", "UInt8", (4,), b"abcd") for number in range(8)]
    for rank in range(2):
        (tmp_path / "src" / f"rank_{rank}").mkdir(parents=True)
        weight = ("w", "UInt8", (2**21,), bytes([rank, 7]) * 2**20)
        (tmp_path / "src" / f"rank_{rank}" / "m.ckpt").write_bytes(checkpoint_bytes(*tables, weight))
    cut = ParameterLayout((2,), ((0,),))
    strategy = Strategy((StageStrategy(0, {name: cut for name, *_ in (*tables, weight)}),), "test")
    write_strategy(strategy, str(tmp_path / "s.ckpt"))
    convert(build_request(source=str(tmp_path / "src"), target=str(target), source_strategy=str(tmp_path / "s.ckpt")))
    assert read_tree(target)[0]["table3"] == ("UInt8", (8,), b"abcdabcd")


@pytest.mark.parametrize("values", [b"\0\0\0\0" * 8, b"\1\0\0\0" * 8])
def test_equal_contents_tell_nothing_if_they_are_one_value(tmp_path: Path, target: Path, values: bytes) -> None:
    for rank in range(2):
        (tmp_path / "src" / f"rank_{rank}").mkdir(parents=True)
        (tmp_path / "src" / f"rank_{rank}" / "m.ckpt").write_bytes(checkpoint_bytes(("w", "Int32", (8,), values)))
    strategy = Strategy((StageStrategy(0, {"w": ParameterLayout((2,), ((0,),))}),), "test")
    write_strategy(strategy, str(tmp_path / "s.ckpt"))
    convert(build_request(source=str(tmp_path / "src"), target=str(target), source_strategy=str(tmp_path / "s.ckpt")))
    assert read_tree(target)[0]["w"] == ("Int32", (16,), values * 2)


def plan_of(target: Path) -> ConversionPlan:
    return make_plan(FOUR_TO_THREE.request(target))


def test_a_damaged_manifest_can_be_overwritten(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    (target / ".reshard" / "manifest.json").write_text("{")
    with pytest.raises(TargetError, match=r"not a readable manifest.*Restore it, or pass overwrite=True"):
        convert(FOUR_TO_THREE.request(target))
    assert convert(FOUR_TO_THREE.request(target, overwrite=True)).committed
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


def test_what_a_crash_left_of_the_old_target_is_removed_by_the_next_run(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    left = target.with_name(target.name + ".reshard-replaced")
    shutil.copytree(target, left)
    convert(FOUR_TO_THREE.request(target))
    assert not left.exists()


def test_braces_in_a_path_are_no_pattern(tmp_path: Path) -> None:
    source = tmp_path / "{x}" / "src"
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    assert convert(FOUR_TO_THREE.request(tmp_path / "{x}" / "out", source=str(source))).committed


@pytest.mark.parametrize("name", ["out[1]", "out*", "out?"])
def test_overwriting_an_object_store_target_spares_what_its_name_would_match(memory: str, name: str) -> None:
    fs = fsspec.filesystem("memory")
    convert(FOUR_TO_THREE.request(f"{memory}/out1"))
    spared = {path: fs.cat_file(path) for path in fs.find(f"{memory}/out1")}
    convert(FOUR_TO_THREE.request(f"{memory}/{name}"))
    convert(FOUR_TO_THREE.request(f"{memory}/{name}", prefix="p_", overwrite=True))
    assert {path: fs.cat_file(path) for path in fs.find(f"{memory}/out1")} == spared
    assert not verify_target(f"{memory}/{name}", VerifyLevel.CHECKSUM).problems

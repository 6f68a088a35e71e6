"""Conversions that give the target's files a CRC."""

import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan, make_plan
from reshard.core.errors import CheckpointError, InputError, StoppedError, TargetError
from reshard.core.request.conversion import build_request
from reshard.core.runtime.progress import SilentProgress
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import ALL_CASES, Case, case, check_crc_of, read_rank, read_tree
from tests.support.columns import column_case
from tests.support.conversions import whole_copies

CASE = case(7010)
FOUR_TO_THREE = case(7009)
FORMATS = ["ckpt", "safetensors"]


def files_of(target: Path) -> list[Path]:
    return sorted(path for path in target.glob("rank_*/*") if not path.name.startswith("."))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("number", range(0, len(ALL_CASES), 3))
def test_conversions_of_every_kind(tmp_path: Path, number: int, format: str) -> None:
    each: Case = ALL_CASES[number]
    report = convert(each.request(tmp_path / "out", format=format, write_crc=True, workers=1 + number % 3))
    for path in files_of(tmp_path / "out"):
        check_crc_of(path)
        assert path.stat().st_size in {rank.size_bytes for rank in report.ranks}
    convert(each.request(tmp_path / "plain", format=format))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "plain")
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems == ()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_file_of_many_blocks(tmp_path: Path, format: str, workers: int) -> None:
    """Contents that go over the borders of blocks, and prefetch that finish in any order."""
    generator = np.random.default_rng(0)
    arrays = {f"w{number}": generator.integers(0, 255, 1_000_003, np.uint8) for number in range(5)}
    save_file(arrays | {"step": np.array(3)}, tmp_path / "m.safetensors")
    request = build_request(
        source=str(tmp_path / "m.safetensors"),
        target=str(tmp_path / "out"),
        format=format,
        write_crc=True,
        workers=workers,
        memory_limit="16MiB",
    )
    convert(request)
    [path] = files_of(tmp_path / "out")
    check_crc_of(path)
    found = read_rank(tmp_path / "out", 0)
    assert {name: found[name][2] for name in arrays} == {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_written_can_be_converted_again(tmp_path: Path, format: str) -> None:
    convert(CASE.request(tmp_path / "out", format=format, write_crc=True))
    strategy = CASE.request("x").target_strategy
    back = build_request(source=str(tmp_path / "out"), target=str(tmp_path / "one"), source_strategy=strategy)
    report = convert(back)
    assert report.crc_bytes == sum(path.stat().st_size for path in files_of(tmp_path / "out"))
    path = files_of(tmp_path / "out")[0]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b'"crc_num":"', b'"crc_num":"9')[:-1] + b"\0")
    with pytest.raises(CheckpointError):
        convert(back.model_copy(update={"target": str(tmp_path / "two")}))


@pytest.mark.parametrize("format", FORMATS)
def test_a_wrong_crc_is_found_and_mended(tmp_path: Path, format: str) -> None:
    """The contents are as they were; only what the file says of them is not."""
    request = CASE.request(tmp_path / "out", format=format, write_crc=True)
    convert(request)
    path = files_of(tmp_path / "out")[0]
    good = path.read_bytes()
    place = len(good) - 1 if format == "ckpt" else good.index(b'"crc_num":"') + 12
    path.chmod(0o600)
    path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    assert verify_target(str(tmp_path / "out"), VerifyLevel.STRUCTURE).problems == ()
    [problem] = verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems
    assert problem.startswith(f"{path}: wrong CRC-32: the file says ")
    convert(request)
    assert path.read_bytes() == good


def test_with_and_without_are_different_plans(tmp_path: Path) -> None:
    convert(CASE.request(tmp_path / "out"))
    with pytest.raises(TargetError, match="is not empty"):
        convert(CASE.request(tmp_path / "out", write_crc=True))


@pytest.mark.parametrize("format", FORMATS)
def test_any_storage_takes_files_with_a_crc(tmp_path: Path, format: str) -> None:
    memory = fsspec.filesystem("memory")
    try:
        convert(CASE.request("memory://crc/out", format=format, write_crc=True))
        assert verify_target("memory://crc/out", VerifyLevel.CHECKSUM).problems == ()
        convert(CASE.request(tmp_path / "out", format=format, write_crc=True))
        for path in files_of(tmp_path / "out"):
            check_crc_of(path)
            assert memory.cat_file(f"/crc/out/{path.parent.name}/{path.name}") == path.read_bytes()
    finally:
        memory.rm("/crc", recursive=True)


# ---- a CRC in the header: two readings ----


class Counted(SilentProgress):
    """The bytes of each phase, expected and done."""

    def __init__(self) -> None:
        self.expected: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self._phase = ""

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        self._phase = phase
        self.expected[phase], self.done[phase] = total_bytes, 0

    def advance(self, count_bytes: int) -> None:
        self.done[self._phase] += count_bytes

    @property
    def done_now(self) -> int:
        return self.done[self._phase]


@pytest.mark.parametrize(("verify", "phase"), [("none", "converting"), ("checksum", "converting, checking")])
@pytest.mark.parametrize(("options", "written"), [({}, [0, 1, 2]), ({"ranks": "0,2"}, [0, 2]), ({"copies": 3}, [0])])
def test_each_reading_is_counted(
    tmp_path: Path, options: dict[str, object], written: list[int], verify: str, phase: str
) -> None:
    """Copies of a rank are made without reading the source."""
    if "copies" in options:
        options = {"target_strategy": whole_copies(tmp_path, 3)}
    expected, read = [], []
    for write_crc in (False, True):
        request = FOUR_TO_THREE.request(
            tmp_path / str(write_crc), format="safetensors", write_crc=write_crc, verify=verify, **options
        )
        progress = Counted()
        report = convert(request, progress)
        assert [rank.rank for rank in report.ranks if rank.outcome.value == "written"] == written
        expected.append(progress.expected[phase])
        read.append(report.read_bytes)
        assert progress.done[phase] == progress.expected[phase]
    shard_bytes = [totals.shard_bytes for totals in make_plan(request).totals]
    assert expected[1] - expected[0] == sum(shard_bytes[rank] for rank in written)
    assert read[1] == 2 * read[0]


@pytest.mark.parametrize(("format", "readings"), [("ckpt", 1), ("safetensors", 2)])
def test_what_a_plan_says_is_to_read(tmp_path: Path, format: str, readings: int) -> None:
    requests = (
        FOUR_TO_THREE.request(tmp_path / "out", format=format, write_crc=write_crc) for write_crc in (False, True)
    )
    plain, with_crc = (describe_plan(request)[1] for request in requests)
    assert with_crc.read_bytes == readings * plain.read_bytes
    assert plain.traffic
    assert with_crc.traffic
    assert with_crc.traffic.read_bytes == readings * plain.traffic.read_bytes


def test_a_source_that_changes_between_two_readings(tmp_path: Path) -> None:
    shutil.copytree(FOUR_TO_THREE.directory / "src", tmp_path / "src")
    request = FOUR_TO_THREE.request(
        tmp_path / "out", source=str(tmp_path / "src"), format="safetensors", write_crc=True, workers=1
    )

    class Changing(Counted):
        def advance(self, count_bytes: int) -> None:
            super().advance(count_bytes)
            file = tmp_path / "src/rank_0/checkpoint_0.ckpt"
            if self.done_now == shard_bytes:  # the first rank was read once
                file.chmod(0o600)
                file.write_bytes(file.read_bytes()[:-1] + b"!")

    shard_bytes = make_plan(request).totals[0].shard_bytes
    message = r"rank_0: .*checkpoint_0\.ckpt changed while it was being read"
    with pytest.raises(InputError, match=message):
        convert(request, Changing())
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "out.reshard-partial").glob("rank_0/*"))


@pytest.mark.parametrize("workers", [1, 4])
def test_a_change_that_the_storage_does_not_show_is_found(tmp_path: Path, workers: int) -> None:
    """Its version is the time at which it was created; so a second attempt reads, and writes, what is there then."""
    memory = fsspec.filesystem("memory")
    arrays = {f"w{number}": np.full(100_003, number, np.uint8) for number in range(5)}
    save_file(arrays | {"step": np.array(3)}, tmp_path / "m.safetensors")
    memory.put(str(tmp_path / "m.safetensors"), "/changing/m.safetensors")
    request = build_request(
        source="memory://changing/m.safetensors",
        target=str(tmp_path / "out"),
        format="safetensors",
        write_crc=True,
        workers=workers,
    )

    class Changing(Counted):
        def advance(self, count_bytes: int) -> None:
            super().advance(count_bytes)
            if self.done_now == shard_bytes:
                memory.store["/changing/m.safetensors"].getbuffer()[-1] ^= 1

    shard_bytes = make_plan(request).totals[0].shard_bytes
    message = (
        r"rank_0/checkpoint_0\.safetensors: the contents changed between the two readings that a CRC in the header"
    )
    try:
        with pytest.raises(InputError, match=message):
            convert(request, Changing())
        assert not list((tmp_path / "out.reshard-partial").glob("rank_0/*"))
        convert(request)
    finally:
        memory.rm("/changing", recursive=True)
    [path] = files_of(tmp_path / "out")
    check_crc_of(path)
    assert read_rank(tmp_path / "out", 0)["w4"][2] != arrays["w4"].tobytes()


def test_a_run_that_is_stopped_while_it_reads_for_the_crc_leaves_nothing(tmp_path: Path) -> None:
    class Stopping(Counted):
        def advance(self, count_bytes: int) -> None:
            raise StoppedError("stopped")

    with pytest.raises(StoppedError):
        convert(CASE.request(tmp_path / "out", format="safetensors", write_crc=True), Stopping())
    assert not list((tmp_path / "out.reshard-partial").glob("rank_*/*"))
    convert(CASE.request(tmp_path / "out", format="safetensors", write_crc=True))
    for path in files_of(tmp_path / "out"):
        check_crc_of(path)


def test_a_group_of_ranks_reads_what_they_share_twice_not_for_each(tmp_path: Path) -> None:
    columns = column_case(tmp_path)
    report = convert(columns.request(format="safetensors", write_crc=True, workers=1))
    assert report.read_bytes == 2 * columns.source_bytes
    for path in files_of(columns.target):
        check_crc_of(path)

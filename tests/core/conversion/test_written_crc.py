"""Conversions that give the target's files a CRC."""

from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import CheckpointError, TargetError
from reshard.core.request.conversion import build_request
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import ALL_CASES, Case, case, check_crc_of, read_rank, read_tree

CASE = case(7010)
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


class TestStoragesThatOnlyTakeFilesFrontToBack:
    def test_the_beginning_cannot_be_rewritten(self) -> None:
        message = "memory://crc/out: the CRC of a .safetensors file is at its beginning and is known only at its end"
        with pytest.raises(TargetError, match=message):
            convert(CASE.request("memory://crc/out", format="safetensors", write_crc=True))
        assert not fsspec.filesystem("memory").exists("/crc")

    def test_a_trailer_can_be_appended(self, tmp_path: Path) -> None:
        memory = fsspec.filesystem("memory")
        try:
            convert(CASE.request("memory://crc/out", write_crc=True))
            path = tmp_path / "m.ckpt"
            path.write_bytes(memory.cat_file("/crc/out/rank_0/checkpoint_0.ckpt"))
            check_crc_of(path)
        finally:
            memory.rm("/crc", recursive=True)

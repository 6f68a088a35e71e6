from pathlib import Path

import pytest

from reshard import mindspore
from reshard.core.strategy.files import read_strategy
from tests.support.ckpt_writer import blob, number
from tests.support.strategy_writer import FileLayout, read_protobuf_strategy, write_strategy_file

ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
COLUMNS = FileLayout((2,), ((), (0,)), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))


def write_stages(directory: Path, suffix: str = "ckpt", stages: tuple[int, ...] = (0, 1)) -> None:
    for stage in stages:
        write_strategy_file(directory / f"stage{stage}.{suffix}", {stage: {f"w{stage}": ROWS, "tied": COLUMNS}})


def merge(directory: Path, target: Path) -> None:
    mindspore.merge_pipeline_strategys(str(directory), str(target))


def test_stages_are_merged(tmp_path: Path) -> None:
    write_stages(tmp_path / "stages")
    (tmp_path / "stages" / "log.txt").write_text("no strategy")
    merge(tmp_path / "stages", tmp_path / "a" / "merged.ckpt")
    items = read_protobuf_strategy(tmp_path / "a" / "merged.ckpt")["parallelLayoutItem"]
    assert [item["paramName"] for item in items] == ["0-w0", "0-tied", "1-w1", "1-tied"]


def test_the_merged_file_may_stand_among_the_others(tmp_path: Path) -> None:
    write_stages(tmp_path)
    for _ in range(2):
        merge(tmp_path, tmp_path / "merged.ckpt")
    assert len(read_strategy(str(tmp_path / "merged.ckpt")).stages) == 2


@pytest.mark.parametrize(("suffix", "target"), [("ckpt", "json"), ("json", "ckpt"), ("json", "json")])
def test_the_merged_files_kind_is_its_names(suffix: str, target: str, tmp_path: Path) -> None:
    write_stages(tmp_path / "stages", suffix)
    merge(tmp_path / "stages", tmp_path / f"merged.{target}")
    assert (tmp_path / f"merged.{target}").read_bytes().startswith(b"{") == (target == "json")
    assert len(read_strategy(str(tmp_path / f"merged.{target}")).stages) == 2


def test_a_stage_is_missing(tmp_path: Path) -> None:
    write_stages(tmp_path / "stages", stages=(0, 2))
    with pytest.raises(ValueError, match="stage 1 is missing"):
        merge(tmp_path / "stages", tmp_path / "merged.ckpt")
    assert not (tmp_path / "merged.ckpt").exists()


def test_files_of_a_stage_contradict_each_other(tmp_path: Path) -> None:
    write_stages(tmp_path / "stages")
    write_strategy_file(tmp_path / "stages" / "other.ckpt", {0: {"w0": COLUMNS, "tied": COLUMNS}})
    with pytest.raises(ValueError, match="both of stage 0, but differ: parameter 'w0'"):
        merge(tmp_path / "stages", tmp_path / "merged.ckpt")


def test_refused_directories(tmp_path: Path) -> None:
    write_stages(tmp_path / "both")
    write_stages(tmp_path / "both", "json")
    write_stages(tmp_path / "stages")
    (tmp_path / "none").mkdir()
    (tmp_path / "file").touch()
    target = str(tmp_path / "merged.ckpt")
    refused: list[tuple[type[Exception], str, tuple]] = [
        (NotADirectoryError, "'src_strategy_dirs' is not a directory", (str(tmp_path / "nowhere"), target)),
        (NotADirectoryError, "'src_strategy_dirs' is not a directory", (str(tmp_path / "file"), target)),
        (NotADirectoryError, "'dst_strategy_file' is not a dir", (str(tmp_path / "stages"), str(tmp_path / "file/a"))),
        (ValueError, "JSON and protobuf strategies are mixed", (str(tmp_path / "both"), target)),
        (ValueError, "holds no strategy files", (str(tmp_path / "none"), target)),
        (TypeError, "has to be a string", (None, target)),
        (TypeError, "has to be a string", (str(tmp_path / "stages"), 5)),
    ]
    for kind, message, arguments in refused:
        with pytest.raises(kind, match=message):
            mindspore.merge_pipeline_strategys(*arguments)


GROUP = blob(1, blob(1, b"group") + blob(2, number(1, 0) + number(1, 4)))


def test_the_ranks_to_restore_from(tmp_path: Path) -> None:
    (tmp_path / "info.pb").write_bytes(GROUP + blob(2, number(1, 5) + number(1, 1)))
    assert mindspore.restore_group_info_list(str(tmp_path / "info.pb")) == [5, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\xff\xff", "is not a group info file"), (GROUP, "is incomplete"), (b"\x08\x01", "is inc")],
)
def test_refused_group_info(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "info.pb").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        mindspore.restore_group_info_list(str(tmp_path / "info.pb"))


def test_a_stages_own_file_is_not_replaced(tmp_path: Path) -> None:
    write_stages(tmp_path)
    write_strategy_file(tmp_path / "other_rank0.ckpt", {0: {"w0": ROWS, "tied": COLUMNS}})
    own = tmp_path / "stage0.ckpt"
    before = own.read_bytes()
    with pytest.raises(ValueError, match=r"stage0.ckpt: is one of the stages' own files"):
        merge(tmp_path, own)
    assert own.read_bytes() == before


def test_a_merged_file_of_one_stage_is_replaced(tmp_path: Path) -> None:
    write_stages(tmp_path, stages=(0,))
    merge(tmp_path, tmp_path / "merged.ckpt")
    merge(tmp_path, tmp_path / "merged.ckpt")
    (tmp_path / "merged.ckpt").write_bytes(b"\xff")
    merge(tmp_path, tmp_path / "merged.ckpt")
    assert read_strategy(str(tmp_path / "merged.ckpt")).merged


def test_a_strategy_is_no_group_info(tmp_path: Path) -> None:
    write_strategy_file(tmp_path / "s.ckpt", {0: {"w": ROWS}})
    with pytest.raises(ValueError, match="s.ckpt: is a strategy file, not a group info file"):
        mindspore.restore_group_info_list(str(tmp_path / "s.ckpt"))


def test_no_group_info(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="has to be a string"):
        mindspore.restore_group_info_list(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such group info file"):
        mindspore.restore_group_info_list(str(tmp_path))

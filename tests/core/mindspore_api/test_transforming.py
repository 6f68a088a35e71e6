import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from core import mindspore_api as mindspore
from tests.support.checkpoints import ALL_CASES, FIXTURES, Case, Contents, read_ckpt, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.strategy_writer import FileLayout, write_strategy_file

ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
COLUMNS = FileLayout((2,), ((), (0,)), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
REPEATED_ROWS = FileLayout((2, 2), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)


def tensor(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return "Float32", values.shape, values.tobytes()


def write_rank(directory: Path, rank: int, contents: Contents, name: str = "net") -> str:
    path = directory / f"rank_{rank}" / f"{name}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(checkpoint_bytes(*((name, *entry) for name, entry in contents.items())))
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """`src/`, `w` on two ranks by rows, and the strategies `rows.ckpt` and `columns.ckpt`."""
    for rank in range(2):
        write_rank(tmp_path / "src", rank, {"w": tensor(VALUES[2 * rank : 2 * rank + 2])})
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"w": ROWS}})
    write_strategy_file(tmp_path / "columns.ckpt", {0: {"w": COLUMNS}})
    return tmp_path


def transform(directory: Path, target: str = "out", **options: object) -> None:
    arguments: dict = {
        "src_strategy_file": str(directory / "rows.ckpt"),
        "dst_strategy_file": str(directory / "columns.ckpt"),
    }
    mindspore.transform_checkpoints(str(directory / "src"), str(directory / target), "net_", **arguments | options)


def strategies(case: Case) -> tuple[str | None, str | None]:
    paths = (case.directory / "src_strategy.ckpt", case.directory / "dst_strategy.ckpt")
    source, target = (str(path) if path.exists() else None for path in paths)
    return source, target


# all ranks


def test_a_strategy_that_contents_contradict_is_followed_with_a_warning(tmp_path: Path) -> None:
    for rank in range(4):
        contents = {name: tensor(np.roll(VALUES, shift)[2 * (rank % 2) :][:2]) for shift, name in enumerate("abc")}
        write_rank(tmp_path / "src", rank, contents)
    wrong = FileLayout((2, 2), ((1,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 2))
    write_strategy_file(tmp_path / "rows.ckpt", {0: dict.fromkeys("abc", wrong)})
    with pytest.warns(UserWarning, match=r"is this strategy the checkpoint's own\? .*'a' differs on rank_0, rank_1"):
        mindspore.transform_checkpoints(
            str(tmp_path / "src"), str(tmp_path / "out"), "net_", str(tmp_path / "rows.ckpt")
        )
    assert read_tree(tmp_path / "out")[0].keys() == {*"abc"}


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.directory.name)
def test_conversions_that_mindspore_made(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mindspore.transform_checkpoints(str(case.directory / "src"), str(out), "net_", *strategies(case))
    assert read_tree(out) == case.want
    assert sorted(path.name for path in out.glob("*/*")) == sorted(f"net_{rank}.ckpt" for rank in case.want)
    assert all(path.name.startswith("rank_") for path in out.iterdir())


def test_a_stage_by_itself_becomes_parts(tmp_path: Path) -> None:
    whole = FIXTURES / "conversions" / "case_7010"
    for rank in (0, 4):  # of stages 0 and 1
        strategy = str(whole / "src_stages" / f"strategy_{rank}.ckpt")
        mindspore.transform_checkpoints(
            str(whole / "src"), str(tmp_path), "checkpoint_", strategy, str(whole / "dst_strategy.ckpt")
        )
    found = {path.relative_to(tmp_path): read_ckpt(path) for path in tmp_path.glob("rank_*/*")}
    parts = FIXTURES / "subnetwork_parts"
    wanted = {path.relative_to(parts): read_ckpt(path) for path in parts.glob("rank_*/*")}
    assert found == wanted


def test_a_merged_strategy_of_one_stage_makes_parts_too(tmp_path: Path) -> None:
    write_rank(tmp_path / "src", 0, {"w": tensor(VALUES)})
    write_strategy_file(tmp_path / "one.ckpt", {0: {"0-w": FileLayout((1,), ((), ()), False, 0, 0, (4, 2))}})
    write_strategy_file(tmp_path / "both.ckpt", {0: {"w": COLUMNS, "b": COLUMNS}})
    mindspore.transform_checkpoints(
        str(tmp_path / "src"), str(tmp_path / "out"), "net_", str(tmp_path / "one.ckpt"), str(tmp_path / "both.ckpt")
    )
    assert sorted(path.name for path in (tmp_path / "out").glob("*/*")) == ["net_0_part0.ckpt", "net_1_part0.ckpt"]


def test_what_the_target_has_no_place_for_is_left_out_with_a_warning(rows: Path) -> None:
    for rank in range(2):
        half = VALUES[2 * rank : 2 * rank + 2]
        write_rank(rows / "src", rank, {"w": tensor(half), "adam_m.w": tensor(half)})
    write_strategy_file(rows / "rows.ckpt", {0: {"w": ROWS, "adam_m.w": ROWS}})
    with pytest.warns(UserWarning, match=r"left out, .*: adam_m\.w$") as caught:
        transform(rows)
    assert caught[0].filename == __file__
    assert {name for contents in read_tree(rows / "out").values() for name in contents} == {"w"}


def test_files_of_other_names_stay_and_others_are_replaced(rows: Path) -> None:
    kept = rows / "out" / "rank_0" / "other.ckpt"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"mine")
    replaced = kept.with_name("net_0.ckpt")
    replaced.write_bytes(b"old")
    replaced.chmod(0o400)
    transform(rows)
    assert kept.read_bytes() == b"mine"
    assert read_ckpt(replaced)["w"] == tensor(VALUES[:, :1])
    assert sorted(os.listdir(rows / "out")) == ["rank_0", "rank_1"]


def test_nothing_appears_where_it_fails(rows: Path) -> None:
    with (rows / "src" / "rank_1" / "net.ckpt").open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match="net.ckpt"):
        transform(rows)
    assert list((rows / "out").rglob("*.ckpt")) == []


def test_a_disk_that_is_full_beforehand(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(OSError, match="has no room") as caught:
        transform(rows)
    assert caught.value.errno == errno.ENOSPC


def test_a_disk_that_gets_full(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def full(source: str, target: str) -> None:
        if target.endswith("net_1.ckpt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match=r"1 of 2 target ranks failed") as caught:
            transform(rows)
    assert caught.value.errno == errno.ENOSPC
    assert list((rows / "out").glob("rank_*")) == []
    transform(rows)
    assert read_tree(rows / "out")[0]["w"] == tensor(VALUES[:, :1])


def test_a_run_that_was_interrupted_leaves_nothing_in_the_way(rows: Path) -> None:
    for _ in range(2):
        transform(rows)
    transform(rows, output_format="safetensors")
    assert len(list((rows / "out").rglob("*.*s*"))) == 2


def test_a_rank_is_missing(rows: Path) -> None:
    (rows / "src" / "rank_1" / "net.ckpt").unlink()
    with pytest.raises(ValueError, match="missing: rank_1"):
        transform(rows)


def test_a_target_parameter_that_is_in_no_file_is_left_out_with_a_warning(rows: Path) -> None:
    write_strategy_file(rows / "rows.ckpt", {1: {"1-w": ROWS}, 0: {"0-v": ROWS}})
    write_strategy_file(rows / "columns.ckpt", {0: {"w": COLUMNS, "v": COLUMNS}})
    for rank in range(2):
        write_rank(rows / "src", rank + 2, {"w": tensor(VALUES[2 * rank : 2 * rank + 2])})
        write_rank(rows / "src", rank, {"step": tensor(VALUES)})
    with pytest.warns(
        UserWarning, match=r"left out, because no source file holds them, .* strategy has them: v$"
    ) as told:
        transform(rows)
    assert told[0].filename == __file__
    assert read_tree(rows / "out")[0].keys() == {"w", "step"}


def test_the_source_cannot_be_the_destination(rows: Path) -> None:
    with pytest.raises(ValueError, match="lies inside the source"):
        transform(rows, target="src")


def test_a_checkpoint_that_reshard_keeps_a_record_of_is_not_written_into(rows: Path) -> None:
    (rows / "out" / ".reshard").mkdir(parents=True)
    with pytest.raises(ValueError, match="is a checkpoint that reshard converted"):
        transform(rows)


def test_refused_arguments(rows: Path) -> None:
    source, target = str(rows / "src"), str(rows / "out")
    refused: list[tuple[type[Exception], str, tuple]] = [
        (TypeError, "'src_checkpoints_dir' has to be a string", (None, target, "net_")),
        (TypeError, "'dst_checkpoints_dir' has to be a string", (source, None, "net_")),
        (ValueError, "'dst_checkpoints_dir' is blank", (source, " ", "net_")),
        (ValueError, "'dst_checkpoints_dir' has 2000 characters", (source, "/" + 1999 * "a", "net_")),
        (NotADirectoryError, "'dst_checkpoints_dir' is not a directory", (source, str(rows / "rows.ckpt"), "net_")),
        (TypeError, "'ckpt_prefix' has to be a string", (source, target, 5)),
        (ValueError, "'ckpt_prefix' is blank", (source, target, "")),
        (ValueError, "'ckpt_prefix' '../net': must be a plain name", (source, target, "../net")),
        (TypeError, "'src_strategy_file' has to be a string or None", (source, target, "net_", 5)),
        (ValueError, "'dst_strategy_file': there is no such file", (source, target, "net_", None, str(rows / "no"))),
        (ValueError, "no rank folders with checkpoint files", (str(rows), target, "net_")),
        (ValueError, "'src_checkpoints_dir' is not a directory", (str(rows / "nowhere"), target, "net_")),
        (NotADirectoryError, "'src_checkpoints_dir' is not a directory", (str(rows / "rows.ckpt"), target, "net_")),
        (ValueError, "need a source strategy: name it by 'src_strategy_file'", (source, target, "net_")),
        (ValueError, "'process_num' -1: ", (source, target, "net_", None, None, -1)),
        (ValueError, "has to be one of ckpt, safetensors", (source, target, "net_", None, None, 1, "same")),
    ]
    for kind, message, arguments in refused:
        with pytest.raises(kind, match=message):
            mindspore.transform_checkpoints(*arguments)


def test_both_kinds_of_files(rows: Path) -> None:
    save_file({"w": VALUES}, rows / "src" / "rank_0" / "net.safetensors")
    with pytest.raises(ValueError, match="both .ckpt and .safetensors files"):
        transform(rows)


# one rank


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.directory.name)
def test_just_the_ranks_that_are_listed_are_needed(case: Case, tmp_path: Path) -> None:
    for rank, wanted in case.want.items():
        ranks = mindspore.rank_list_for_transform(rank, *strategies(case))
        assert ranks == sorted(set(ranks), reverse=True)
        files = {each: str(next((case.directory / "src" / f"rank_{each}").iterdir())) for each in ranks}
        path = tmp_path / "out" / f"{rank}.ckpt"
        mindspore.transform_checkpoint_by_rank(rank, files, str(path), *strategies(case))
        assert read_ckpt(path) == wanted
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".ckpt"}


@pytest.fixture
def repeated(tmp_path: Path) -> tuple[dict[int, str], str]:
    """Four ranks that hold `w` twice, by rows, and their strategy."""
    write_strategy_file(tmp_path / "rows.ckpt", {0: {"w": REPEATED_ROWS}})
    halves = [VALUES[:2], VALUES[2:]] * 2
    files = {rank: write_rank(tmp_path / "src", rank, {"w": tensor(half)}) for rank, half in enumerate(halves)}
    return files, str(tmp_path / "rows.ckpt")


@pytest.mark.parametrize("ranks", [(0, 1), (2, 3), (0, 3), (1, 2), (0, 1, 2, 3)])
def test_any_ranks_that_hold_it_will_do(ranks: tuple[int, ...], repeated: tuple, tmp_path: Path) -> None:
    files, strategy = repeated
    path = tmp_path / "whole.ckpt"
    mindspore.transform_checkpoint_by_rank(0, {rank: files[rank] for rank in ranks}, str(path), strategy)
    assert read_ckpt(path) == {"w": tensor(VALUES)}


@pytest.mark.parametrize(("ranks", "named"), [((0, 2), "rank_1"), ((3,), "rank_0"), ((), "rank_0, rank_1")])
def test_a_rank_that_is_needed_is_not_given(
    ranks: tuple[int, ...], named: str, repeated: tuple, tmp_path: Path
) -> None:
    files, strategy = repeated
    with pytest.raises(ValueError, match=f"rank 0 is made from .*{named}"):
        mindspore.transform_checkpoint_by_rank(
            0, {rank: files[rank] for rank in ranks}, str(tmp_path / "a.ckpt"), strategy
        )
    assert not (tmp_path / "a.ckpt").exists()


def test_another_stages_parameters_are_none_of_a_ranks(tmp_path: Path) -> None:
    files = {0: write_rank(tmp_path / "src", 0, {name: tensor(VALUES) for name in ("w", "v", "step")})}
    whole = FileLayout((1,), ((), ()), False, 0, 0, (4, 2))
    write_strategy_file(tmp_path / "dst.ckpt", {0: {"0-w": whole}, 1: {"1-v": whole}})
    mindspore.transform_checkpoint_by_rank(1, files, str(tmp_path / "1.ckpt"), None, str(tmp_path / "dst.ckpt"))
    assert read_ckpt(tmp_path / "1.ckpt").keys() == {"v", "step"}


def test_a_stages_own_strategy_may_go_with_the_jobs_ranks(tmp_path: Path) -> None:
    halves = [VALUES[:2], VALUES[2:]]
    files = {rank + 2: write_rank(tmp_path / "src", rank + 2, {"w": tensor(half)}) for rank, half in enumerate(halves)}
    write_strategy_file(tmp_path / "stage1.ckpt", {1: {"w": ROWS}})
    strategy = str(tmp_path / "stage1.ckpt")
    assert mindspore.rank_list_for_transform(0, strategy) == [1, 0]
    with pytest.warns(
        UserWarning, match=r"stage1\.ckpt: is pipeline stage 1's own: the file is without the parameters of"
    ):
        mindspore.transform_checkpoint_by_rank(0, files, str(tmp_path / "a.ckpt"), strategy)
    assert read_ckpt(tmp_path / "a.ckpt") == {"w": tensor(VALUES)}


def test_refused_arguments_of_one_rank(rows: Path) -> None:
    files = {0: str(rows / "src/rank_0/net.ckpt"), 1: str(rows / "src/rank_1/net.ckpt")}
    path, strategy = str(rows / "a.ckpt"), str(rows / "rows.ckpt")
    refused: list[tuple[type[Exception], str, tuple]] = [
        (TypeError, "'checkpoint_files_map' has to be a dict", (0, list(files), path, strategy)),
        (TypeError, "'checkpoint_files_map' has to have ranks for keys, not '0'", (0, {"0": files[0]}, path, strategy)),
        (TypeError, "'rank_id' has to be an int", ("0", files, path, strategy)),
        (TypeError, "'save_checkpoint_file_name' has to be a string", (0, files, None, strategy)),
        (ValueError, "has to end in .ckpt", (0, files, str(rows / "a.npz"), strategy)),
        (ValueError, "names no file for rank 0", (0, {0: str(rows / "no.ckpt")}, path, strategy)),
        (ValueError, "names ranks .7.", (0, files | {7: files[0]}, path, strategy)),
        (ValueError, "rank_id 2: the target has ranks 0 to 1", (2, files, path, strategy, strategy)),
        (ValueError, "there is no such file", (0, files, path, str(rows / "no.ckpt"))),
    ]
    for kind, message, arguments in refused:
        with pytest.raises(kind, match=message):
            mindspore.transform_checkpoint_by_rank(*arguments)


# which ranks


def test_without_a_source_strategy_rank_0_has_all(rows: Path) -> None:
    assert mindspore.rank_list_for_transform(1, None, str(rows / "columns.ckpt")) == [0]


def test_the_rank_in_the_same_place_stands_for_those_that_share_its_slice(repeated: tuple) -> None:
    _, strategy = repeated
    assert [mindspore.rank_list_for_transform(rank, strategy, strategy) for rank in range(4)] == [[0], [1], [2], [3]]


def test_refused_arguments_of_the_list(rows: Path) -> None:
    strategy = str(rows / "rows.ckpt")
    (rows / "empty.ckpt").touch()
    refused: list[tuple[type[Exception], str, tuple]] = [
        (TypeError, "'rank_id' has to be an int", ("0",)),
        (TypeError, "'src_strategy_file' has to be a string", (0, 5)),
        (TypeError, "'dst_strategy_file' has to be a string", (0, strategy, 5)),
        (ValueError, "is empty", (0, str(rows / "empty.ckpt"))),
        (ValueError, "there is no such file", (0, str(rows))),
        (ValueError, "the target has ranks 0 to 1", (2, strategy, strategy)),
        (ValueError, "rank_id 2: the target has ranks 0 to 1", (2, strategy)),
    ]
    for kind, message, arguments in refused:
        with pytest.raises(kind, match=message):
            mindspore.rank_list_for_transform(*arguments)


def test_layouts_that_do_not_fit_each_other(tmp_path: Path) -> None:
    write_strategy_file(tmp_path / "a.ckpt", {0: {"w": ROWS}})
    write_strategy_file(tmp_path / "b.ckpt", {0: {"w": FileLayout((2,), ((0,), (), ()), False, 0, 0, (2, 2, 2))}})
    with pytest.raises(ValueError, match="'w': it has 2 axes in the source's strategy, 3 in the target's"):
        mindspore.rank_list_for_transform(0, str(tmp_path / "a.ckpt"), str(tmp_path / "b.ckpt"))


def test_the_names_of_2_10_are_the_same_functions() -> None:
    assert mindspore.convert_checkpoints is mindspore.transform_checkpoints
    assert mindspore.convert_checkpoint_by_rank is mindspore.transform_checkpoint_by_rank
    assert mindspore.rank_list_for_convert is mindspore.rank_list_for_transform

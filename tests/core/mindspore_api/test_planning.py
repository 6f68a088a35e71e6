"""Plans by the rules of MindSpore's functions: warnings, and refusals."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard import mindspore
from tests.support import transformed
from tests.support.checkpoints import read_ckpt, read_tree
from tests.support.places import FIXTURES
from tests.support.strategy_writer import FileLayout, write_strategy_file
from tests.support.transformed import COLUMNS, REPEATED_ROWS, ROWS, VALUES, tensor, transform, write_rank


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


def of_ranks(count: int, tensor_map: tuple, *shape: int) -> FileLayout:
    return FileLayout((count,), tensor_map, nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=shape)


def test_equal_experts_stay_slices(tmp_path: Path) -> None:
    experts = np.arange(2 * 32 * 16, dtype=np.float32).reshape(2, 32, 16)
    attention = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    for rank in range(4):
        write_rank(tmp_path / "src", rank, {"experts": tensor(experts), "attn": tensor(attention)})
    for count in (4, 2):
        layouts = {
            "experts": of_ranks(count, ((0,), (), ()), 8, 32, 16),
            "attn": of_ranks(count, ((), ()), 32, 32),
        }
        write_strategy_file(tmp_path / f"{count}.ckpt", {0: layouts})
    strategies = str(tmp_path / "4.ckpt"), str(tmp_path / "2.ckpt")
    with pytest.warns(UserWarning, match="'experts' is the same on rank_0, rank_1, which should hold diff"):
        mindspore.transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "out"), "net_", *strategies)
    twice = tensor(np.concatenate([experts, experts]))
    assert read_tree(tmp_path / "out") == {rank: {"experts": twice, "attn": tensor(attention)} for rank in (0, 1)}
    files = {rank: str(tmp_path / "src" / f"rank_{rank}" / "net.ckpt") for rank in range(4)}
    with pytest.warns(UserWarning, match="'experts' is the same on"):
        mindspore.transform_checkpoint_by_rank(1, files, str(tmp_path / "1.ckpt"), *strategies)
    assert read_ckpt(tmp_path / "1.ckpt")["experts"] == twice


def test_ranks_that_were_saved_whole_are_taken_for_slices_with_a_warning(rows: Path) -> None:
    for rank in range(2):
        write_rank(rows / "src", rank, {"w": tensor(VALUES)})
    message = (
        r"ranks hold the same where the strategy .*: 'w' is the same on rank_0, rank_1, [^-]*The strategy is followed"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        transform(rows, dst_strategy_file=None)
    assert [each.filename for each in caught] == [transformed.__file__]
    assert read_tree(rows / "out") == {0: {"w": tensor(np.concatenate([VALUES, VALUES]))}}
    # where shapes are known, they decide
    write_strategy_file(rows / "rows.json", {0: {"w": ROWS}})
    transform(rows, src_strategy_file=str(rows / "rows.json"), dst_strategy_file=None)
    assert read_tree(rows / "out") == {0: {"w": tensor(VALUES)}}


def test_what_the_target_has_no_place_for_is_left_out_with_a_warning(rows: Path) -> None:
    for rank in range(2):
        half = VALUES[2 * rank : 2 * rank + 2]
        write_rank(rows / "src", rank, {"w": tensor(half), "adam_m.w": tensor(half)})
    write_strategy_file(rows / "rows.ckpt", {0: {"w": ROWS, "adam_m.w": ROWS}})
    with pytest.warns(UserWarning, match=r"left out, .*: adam_m\.w$") as caught:
        transform(rows)
    assert caught[0].filename == transformed.__file__
    assert {name for contents in read_tree(rows / "out").values() for name in contents} == {"w"}


def test_moments_are_left_out_where_weights_alone_were_saved(rows: Path) -> None:
    moments = {name: {"w": layout, "adam_m.w": layout} for name, layout in (("rows", ROWS), ("columns", COLUMNS))}
    for name, layouts in moments.items():
        write_strategy_file(rows / f"{name}.ckpt", {0: layouts})
    with pytest.warns(UserWarning, match=r"left out, because no source file holds them, .*: adam_m\.w$"):
        transform(rows)
    assert read_tree(rows / "out")[0] == {"w": tensor(VALUES[:, :1])}
    files = {rank: str(rows / "src" / f"rank_{rank}" / "net.ckpt") for rank in range(2)}
    with pytest.warns(UserWarning, match=r"left out, because no source file holds them, .*: adam_m\.w$") as caught:
        mindspore.transform_checkpoint_by_rank(
            1, files, str(rows / "1.ckpt"), str(rows / "rows.ckpt"), str(rows / "columns.ckpt")
        )
    assert caught[0].filename == __file__
    assert read_ckpt(rows / "1.ckpt") == {"w": tensor(VALUES[:, 1:])}


def test_nothing_in_common_with_the_strategies(rows: Path) -> None:
    for name in ("rows", "columns"):
        write_strategy_file(rows / f"{name}.ckpt", {0: {"v": ROWS}})
    with pytest.raises(ValueError, match="holds none of the parameters that the strategies know"):
        transform(rows)


def test_files_of_different_steps(rows: Path) -> None:
    for rank in range(2):
        half = {"w": tensor(VALUES[2 * rank : 2 * rank + 2]), "global_step": tensor(np.array([rank], np.float32))}
        write_rank(rows / "src", rank, half)
    with pytest.raises(ValueError, match=r"DIFFERENT STEPS.* Replace the files that are of another step$"):
        transform(rows)


@pytest.mark.parametrize("files", ["weights", "moments"])
def test_ranks_that_are_not_needed_may_be_missing(repeated: tuple, tmp_path: Path, files: str) -> None:
    _, strategy = repeated
    for rank in (2, 3):
        shutil.rmtree(tmp_path / "src" / f"rank_{rank}")
    out = tmp_path / "out"
    if files == "moments":
        write_strategy_file(Path(strategy), {0: {"w": REPEATED_ROWS, "adam_m.w": REPEATED_ROWS}})
    with pytest.warns(UserWarning, match=r"src: rank_2, rank_3 are missing, which no target rank needs$"):
        mindspore.transform_checkpoints(str(tmp_path / "src"), str(out), "net_", strategy)
    assert read_tree(out) == {0: {"w": tensor(VALUES)}}


def test_ranks_that_are_needed_or_may_hold_more_are_missing(repeated: tuple, tmp_path: Path) -> None:
    _, strategy = repeated
    source, out = str(tmp_path / "src"), str(tmp_path / "out")
    for rank in (2, 3):
        shutil.rmtree(tmp_path / "src" / f"rank_{rank}")
    with pytest.raises(ValueError, match="has files of rank_0, rank_1; others are needed and missing: rank_2, rank_3$"):
        mindspore.transform_checkpoints(source, out, "net_", strategy, strategy)
    # redundancy may have been removed, so that the others hold it
    write_strategy_file(Path(strategy), {0: {"w": REPEATED_ROWS, "v": REPEATED_ROWS}})
    with pytest.raises(ValueError, match="no existing file holds v: files of rank_2, rank_3 may, and are missing"):
        mindspore.transform_checkpoints(source, out, "net_", strategy)
    with (tmp_path / "src" / "rank_1" / "net.ckpt").open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match=r"checkpoint files cannot be used:\n  rank_1: "):
        mindspore.transform_checkpoints(source, out, "net_", strategy)


def test_dtypes_that_mindspore_does_not_know(rows: Path) -> None:
    for rank in range(2):
        (rows / "src" / f"rank_{rank}" / "net.ckpt").unlink()
        save_file({"w": np.zeros((2, 2), np.complex64)}, rows / "src" / f"rank_{rank}" / "net.safetensors")
    with pytest.raises(ValueError, match=r"has parameters of dtypes that MindSpore does not know: w \(C64\)"):
        transform(rows)


def test_one_rank_of_a_source_without_redundancy(tmp_path: Path) -> None:
    fixture = FIXTURES / "formats" / "redundancy_removed" / "src_safetensors" / "rank_1"
    shutil.copytree(fixture, tmp_path / "src" / "rank_0")
    with pytest.raises(
        ValueError, match="was saved with remove_redundancy=True: .* and their strategy, 'src_strategy_fi"
    ):
        mindspore.transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "out"), "net_")


def test_parts_of_some_stages_only(stages: Path) -> None:
    own, both = stages / "own_1" / "1.ckpt", str(stages / "both.ckpt")
    transform(stages, "parts", src_strategy_file=str(own), dst_strategy_file=both)
    (stages / "src").rename(stages / "former")
    (stages / "parts").rename(stages / "src")
    with pytest.raises(
        ValueError, match="its files have the parts of stages 1 only, and none holds a: .* missing, add them"
    ):
        transform(stages, src_strategy_file=both, dst_strategy_file=None)
    shutil.rmtree(stages / "src" / "rank_1")
    with pytest.raises(ValueError, match="its files have the parts of stages 1 only, not of 0: add them"):
        transform(stages, src_strategy_file=None, dst_strategy_file=None)


def test_a_target_parameter_that_is_in_no_file_is_left_out_with_a_warning(rows: Path) -> None:
    write_strategy_file(rows / "rows.ckpt", {1: {"1-w": ROWS}, 0: {"0-v": ROWS}})
    write_strategy_file(rows / "columns.ckpt", {0: {"w": COLUMNS, "v": COLUMNS}})
    for rank in range(2):
        write_rank(rows / "src", rank + 2, {"w": tensor(VALUES[2 * rank : 2 * rank + 2])})
        write_rank(rows / "src", rank, {"step": tensor(VALUES)})
    with pytest.warns(
        UserWarning, match=r"left out, because no source file holds them, .* strategy has them: v$"
    ) as caught:
        transform(rows)
    assert caught[0].filename == transformed.__file__
    assert read_tree(rows / "out")[0].keys() == {"w", "step"}

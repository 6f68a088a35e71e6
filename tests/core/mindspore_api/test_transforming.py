import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard import mindspore
from reshard.core.storage.lease import held_lease
from reshard.core.storage.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import ALL_CASES, Case, Contents, read_ckpt, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.places import FIXTURES
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
    assert [each.filename for each in caught] == [__file__]
    assert read_tree(rows / "out") == {0: {"w": tensor(np.concatenate([VALUES, VALUES]))}}
    # where shapes are known, they decide
    write_strategy_file(rows / "rows.json", {0: {"w": ROWS}})
    transform(rows, src_strategy_file=str(rows / "rows.json"), dst_strategy_file=None)
    assert read_tree(rows / "out") == {0: {"w": tensor(VALUES)}}


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
    strategies = (str(tmp_path / "one.ckpt"), str(tmp_path / "both.ckpt"))
    with pytest.warns(UserWarning, match=r"no source file holds them, .*: b\. The files are named _part0"):
        mindspore.transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "out"), "net_", *strategies)
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


def test_a_link_in_the_place_of_the_working_directory(rows: Path) -> None:
    """Once the link's target was replaced."""
    (rows / "precious/rank_0").mkdir(parents=True)
    (rows / "precious/rank_0/net_0.ckpt").write_text("mine")
    (rows / "out").mkdir()
    (rows / "out/.reshard-transform").symlink_to(rows / "precious")
    with pytest.raises(ValueError, match=r"\.reshard-transform: is a link, and what it leads to would be replaced"):
        transform(rows)
    assert (rows / "precious/rank_0/net_0.ckpt").read_text() == "mine"


def test_a_rank_is_missing(rows: Path) -> None:
    (rows / "src" / "rank_1" / "net.ckpt").unlink()
    with pytest.raises(ValueError, match="missing: rank_1"):
        transform(rows)


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


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    """`src/`, `a` on the two ranks of stage 0, `b` on those of stage 1; `own_0/0.ckpt` and `own_1/1.ckpt`."""
    for stage, name in enumerate("ab"):
        for rank in range(2):
            write_rank(tmp_path / "src", 2 * stage + rank, {name: tensor(VALUES[2 * rank : 2 * rank + 2])})
        (tmp_path / f"own_{stage}").mkdir()
        write_strategy_file(tmp_path / f"own_{stage}" / f"{stage}.ckpt", {stage: {name: ROWS}})
    write_strategy_file(tmp_path / "both.ckpt", {0: {"a": COLUMNS, "b": COLUMNS}})
    write_strategy_file(tmp_path / "two.ckpt", {0: {"0-a": COLUMNS}, 1: {"1-b": COLUMNS}})
    return tmp_path


@pytest.mark.parametrize(("stage", "target"), [(0, None), (1, None), (0, "two.ckpt"), (1, "two.ckpt")])
def test_one_stage_makes_no_whole_model(stages: Path, stage: int, target: str | None) -> None:
    others = "rank_2, rank_3" if stage == 0 else "rank_0, rank_1"
    own = str(stages / f"own_{stage}" / f"{stage}.ckpt")
    with pytest.raises(
        ValueError,
        match=rf"{stage}\.ckpt: is pipeline stage {stage}'s own, and the result would be without the parameters of "
        rf"other stages on {others}: merge the strategies of all stages by merge_pipeline_strategys",
    ):
        transform(stages, src_strategy_file=own, dst_strategy_file=target and str(stages / target))
    assert not list((stages / "out").rglob("*.ckpt"))


def test_one_later_stage_alone_makes_no_whole_model(stages: Path) -> None:
    for rank in range(2):
        shutil.rmtree(stages / "src" / f"rank_{rank}")
    with pytest.raises(ValueError, match=r"1\.ckpt: is pipeline stage 1's own, and .* of other stages: merge"):
        transform(stages, src_strategy_file=str(stages / "own_1" / "1.ckpt"), dst_strategy_file=None)


def test_another_stages_strategy_beside_the_first_ones_is_warned_of(stages: Path) -> None:
    shutil.move(stages / "own_1" / "1.ckpt", stages / "own_0")
    for rank in (2, 3):
        shutil.rmtree(stages / "src" / f"rank_{rank}")
    with pytest.warns(
        UserWarning, match=r"0\.ckpt: another pipeline stage's strategy lies beside it: .* without the par"
    ):
        transform(stages, src_strategy_file=str(stages / "own_0" / "0.ckpt"), dst_strategy_file=None)
    assert read_tree(stages / "out") == {0: {"a": tensor(VALUES)}}


@pytest.mark.parametrize("stage", [0, 1])
def test_one_stage_makes_its_part_of_a_target(stages: Path, stage: int) -> None:
    own = str(stages / f"own_{stage}" / f"{stage}.ckpt")
    transform(stages, src_strategy_file=own, dst_strategy_file=str(stages / "both.ckpt"))
    assert sorted(path.name for path in (stages / "out").glob("*/*")) == [f"net_{r}_part{stage}.ckpt" for r in (0, 1)]


def test_what_a_stage_did_not_save_does_not_make_its_part_the_whole(stages: Path) -> None:
    own = stages / "own_0" / "0.ckpt"
    write_strategy_file(own, {0: {"a": ROWS, "a2": ROWS, "adam_m.a": ROWS}})
    layouts = dict.fromkeys(("a", "a2", "b", "adam_m.a", "adam_m.b"), COLUMNS)
    write_strategy_file(stages / "both.ckpt", {0: layouts})
    with pytest.warns(UserWarning, match=r"no source file holds them, .* target's strategy has them: a2, adam_m\.a$"):
        transform(stages, src_strategy_file=str(own), dst_strategy_file=str(stages / "both.ckpt"))
    assert [path.name for path in (stages / "out" / "rank_0").iterdir()] == ["net_0_part0.ckpt"]


# which files and ranks


def test_folders_may_have_zeros_in_front(rows: Path) -> None:
    for rank in range(2):
        (rows / "src" / f"rank_{rank}").rename(rows / "src" / f"rank_{rank:03}")
    transform(rows)
    assert read_tree(rows / "out")[1] == {"w": tensor(VALUES[:, 1:])}
    write_rank(rows / "src", 0, {"w": tensor(VALUES)})
    with pytest.raises(ValueError, match="rank_0 and rank_000 are both rank 0's folder: remove the one that is not"):
        transform(rows)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["net-9_5", "net-10_5"], "net-9_5"),  # the last by name, as MindSpore documents it
        (["net-1_1", "net"], "net"),
        (["a-2_1", "b-1_1"], "b-1_1"),
        (["net-1_1", "net-1_1_breakpoint"], "net-1_1_breakpoint"),
        (["zet{rank}-1_1", "a{rank}-2_1"], "zet{rank}-1_1"),
    ],
)
def test_of_several_files_the_last_by_name_is_taken_with_a_warning(rows: Path, names: list[str], taken: str) -> None:
    for rank in range(2):
        (rows / "src" / f"rank_{rank}" / "net.ckpt").unlink()
        for number, name in enumerate(names):
            values = VALUES[2 * rank : 2 * rank + 2] + 100 * number
            write_rank(rows / "src", rank, {"w": tensor(values)}, name.format(rank=rank))
    message = rf"rank_0 has 2 checkpoint files \(.*\); {taken.format(rank=0)}\.ckpt is taken, the last by name$"
    with pytest.warns(UserWarning, match=message) as caught:
        transform(rows, dst_strategy_file=None)
    assert caught[0].filename == __file__
    assert read_tree(rows / "out")[0] == {"w": tensor(VALUES + 100 * names.index(taken))}


def test_steps_are_not_mixed(rows: Path) -> None:
    for rank, steps in enumerate((("1_1", "2_1"), ("1_1",))):
        (rows / "src" / f"rank_{rank}" / "net.ckpt").unlink()
        for step in steps:
            write_rank(rows / "src", rank, {"w": tensor(VALUES[2 * rank : 2 * rank + 2])}, f"net-{step}")
    with pytest.warns(
        UserWarning, match=r"net-1_1\.ckpt is taken, the last by name that all ranks have, not .* rank_0$"
    ):
        transform(rows)
    (rows / "src" / "rank_1" / "net-1_1.ckpt").unlink()
    write_rank(rows / "src", 1, {"w": tensor(VALUES[:2])}, "net-3_1")
    with pytest.raises(ValueError, match="rank_0 has 2 .*no step and prefix is on all of the ranks that are needed"):
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


# messages, which are checked for options of the command in conftest.py


def test_encrypted_files(rows: Path) -> None:
    encrypted = FIXTURES / "formats" / "encrypted_AES-GCM.ckpt"
    for rank in range(2):
        shutil.copy(encrypted, rows / "src" / f"rank_{rank}" / "net.ckpt")
    message = (
        r"rank_0/net\.ckpt: is encrypted, and this function takes no key: load it by load_checkpoint with its 'dec_key'"
    )
    with pytest.raises(ValueError, match=message):
        transform(rows)
    files = {rank: str(rows / "src" / f"rank_{rank}" / "net.ckpt") for rank in range(2)}
    with pytest.raises(ValueError, match=message):
        mindspore.transform_checkpoint_by_rank(0, files, str(rows / "a.ckpt"), str(rows / "rows.ckpt"))


def test_a_damaged_file_that_others_could_stand_in_for(repeated: tuple, tmp_path: Path) -> None:
    files, strategy = repeated
    with Path(files[1]).open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match=r"rank_1/net\.ckpt"):
        mindspore.transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "out"), "net_", strategy)


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


def test_another_process_converts_into_the_destination(rows: Path) -> None:
    leases = parse_url(f"{rows}/out/.reshard-transform.reshard-partial/.reshard/leases")
    with (
        held_lease(leases, new_holder((0, 1), plan="another")),
        pytest.raises(ValueError, match="out: another process is converting into it; wait for it"),
    ):
        transform(rows)


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
    assert caught[0].filename == __file__
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


def test_what_a_stages_own_strategy_lacks_of_the_target_is_warned_of(stages: Path) -> None:
    files = {rank: str(stages / "src" / f"rank_{rank}" / "net.ckpt") for rank in range(2)}
    strategies = str(stages / "own_0" / "0.ckpt"), str(stages / "both.ckpt")
    with pytest.warns(UserWarning, match=r"no source file holds them, though the target's strategy has them: b$"):
        mindspore.transform_checkpoint_by_rank(0, files, str(stages / "a.ckpt"), *strategies)
    assert read_ckpt(stages / "a.ckpt") == {"a": tensor(VALUES[:, :1])}


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


def test_any_rank_of_a_stage_may_be_given_the_whole(repeated: tuple, tmp_path: Path) -> None:
    files, strategy = repeated
    lists = [mindspore.rank_list_for_transform(rank, strategy) for rank in range(4)]
    assert lists == [[1, 0], [1, 0], [3, 2], [3, 2]]
    for rank, ranks in enumerate(lists):
        path = tmp_path / f"{rank}.ckpt"
        mindspore.transform_checkpoint_by_rank(rank, {each: files[each] for each in ranks}, str(path), strategy)
        assert read_ckpt(path) == {"w": tensor(VALUES)}


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

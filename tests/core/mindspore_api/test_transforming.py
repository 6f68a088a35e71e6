import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard import mindspore
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import ALL_CASES, Case, read_ckpt, read_tree
from tests.support.places import FIXTURES, PROJECT
from tests.support.strategy_writer import FileLayout, write_strategy_file
from tests.support.transformed import COLUMNS, ROWS, VALUES, strategies, tensor, transform, write_rank


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
    with pytest.raises(ValueError, match=r"\.reshard-transform: is a link, whose target would be replaced"):
        transform(rows)
    assert (rows / "precious/rank_0/net_0.ckpt").read_text() == "mine"


def test_a_rank_is_missing(rows: Path) -> None:
    (rows / "src" / "rank_1" / "net.ckpt").unlink()
    with pytest.raises(ValueError, match="missing: rank_1"):
        transform(rows)


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


def test_a_damaged_file_that_others_could_replace(repeated: tuple, tmp_path: Path) -> None:
    files, strategy = repeated
    with Path(files[1]).open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match=r"rank_1/net\.ckpt"):
        mindspore.transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "out"), "net_", strategy)


def test_another_process_converts_into_the_destination(rows: Path) -> None:
    leases = parse_url(f"{rows}/out/.reshard-transform.reshard-partial/.reshard/leases")
    with (
        held_lease(leases, new_holder((0, 1), plan="another")),
        pytest.raises(ValueError, match="out: another process is converting into it; wait for it"),
    ):
        transform(rows)


def own_and_both(stages: Path, stage: int) -> dict[str, str]:
    return {
        "src_strategy_file": str(stages / f"own_{stage}" / f"{stage}.ckpt"),
        "dst_strategy_file": str(stages / "both.ckpt"),
    }


def test_another_process_converts_the_same_stage(stages: Path) -> None:
    leases = parse_url(f"{stages}/out/.reshard-transform_part0.reshard-partial/.reshard/leases")
    with held_lease(leases, new_holder((0, 1), plan="another")):
        with pytest.raises(ValueError, match="out: another process is converting into it; wait for it"):
            transform(stages, **own_and_both(stages, 0))
        transform(stages, **own_and_both(stages, 1))


def test_another_process_converts_another_stage_at_the_same_time(stages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one runs while the files of the first get their names."""
    replace = os.replace
    program = (
        "from pathlib import Path\n"
        "from tests.support.transformed import transform\n"
        f"transform(Path({str(stages)!r}), **{own_and_both(stages, 1)!r})\n"
    )
    others: list[int] = []

    def with_another_process(source: str, target: str) -> None:
        if not others:
            others.append(0)
            done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=False, timeout=60)
            others.append(done.returncode)
        replace(source, target)

    monkeypatch.setattr(os, "replace", with_another_process)
    transform(stages, **own_and_both(stages, 0))
    assert others == [0, 0]
    assert sorted(os.listdir(stages / "out")) == ["rank_0", "rank_1"]
    for rank in range(2):
        files = {f"net_{rank}_part{stage}.ckpt" for stage in range(2)}
        assert set(os.listdir(stages / "out" / f"rank_{rank}")) == files
        loaded = mindspore.load_segmented_checkpoints(str(stages / "out" / f"rank_{rank}"))
        columns = VALUES[:, rank : rank + 1].tolist()
        assert {name: np.asarray(value).tolist() for name, value in loaded.items()} == {"a": columns, "b": columns}


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


def test_a_source_of_another_library_is_called_by_its_name(rows: Path) -> None:
    (rows / "jax/ocdbt.process_0").mkdir(parents=True)
    with pytest.raises(ValueError, match="jax: is an Orbax checkpoint"):
        transform(rows, src_checkpoints_dir=str(rows / "jax"))


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


def test_the_names_of_2_10_are_the_same_functions() -> None:
    assert mindspore.convert_checkpoints is mindspore.transform_checkpoints
    assert mindspore.convert_checkpoint_by_rank is mindspore.transform_checkpoint_by_rank
    assert mindspore.rank_list_for_convert is mindspore.rank_list_for_transform

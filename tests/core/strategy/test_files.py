"""Strategies read from files and directories, and written."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import fsspec
import pytest
from msgspec.structs import replace

from reshard.core.errors import StorageError, StrategyError
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from reshard.core.strategy import files
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.strategy.protobuf_file import parse_protobuf
from reshard.core.tensor.layout import ParameterLayout
from tests.support.places import FIXTURES
from tests.support.splitting import split_strategy

CONVERSIONS = FIXTURES / "conversions"
STAGE_DIRECTORIES = sorted(CONVERSIONS.glob("*/*_stages"))
LAYOUT = ParameterLayout((2, 2), ((1,), ()))


def strategy(stages: int = 2) -> Strategy:
    return Strategy(
        tuple(
            StageStrategy(stage, {f"weight_{stage}": LAYOUT}, (OperatorStrategy(f"op_{stage}", stage, ((1,),)),))
            for stage in range(stages)
        ),
        "made",
    )


def write_stages(directory: Path, extension: str = "ckpt") -> list[Path]:
    paths = [directory / f"anything_{stage}.{extension}" for stage in (0, 1)]
    for path, part in zip(paths, split_strategy(strategy()), strict=True):
        write_strategy(part, str(path))
    return paths


@pytest.fixture
def memory_url() -> Iterator[str]:
    yield "memory://strategies"
    fsspec.filesystem("memory").rm("/strategies", recursive=True)


@pytest.mark.parametrize("directory", STAGE_DIRECTORIES, ids=lambda path: "/".join(path.parts[-2:]))
def test_directory_of_mindspore_merges_to_what_mindspore_merged(directory: Path) -> None:
    merged = read_strategy(str(directory.with_name(directory.name.replace("_stages", "_strategy.ckpt"))))
    assert read_strategy(str(directory)) == replace(merged, origin=str(directory))


@pytest.mark.parametrize("name", ["strategy.ckpt", "strategy.json", "strategy", "odd name.pb"])
@pytest.mark.parametrize("stages", [1, 3])
def test_written_file_is_read_back(tmp_path: Path, name: str, stages: int) -> None:
    path = str(tmp_path / "new directory" / name)
    write_strategy(strategy(stages), path)
    assert read_strategy(path) == replace(strategy(stages), origin=path)
    with open(path, "rb") as file:
        assert (file.read(1) == b"{") == name.endswith(".json")


@pytest.mark.parametrize("extension", ["ckpt", "json"])
def test_own_files_of_stages_are_read_back_and_merged(tmp_path: Path, extension: str) -> None:
    paths = write_stages(tmp_path, extension)
    own = read_strategy(str(paths[1]))
    assert (own.merged, own.ranks) == (False, range(4, 8))
    assert read_strategy(str(tmp_path)) == replace(strategy(), origin=str(tmp_path))


def test_the_merged_file_and_mark_that_mindformers_leaves_beside_the_ranks(tmp_path: Path) -> None:
    write_stages(tmp_path)
    write_strategy(strategy(), str(tmp_path / "merged_ckpt_strategy.ckpt"))
    (tmp_path / "merge_succeed.txt").touch()
    read = read_strategy(str(tmp_path))
    assert (read.stages, read.origin) == (strategy().stages, str(tmp_path))
    assert read.notes == (
        f"{tmp_path}/merged_ckpt_strategy.ckpt is a merged strategy, and agrees with the files beside it",
    )
    (tmp_path / "merged_ckpt_strategy.ckpt").unlink()
    assert read_strategy(str(tmp_path)).notes == ()


def test_a_merged_file_stands_for_stages_whose_own_files_are_not_there(tmp_path: Path) -> None:
    write_stages(tmp_path)[0].unlink()
    write_strategy(strategy(), str(tmp_path / "merged.ckpt"))
    read = read_strategy(str(tmp_path))
    assert read.stages == strategy().stages
    assert read.notes[0].endswith("agrees with the files beside it; stages without files of their own: 0")


def test_a_mark_with_content_is_no_mark(tmp_path: Path) -> None:
    write_stages(tmp_path)
    (tmp_path / "merge_succeed.txt").write_text("done")
    with pytest.raises(StrategyError, match=r"merge_succeed\.txt: is not a strategy"):
        read_strategy(str(tmp_path))


def test_remote_directory(tmp_path: Path, memory_url: str) -> None:
    for part in split_strategy(strategy()):
        write_strategy(part, f"{memory_url}/{part.stages[0].stage}")
    assert read_strategy(memory_url).stages == strategy().stages
    assert read_strategy(f"{memory_url}/1").stages == strategy().stages[1:]


def test_duplicates_hidden_files_and_subdirectories_do_no_harm(tmp_path: Path) -> None:
    first, _ = write_stages(tmp_path)
    (tmp_path / "copy").write_bytes(first.read_bytes())
    (tmp_path / ".DS_Store").write_bytes(b"anything")
    (tmp_path / "rank_0").mkdir()
    os.symlink(first, tmp_path / "link")
    os.symlink(tmp_path / "rank_0", tmp_path / "link to a directory")
    assert read_strategy(str(tmp_path)).stages == strategy().stages


def test_directory_with_one_merged_file(tmp_path: Path) -> None:
    write_strategy(strategy(), str(tmp_path / "merged.ckpt"))
    assert read_strategy(str(tmp_path)) == replace(strategy(), origin=str(tmp_path))


def test_equal_files_of_many_ranks_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [path.read_bytes() for path in write_stages(tmp_path)]
    for rank in range(300):
        (tmp_path / f"strategy_{rank}.ckpt").write_bytes(data[rank // 150])
    parsed: list[str] = []

    def counted(data: bytes, origin: str) -> Strategy:
        parsed.append(origin)
        return parse_protobuf(data, origin)

    monkeypatch.setattr("reshard.core.strategy.protobuf_file.parse_protobuf", counted)
    assert read_strategy(str(tmp_path)).stages == strategy().stages
    assert len(parsed) == 2


class TestDirectory:
    """What is wrong with the files of a directory, each an error that names the files."""

    def test_files_of_one_stage_differ(self, tmp_path: Path) -> None:
        source = copytree(CONVERSIONS / "case_7001/src_stages", tmp_path / "stages")
        own = read_strategy(str(source / "strategy_6.ckpt"))
        layouts = dict(own.stages[0].layouts)
        layouts["layers.3.weight_3"] = replace(layouts["layers.3.weight_3"], tensor_map=((), (0,)))
        write_strategy(replace(own, stages=(replace(own.stages[0], layouts=layouts),)), str(source / "strategy_6.ckpt"))
        with pytest.raises(
            StrategyError,
            match=r"strategy_4.ckpt and .*strategy_6.ckpt are both of stage 1.*'layers.3.weight_3' has tensor_map",
        ):
            read_strategy(str(source))

    def test_stage_missing(self, tmp_path: Path) -> None:
        first, _ = write_stages(tmp_path)
        first.unlink()
        with pytest.raises(StrategyError, match=r"stage 0 is missing; found stage 1 in .*anything_1\.ckpt"):
            read_strategy(str(tmp_path))

    def test_formats_mixed(self, tmp_path: Path) -> None:
        write_stages(tmp_path, "ckpt")
        write_stages(tmp_path, "json")
        with pytest.raises(StrategyError, match=r"mixed in one directory: .*anything_0\.json and .*anything_0\.ckpt"):
            read_strategy(str(tmp_path))

    def test_a_checkpoint_s_directory(self, tmp_path: Path) -> None:
        for name in ("README.md", "config.json", "model.safetensors"):
            (tmp_path / name).write_text("{}")
        with pytest.raises(StrategyError, match=r"model\.safetensors: is a checkpoint's file; name the directory"):
            read_strategy(str(tmp_path))

    @pytest.mark.parametrize(
        ("data", "message"),
        [(b"", "is empty"), (b"\x0a\x08", "looks like a checkpoint"), (b"README", "is not a strategy")],
    )
    def test_file_that_is_none(self, tmp_path: Path, data: bytes, message: str) -> None:
        write_stages(tmp_path)
        (tmp_path / "other").write_bytes(data)
        with pytest.raises(StrategyError, match=f"/other: .*{message}"):
            read_strategy(str(tmp_path))

    def test_merged_file_of_another_job_among_own_ones(self, tmp_path: Path) -> None:
        write_stages(tmp_path)
        other = strategy()
        changed = StageStrategy(1, {"weight_1": replace(LAYOUT, tensor_map=((), (1,)))})
        write_strategy(replace(other, stages=(other.stages[0], changed)), str(tmp_path / "merged.ckpt"))
        with pytest.raises(StrategyError) as caught:
            read_strategy(str(tmp_path))
        assert str(caught.value) == (
            f"{tmp_path}/merged.ckpt and {tmp_path}/anything_1.ckpt are both of stage 1, but differ: parameter "
            "'weight_1' has tensor_map ((), (1,)) in the first, ((1,), ()) in the second: one is of another job. Name "
            "the file that is right instead of the directory, or remove the other"
        )

    def test_merged_file_of_fewer_stages_among_own_ones(self, tmp_path: Path) -> None:
        write_stages(tmp_path)
        write_strategy(strategy(1), str(tmp_path / "merged.ckpt"))
        with pytest.raises(
            StrategyError, match=r"anything_1\.ckpt is of stage 1, but .*merged\.ckpt, a merged .* 1 stage"
        ):
            read_strategy(str(tmp_path))

    def test_two_merged_files_that_differ(self, tmp_path: Path) -> None:
        write_strategy(strategy(1), str(tmp_path / "a.ckpt"))
        write_strategy(strategy(2), str(tmp_path / "b.ckpt"))
        with pytest.raises(StrategyError, match=r"a\.ckpt and .*/b\.ckpt are both merged, but have 1 and 2 stages"):
            read_strategy(str(tmp_path))

    def test_file_that_does_not_say_its_stage(self, tmp_path: Path) -> None:
        part = split_strategy(strategy(1))[0]
        silent = replace(part, stages=(replace(part.stages[0], operators=()),))
        write_strategy(silent, str(tmp_path / "silent.ckpt"))
        assert read_strategy(str(tmp_path / "silent.ckpt")).stages == silent.stages
        with pytest.raises(StrategyError, match=r"silent\.ckpt: has no operator strategies"):
            read_strategy(str(tmp_path))

    def test_no_files(self, tmp_path: Path) -> None:
        (tmp_path / "rank_0").mkdir()
        with pytest.raises(StrategyError, match=f"{tmp_path}: holds no strategy files"):
            read_strategy(str(tmp_path))

    def test_pipe(self, tmp_path: Path) -> None:
        write_stages(tmp_path)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StrategyError, match="/pipe: is neither a file nor a directory"):
            read_strategy(str(tmp_path))


class TestFile:
    """What is wrong with a file, each an error that names it."""

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StrategyError, match=r"nothing\.ckpt: .*no such file"):
            read_strategy(str(tmp_path / "nothing.ckpt"))

    def test_dangling_link(self, tmp_path: Path) -> None:
        os.symlink(tmp_path / "nowhere", tmp_path / "link")
        with pytest.raises(StrategyError, match="no such file"):
            read_strategy(str(tmp_path / "link"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_unreadable(self, tmp_path: Path) -> None:
        path = write_stages(tmp_path)[0]
        path.chmod(0)
        with pytest.raises(StrategyError, match="permission denied"):
            read_strategy(str(path))

    def test_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StrategyError, match="/pipe: is neither a file nor a directory"):
            read_strategy(str(tmp_path / "pipe"))

    @pytest.mark.parametrize("name", ["strategy.ckpt", "strategy.json"])
    def test_empty(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).touch()
        with pytest.raises(StrategyError, match=f"{name}: is empty"):
            read_strategy(str(tmp_path / name))

    def test_huge(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.ckpt"
        with path.open("wb") as file:
            file.write(b"\x0a\x80\x80\x80")
            file.truncate(1 << 40)
        with pytest.raises(StrategyError, match=r"has 1099511627776 bytes, .*looks like a checkpoint"):
            read_strategy(str(path))

    @pytest.mark.parametrize("name", ["src_strategy.json", "src_strategy.ckpt"])
    def test_wrong_extension(self, tmp_path: Path, name: str) -> None:
        other = tmp_path / ("strategy.ckpt" if name.endswith(".json") else "strategy.json")
        other.write_bytes((CONVERSIONS / "case_7010" / name).read_bytes())
        with pytest.raises(
            StrategyError, match=r"looks like a (JSON|protobuf) one, whose name must (not )?end in .json"
        ):
            read_strategy(str(other))

    def test_shrinks_while_being_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_stages(tmp_path)[0]

        def shrunk(location: Location) -> SourceFile:
            file = open_source(location)
            os.truncate(path, 10)
            return file

        monkeypatch.setattr(files, "open_source", shrunk)
        with pytest.raises(StrategyError, match="earlier than it should"):
            read_strategy(str(path))

    def test_transient_failure_stays_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(location: object) -> object:
            raise StorageError("busy", transient=True)

        monkeypatch.setattr(files, "open_source", fail)
        with pytest.raises(StorageError, match="busy"):
            read_strategy(str(write_stages(tmp_path)[0]))

    def test_failed_writing_leaves_nothing(self, tmp_path: Path) -> None:
        nested = Strategy((StageStrategy(0, {"a": ParameterLayout((2, 2), ((1, 0), ()), nested=True)}),), "made")
        with pytest.raises(StrategyError, match="JSON"):
            write_strategy(nested, str(tmp_path / "strategy.json"))
        assert list(tmp_path.iterdir()) == []

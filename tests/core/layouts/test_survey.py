import os
import shutil
from pathlib import Path

import fsspec
import pytest

from reshard.core.errors import CatalogError, InputError, StorageError
from reshard.core.files.file_names import Step
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.ranks.rank_files import RankShape
from reshard.core.layouts.survey import survey
from reshard.core.layouts.unified.source import FoundUnified
from reshard.core.storage.urls import Location
from tests.support.deepspeed_files import deepspeed_case
from tests.support.fsdp import fsdp_case
from tests.support.source_directories import found_ranks


@pytest.fixture
def root(folder: Location) -> str:
    return str(folder.child("ck"))


def fill(root: str, *paths: str) -> None:
    fs, base = fsspec.url_to_fs(root)
    for path in paths:
        fs.makedirs(f"{base}/{path}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{base}/{path}", b"")


def found_names(url: str) -> dict[int, list[str]]:
    return {rank: [file.name.name for file in files] for rank, files in survey(url).files.items()}


def test_rank_folders(root: str) -> None:
    fill(root, "rank_0/CKP-1_2.ckpt", "rank_10/CKP-1_2.ckpt", "rank_2/CKP-1_2.ckpt", "rank_2/CKP-graph.meta")
    fill(root, "rank_01/x.ckpt", "rank_x/x.ckpt", "loose.ckpt", "rank_3", ".hidden", ".reshard/manifest.json")
    result = found_ranks(root + "/")
    assert result.shape is RankShape.RANK_FOLDERS
    assert result.ranks == (0, 2, 10)
    assert list(result.files) == [0, 2, 10]
    assert result.ignored == (".hidden", "loose.ckpt", "rank_01/", "rank_2/CKP-graph.meta", "rank_3", "rank_x/")
    assert result.formats == (CheckpointFormat.CKPT,)
    assert not result.unfinished
    assert not result.names_files
    assert str(result.files[2][0].location).endswith("/ck/rank_2/CKP-1_2.ckpt")


def test_url_is_reported_as_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(str(tmp_path), "ck/rank_0/a.ckpt")
    monkeypatch.chdir(tmp_path)
    assert survey("ck").url == str(tmp_path.resolve() / "ck")


def test_steps_by_prefix(root: str) -> None:
    fill(root, "rank_0/CKP-9_5.ckpt", "rank_1/CKP-9_5.ckpt", "rank_0/CKP-10_5.ckpt", "rank_0/last_0.ckpt")
    fill(root, "rank_1/last_1.ckpt", "rank_1/CKP-10_5_breakpoint.ckpt")
    steps = found_ranks(root).steps
    assert steps == {
        "CKP": {Step(9, 5): (0, 1), Step(10, 5): (0,), Step(10, 5, True): (1,)},
        "last_{rank}": {None: (0, 1)},
    }
    assert list(steps["CKP"]) == [Step(9, 5), Step(10, 5), Step(10, 5, True)]


def test_both_formats(root: str) -> None:
    fill(root, "rank_0/a.safetensors", "rank_1/a.ckpt")
    assert found_ranks(root).formats == (CheckpointFormat.CKPT, CheckpointFormat.SAFETENSORS)


def test_rank_folder_without_files(root: str) -> None:
    fill(root, "rank_0/a.ckpt", "rank_1/notes.txt")
    assert survey(root).ranks == (0,)
    assert survey(root).files[1] == ()


def test_files_without_rank_folders(root: str) -> None:
    fill(root, "CKP-1_2.ckpt", "CKP-graph.meta", "sub/x.ckpt")
    result = found_ranks(root)
    assert result.shape is RankShape.FOLDER
    assert result.ranks == (0,)
    assert result.ignored == ("CKP-graph.meta", "sub/")


def test_single_file(root: str) -> None:
    fill(root, "CKP-1_2.ckpt", "other.ckpt")
    result = found_ranks(f"{root}/CKP-1_2.ckpt")
    assert (result.shape, result.ranks, result.names_files) == (RankShape.FILE, (0,), True)
    assert found_names(f"{root}/CKP-1_2.ckpt") == {0: ["CKP-1_2.ckpt"]}


def test_single_file_of_another_kind(root: str) -> None:
    fill(root, "model.onnx")
    with pytest.raises(CatalogError, match=r"model\.onnx: not a checkpoint file.*\.ckpt or \.safetensors"):
        survey(f"{root}/model.onnx")


def test_pattern_of_folders(root: str) -> None:
    fill(root, "gen/r0/CKP-1_2.ckpt", "gen/r11/CKP-1_2.ckpt", "gen/r11/x.meta", "gen/r1x/x.ckpt", "gen/r05/x.ckpt")
    result = found_ranks(root + "/gen/r{rank}")
    assert result.shape is RankShape.PATTERN
    assert result.ranks == (0, 11)
    assert result.ignored == ("r11/x.meta",)
    assert not result.names_files


def test_pattern_of_files(root: str) -> None:
    for rank in range(3):
        fill(root, f"origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt", f"origin_checkpoint_rank{rank}/x.ckpt")
    fill(root, "origin_checkpoint_rank3/pangu2-100_2.ckpt", "origin_checkpoint_rank4", "other/pangu4-100_2.ckpt")
    url = root + "/origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt"
    assert found_names(url) == {rank: [f"pangu{rank}-100_2.ckpt"] for rank in range(3)}
    assert found_ranks(url).names_files


def test_pattern_with_fixed_folders_inside(root: str) -> None:
    fill(root, "node0/out/ck_0.ckpt", "node1/out/ck_1.ckpt", "node2/in/ck_2.ckpt", "node3/out/ck_2.ckpt")
    assert found_names(root + "/node{rank}/out/ck_{rank}.ckpt") == {0: ["ck_0.ckpt"], 1: ["ck_1.ckpt"]}


def test_pattern_of_one_folder(root: str) -> None:
    fill(root, "a0_0.ckpt", "a1_1.ckpt", "a2_1.ckpt", "a10_10.ckpt")
    assert found_names(root + "/a{rank}_{rank}.ckpt") == {0: ["a0_0.ckpt"], 1: ["a1_1.ckpt"], 10: ["a10_10.ckpt"]}


def test_pattern_takes_other_signs_as_they_are(root: str) -> None:
    fill(root, "a+0.ckpt", "aa1.ckpt")
    assert found_names(root + "/a+{rank}.ckpt") == {0: ["a+0.ckpt"]}


def test_pattern_that_fits_nothing(root: str) -> None:
    fill(root, "rank_x/a.ckpt")
    with pytest.raises(CatalogError, match=r"rank_\{rank\}: nothing matches the pattern"):
        survey(root + "/rank_{rank}")


def test_pattern_that_fits_other_files(root: str) -> None:
    fill(root, "r0/a.txt")
    with pytest.raises(CatalogError, match=r"a\.txt: not a checkpoint file"):
        survey(root + "/r{rank}/a.txt")


def test_pattern_below_a_missing_directory(root: str) -> None:
    with pytest.raises(CatalogError, match="no such file or directory"):
        survey(root + "/none/rank_{rank}")


def test_missing_directory(root: str) -> None:
    with pytest.raises(CatalogError, match=r"ck: cannot read it: no such file or directory"):
        survey(root)


def test_directory_with_nothing_like_a_checkpoint(root: str) -> None:
    fill(root, "notes.txt")
    with pytest.raises(CatalogError, match="neither rank_N folders nor checkpoint files"):
        survey(root)


def test_unfinished_conversion(root: str) -> None:
    fill(root, "rank_0/a.ckpt", ".reshard/plan.json")
    assert survey(root).unfinished
    assert survey(root + "/rank_{rank}").unfinished
    fill(root, ".reshard/manifest.json")
    assert not survey(root).unfinished
    assert survey(root).ignored == ()


def test_listing_is_not_an_old_one(root: str) -> None:
    fill(root, "rank_0/a.ckpt")
    assert survey(root).ranks == (0,)
    fill(root, "rank_1/a.ckpt")
    assert survey(root).ranks == (0, 1)


def test_url_that_is_none() -> None:
    with pytest.raises(InputError):
        survey("")


def test_links_are_followed(tmp_path: Path) -> None:
    fill(str(tmp_path), "store/blob", "store/folder/CKP-1_2.ckpt", "ck/notes.txt")
    (tmp_path / "ck/rank_1").symlink_to(tmp_path / "store/folder")
    (tmp_path / "ck/rank_0").mkdir()
    (tmp_path / "ck/rank_0/CKP-1_2.ckpt").symlink_to(tmp_path / "store/blob")
    (tmp_path / "ck/rank_0/CKP-1_3.ckpt").symlink_to(tmp_path / "nowhere")
    result = survey(str(tmp_path / "ck"))
    assert found_names(str(tmp_path / "ck")) == {0: ["CKP-1_2.ckpt"], 1: ["CKP-1_2.ckpt"]}
    assert result.ignored == ("notes.txt", "rank_0/CKP-1_3.ckpt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folder(tmp_path: Path) -> None:
    fill(str(tmp_path), "rank_0/a.ckpt", "rank_1/a.ckpt")
    (tmp_path / "rank_1").chmod(0)
    try:
        with pytest.raises(CatalogError, match="rank_1: cannot list it: permission denied"):
            survey(str(tmp_path))
    finally:
        (tmp_path / "rank_1").chmod(0o755)


@pytest.mark.parametrize(
    ("error", "mapped"), [(PermissionError(), CatalogError), (ConnectionResetError(), StorageError)]
)
def test_failing_listing(
    error: OSError, mapped: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(str(tmp_path), "rank_0/a.ckpt")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("reshard.core.storage.disk.LocalDisk.list", fail)
    with pytest.raises(mapped, match="cannot read it"):
        survey(str(tmp_path))


def test_marker_objects_of_folders_are_not_files(monkeypatch: pytest.MonkeyPatch) -> None:
    # object stores list the key "ck/rank_0/" inside the folder itself
    fill("memory:///survey/ck", "rank_0/a.ckpt")
    listing = fsspec.filesystem("memory").ls

    def with_marker(path: str, detail: bool = True) -> list[dict[str, object]]:
        return [{"name": path + "/", "size": 0, "type": "file"}, *listing(path, detail=True)]

    monkeypatch.setattr(
        "fsspec.implementations.memory.MemoryFileSystem.ls", lambda _, *args, **kw: with_marker(*args, **kw)
    )
    try:
        assert survey("memory:///survey/ck").ignored == ()
        assert survey("memory:///survey/ck").ranks == (0,)
    finally:
        monkeypatch.undo()
        fsspec.filesystem("memory").rm("/survey", recursive=True)


@pytest.mark.parametrize("name", ["model-rank-{}-part-0.safetensors", "_rank{}_.safetensors", "net_rank_{}.ckpt"])
def test_files_of_several_ranks_in_one_folder_are_ranks(name: str, root: str) -> None:
    fill(root, *(name.format(rank) for rank in (0, 1, 10)), "notes.txt", "other.ckpt")
    found = found_ranks(root)
    assert (found.shape, found.ranks) == (RankShape.RANK_FILES, (0, 1, 10))
    assert found_names(root) == {rank: [name.format(rank)] for rank in (0, 1, 10)}
    assert found.ignored == ("notes.txt", "other.ckpt")


def test_files_of_one_rank_are_no_several_ranks(root: str) -> None:
    fill(root, "llama_rank_3-1_40.ckpt", "llama_rank_3-1_80.ckpt", "Frank_1.ckpt", "mp_rank_00.ckpt")
    assert found_ranks(root).shape is RankShape.FOLDER


def test_numbered_shards_that_are_all_there_need_no_index(root: str) -> None:
    fill(root, *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)), "config.json")
    found = survey(root)
    assert isinstance(found, FoundUnified)
    assert found.index is None
    assert [name for [name] in found_names(root).values()] == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["model-00001-of-00003", "model-00003-of-00003"], r"missing: model-00002-of-00003\.safetensors\. Get them"),
        (["model-00001-of-00003"], "has 1 of 3 files that number themselves, and no index"),
        (
            ["model-00000-of-00002", "model-00001-of-00002", "model-00002-of-00002"],
            r"has model-00001-of-00002\.safetensors, by its name one of 2 files, and beside it model-00000-of",
        ),
        (["m-00001-of-00002", "m-00002-of-00002", "m-00003-of-00002"], r"beside it m-00003-of-00002\.safetensors, but"),
        (
            ["m-00001-of-00002", "m-000001-of-00002", "m-00002-of-00002"],
            r"has m-0+1-of-00002\.safetensors, .*beside it m-0+1-of-00002\.s",
        ),
        (["m-00001-of-000003", "m-00003-of-000003"], r"missing: m-00002-of-000003\.safetensors\. Get"),
        (
            ["m-00002-of-99999999999999"],
            r"missing: m-00001-of-99999999999999\.safetensors, m-00003-.* 99999999999992 more\.",
        ),
        (["m-00001-of-00002", "m-00002-of-00002", "model"], r"beside it model\.safetensors, but no index"),
        (["m-00001-of-00002", "m-00002-of-00002", "m.fp16-00001-of-00002"], r"beside it m\.fp16-00001-of-00002"),
        (["m-00001-of-00002", "m-00001-of-00003"], r"beside it m-00001-of-00003"),
    ],
)
def test_numbered_shards_that_are_not_one_whole_set_are_refused_by_name(
    names: list[str], message: str, root: str
) -> None:
    fill(root, *(f"{name}.safetensors" for name in names))
    with pytest.raises(CatalogError, match=message):
        survey(root)


def test_a_directory_above_or_beside_a_checkpoint_names_it(tmp_path: Path) -> None:
    shutil.copytree(fsdp_case("fsdp2_mixed_tied").root, tmp_path / "all/verl/global_step_40/actor")
    actor = tmp_path / "all/verl/global_step_40/actor"
    (tmp_path / "all/verl/latest_checkpointed_iteration.txt").write_text("40")
    (tmp_path / "all/other").mkdir()
    for named, meant in ((tmp_path / "all", tmp_path / "all/verl"), (actor / "huggingface", actor)):
        with pytest.raises(CatalogError, match=f"; name the directory that is meant, if it is one of these: {meant}$"):
            survey(str(named))


def test_a_damaged_checkpoint_below_is_named_too(tmp_path: Path) -> None:
    shutil.copytree(deepspeed_case("case_zero3_bf16").root, tmp_path / "output/checkpoint-40")
    (tmp_path / "output/checkpoint-40/latest").write_text("global_step60")
    with pytest.raises(CatalogError, match="if it is one of these: .*output/checkpoint-40$"):
        survey(str(tmp_path / "output"))

"""Unified targets: what files they are, who reads them, and how they are resumed, checked, replaced and removed."""

import json
import math
import os
import shutil
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport, Outcome
from reshard.core.errors import ConversionError, InputError, PlanError, StorageError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.unified.assignment import split_in_order
from reshard.core.layouts.unified.names import file_names, is_unified_name
from reshard.core.records.plan_file import load_plan
from reshard.core.request.conversion import build_request
from reshard.core.runtime.progress import SilentProgress
from reshard.core.storage.listing import find_entries
from reshard.core.storage.urls import Location, parse_url
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, case, read_ckpt, read_rank, read_safetensors, read_tree
from tests.support.ckpt_writer import CheckpointMessage, checkpoint_bytes
from tests.support.strategy_writer import FileLayout, write_strategy_file
from tests.support.training import latest_request, save_step

PIPELINE = case(7010)
"""Two stages of four ranks; 8 parameters of 333 KiB, two of which no strategy knows."""
OUTSIDE = ("global_step", "learning_rate")
INDEX = "model.safetensors.index.json"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def unify(target: Path | str, size: str = "100KB", **options: object) -> ConversionReport:
    wanted: dict[str, Any] = {"target_strategy": "", "layout": "unified", "max_shard_size": size}
    return convert(PIPELINE.request(target, **wanted | options))


def whole_model() -> Contents:
    [contents] = read_tree(PIPELINE.directory / "full").values()
    return contents


def read_as_transformers_does(directory: Path) -> Contents:
    """Every name of the index, from the file that it names; what the file says that it is for is looked at, too."""
    index = json.loads((directory / INDEX).read_text())
    contents = {path.name: read_safetensors(path) for path in directory.glob("*.safetensors")}
    assert {*index["weight_map"].values()} == contents.keys()
    for name in contents:
        with safe_open(directory / name, "np") as file:
            assert file.metadata()["format"] in ("pt", "tf", "flax", "mlx")
            assert file.keys()
    found = {name: contents[file][name] for name, file in index["weight_map"].items()}
    assert sum(map(len, contents.values())) == len(found)
    assert index["metadata"] == {
        "total_parameters": sum(math.prod(shape) for _, shape, _ in found.values()),
        "total_size": sum(len(content) for _, _, content in found.values()),
    }
    return found


def header_names(path: Path) -> list[str]:
    """The tensors of a file in the order of their contents."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__")
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ---- what goes into which file ----


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 20))
def test_groups_are_few_and_even(sizes: list[int], limit: int) -> None:
    counts = split_in_order(sizes, limit)
    assert sum(counts) == len(sizes)
    assert all(counts)
    groups = [sizes[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]
    assert all(sum(group) <= limit or len([size for size in group if size]) == 1 for group in groups)

    def largest(cuts: tuple[int, ...]) -> float:
        """Of the groups that are no single size above the limit; not at all possible if one is too large."""
        edges = [0, *cuts, len(sizes)]
        parts = [sizes[low:high] for low, high in pairwise(edges)]
        if any(sum(part) > limit and len([size for size in part if size]) > 1 for part in parts):
            return float("inf")
        return max((sum(part) for part in parts if sum(part) <= limit), default=0)

    def best(count: int) -> float:
        return min(map(largest, combinations(range(1, len(sizes)), count - 1)), default=float("inf"))

    if sizes:
        mine = max((sum(group) for group in groups if sum(group) <= limit), default=0)
        assert mine == best(len(counts))
        assert all(best(fewer) == float("inf") for fewer in range(1, len(counts)))


@pytest.mark.parametrize(
    ("sizes", "limit", "counts"),
    [
        ([], 5, []),
        ([1] * 10, 4, [3, 4, 3]),  # and not 4, 4, 2
        ([9, 1, 1], 5, [1, 2]),  # one larger than the limit has a file of its own
        ([1, 1, 9], 5, [2, 1]),
        ([0, 9, 0, 0], 5, [4]),  # what has no bytes needs no file of its own
        ([3, 3, 3, 3], 100, [4]),
    ],
)
def test_groups(sizes: list[int], limit: int, counts: list[int]) -> None:
    assert split_in_order(sizes, limit) == counts


def test_many_parameters_are_divided_at_once() -> None:
    sizes = [(number * 7919) % 1000 for number in range(20_000)]
    counts = split_in_order(sizes, 100_000)
    sums = [0, *accumulate(sizes)]
    files = [sums[end] - sums[end - count] for end, count in zip(accumulate(counts), counts, strict=True)]
    assert max(files) - min(files) < 1000


@pytest.mark.parametrize("naming", ["huggingface", "mindspore"])
@pytest.mark.parametrize("count", [1, 3])
def test_names_are_known_again(naming: str, count: int) -> None:
    names = file_names(naming, count, has_others=naming == "mindspore")
    assert all(map(is_unified_name, names))
    assert len({*names}) == count + (naming == "mindspore")
    assert is_unified_name(file_names(naming, 100_001)[-1])
    assert not is_unified_name("config.json")
    assert not is_unified_name("model-1.safetensors")


# ---- files ----


def test_whole_tensors_in_even_files_and_an_index(target: Path) -> None:
    report = unify(target)
    assert report.target_world_size == 5
    assert report.carried == OUTSIDE
    assert names_in(target) == [".reshard", *(f"model-0000{n}-of-00005.safetensors" for n in range(1, 6)), INDEX]
    assert read_as_transformers_does(target) == whole_model()
    sizes = [os.path.getsize(path) for path in sorted(target.glob("*.safetensors"))]
    assert [size for size in sizes if size > 100_000] == [196_736]  # one tensor
    files = json.loads((target / INDEX).read_text())["weight_map"]
    assert list(files) == sorted(files)
    # as the source has them: the first stage's, then the second's
    order = [name for path in sorted(target.glob("*.safetensors")) for name in header_names(path)]
    assert order.index("layers.5.weight_5") < order.index("global_step") < order.index("layers.0.weight_0")


def test_the_library_reads_them_as_arrays(target: Path) -> None:
    unify(target)
    arrays: dict[str, np.ndarray] = {}
    for path in target.glob("*.safetensors"):
        arrays |= load_file(path)
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: content for name, (_, _, content) in whole_model().items()
    }


def test_one_file_has_no_index(target: Path) -> None:
    report = unify(target, "5GB")
    assert names_in(target) == [".reshard", "model.safetensors"]
    assert read_safetensors(target / "model.safetensors") == whole_model()
    reason = "not in any strategy; the same on all source ranks that have it, and once in the target: "
    assert f"{reason}global_step, learning_rate" in report.notes


def test_mindspores_names(target: Path) -> None:
    unify(target, unified_naming="mindspore")
    index = json.loads((target / "param_name_map.json").read_text())
    assert names_in(target) == [
        *(".reshard", "hyper_param.safetensors", "param_name_map.json"),
        *(f"part{number}.safetensors" for number in range(5)),
    ]
    assert read_safetensors(target / "hyper_param.safetensors").keys() == {*OUTSIDE}
    assert index["weight_map"].keys() == whole_model().keys() - {*OUTSIDE}
    assert {*index["weight_map"].values()} == {f"part{number}.safetensors" for number in range(5)}
    found: Contents = {}
    for path in target.glob("*.safetensors"):
        found |= read_safetensors(path)
        with safe_open(path, "np") as file:
            assert file.metadata() == {"format": "ms"}
    assert found == whole_model()


def test_what_is_appended_stands_once(tmp_path: Path) -> None:
    unify(tmp_path / "hf", append_info=["epoch_num=5", "note=text:five"])
    assert [
        path.name for path in sorted((tmp_path / "hf").glob("*.safetensors")) if "epoch_num" in load_file(path)
    ] == ["model-00005-of-00005.safetensors"]
    weights = json.loads((tmp_path / "hf" / INDEX).read_text())["weight_map"]
    assert weights["epoch_num"] == "model-00005-of-00005.safetensors"
    assert "note" not in weights  # no tensor
    unify(tmp_path / "ms", unified_naming="mindspore", append_info=["epoch_num=5"])
    assert read_safetensors(tmp_path / "ms" / "hyper_param.safetensors").keys() == {*OUTSIDE, "epoch_num"}


def write_ranks(directory: Path, *ranks: list[tuple[str, str, tuple[int, ...], bytes]]) -> dict[str, Any]:
    """Ranks that hold halves of `w`, and what else is given; the options of a conversion of them."""
    for rank, entries in enumerate(ranks):
        path = directory / "src" / f"rank_{rank}" / "net.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(checkpoint_bytes(("w", "Float32", (2,), bytes([rank]) * 8), *entries))
    rows = FileLayout((2,), ((0,),), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4,))
    write_strategy_file(directory / "strategy.ckpt", {0: {"w": rows}})
    return {"source": str(directory / "src"), "source_strategy": str(directory / "strategy.ckpt"), "layout": "unified"}


def text_entry(name: str, text: str) -> tuple[str, str, tuple[int, ...], bytes]:
    return name, "str", (0,), text.encode("utf-32-le")


def test_texts_stand_in_the_metadata(tmp_path: Path, target: Path) -> None:
    options = write_ranks(tmp_path, *[[text_entry("note", "東京")]] * 2)
    convert(build_request(**options, target=str(target)))
    with safe_open(target / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "text:note": "東京"}
        assert list(file.keys()) == ["w"]


@pytest.mark.parametrize("naming", ["huggingface", "mindspore"])
@pytest.mark.parametrize("size", ["1B", "20B"])
def test_no_file_has_texts_alone_which_no_index_tells_of(tmp_path: Path, target: Path, naming: str, size: str) -> None:
    tensors = [("a", "Int8", (20,), bytes(20)), ("b", "Int8", (20,), bytes(20))]
    content = checkpoint_bytes(text_entry("x", "x" * 99), tensors[0], text_entry("y", "y" * 9), tensors[1])
    (tmp_path / "net.ckpt").write_bytes(content + checkpoint_bytes(text_entry("z", "z" * 99)))
    options: dict[str, Any] = {"layout": "unified", "max_shard_size": size, "unified_naming": naming}
    convert(build_request(source=str(tmp_path / "net.ckpt"), target=str(target), **options))
    assert len([*target.glob("*.safetensors")]) == 2
    convert(build_request(source=str(target), target=str(tmp_path / "back"), format="ckpt"))
    assert read_rank(tmp_path / "back", 0) == read_ckpt(tmp_path / "net.ckpt")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("lr", "Float32", (), b"\0\0\0\0"), ("lr", "Float32", (), b"\0\0\0\1")),
        (("lr", "Float32", (), b"\0\0\0\0"), ("lr", "Int32", (), b"\0\0\0\0")),
        (text_entry("lr", "a"), text_entry("lr", "b")),
    ],
)
def test_what_differs_between_ranks_cannot_stand_once(tmp_path: Path, target: Path, first: Any, second: Any) -> None:
    options = write_ranks(tmp_path, [first], [second])
    with pytest.raises((PlanError, InputError)) as caught:
        convert(build_request(**options, target=str(target)))
    if first[:3] == second[:3]:
        assert "'lr', which no strategy knows, differs between rank_0 and rank_1, and a unified" in str(caught.value)
        assert "leave it out, exclude=['lr']" in str(caught.value)
    assert not target.exists()


def test_hash_tables_are_refused(tmp_path: Path, target: Path) -> None:
    message = CheckpointMessage()
    tensor = message.value.add(tag="table").maptensor.tensor.add(dims=[1], tensor_type="int32")
    tensor.tensor_content = b"\1\0\0\0"
    (tmp_path / "map.ckpt").write_bytes(message.SerializeToString())
    with pytest.raises(PlanError, match=r"'table' is a MapTensor, which \.safetensors files cannot hold; if the model"):
        convert(build_request(source=str(tmp_path / "map.ckpt"), target=str(target), layout="unified"))


def test_a_crc_may_be_asked_for(target: Path) -> None:
    unify(target, "5GB", write_crc=True)
    with safe_open(target / "model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"
        assert file.metadata()["crc_num"]
    assert verify_target(str(target), VerifyLevel.CHECKSUM).problems == ()


# ---- as every other target ----


def test_files_that_failed_are_done_again_alone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(plan: Any, ranks: Any, *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        if 3 in ranks:
            raise StorageError("no luck")
        return transform_ranks(plan, ranks, *args, **kwargs)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(
        ConversionError, match=r"1 of 5 target files failed;(.|\n)*\n  model-00004-of-00005\.safetensors: no luck"
    ):
        unify(target)
    assert not target.exists()
    killed = target.with_name("out.reshard-partial") / ".model-00004-of-00005.safetensors.0123abcd.tmp"
    killed.write_bytes(b"half of it")
    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", transform_ranks)
    assert [rank.outcome.value for rank in unify(target).ranks] == [*["resumed"] * 3, "written", "resumed"]
    assert len(names_in(target)) == 7
    assert read_as_transformers_does(target) == whole_model()


def test_what_is_resumed_is_called_files(target: Path) -> None:
    class Listener(SilentProgress):
        def note(self, message: str) -> None:
            reason.append(message)

    reason: list[str] = []
    unify(target, ranks="0-2")
    harmed = target.with_name("out.reshard-partial") / "model-00002-of-00005.safetensors"
    harmed.write_bytes(harmed.read_bytes()[:-1])
    request = PIPELINE.request(target, target_strategy="", layout="unified", max_shard_size="100KB")
    convert(request, Listener())
    assert reason[0] == "checking what was done before: 3 of 5 files"
    assert reason[1].startswith("model-00002-of-00005.safetensors is done again: ")
    assert reason[2] == "resuming: 2 of 5 files are done already"


def test_some_files_on_each_of_two_machines(target: Path) -> None:
    assert not unify(target, ranks="0-2").committed
    assert not target.exists()
    assert unify(target, ranks="3,4").committed
    assert read_as_transformers_does(target) == whole_model()


def test_the_plan_is_the_same_when_it_is_loaded(target: Path) -> None:
    request = PIPELINE.request(target, target_strategy="", layout="unified", max_shard_size="100KB")
    convert(request)
    manifest = read_manifest(parse_url(str(target)))
    assert manifest is not None
    plan = make_plan(request)
    loaded = load_plan(f"{target}/.reshard/plan.json.gz", manifest.identity)
    assert [loaded.rank_plan(rank) for rank in loaded.target_ranks] == [plan.rank_plan(rank) for rank in range(5)]


def spoil_index(target: Path) -> None:
    path = target / INDEX
    path.write_text(path.read_text().replace("model-00001", "model-00002", 1))


def remove_index(target: Path) -> None:
    (target / INDEX).unlink()


def enlarge_index(target: Path) -> None:
    with (target / INDEX).open("a") as file:
        file.write(" ")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (spoil_index, f"{INDEX}: is not the index that was written"),
        (enlarge_index, f"{INDEX}: is larger than what was written"),
        (remove_index, INDEX),
    ],
)
def test_the_index_is_verified_and_mended(target: Path, harm: Any, reason: str) -> None:
    unify(target)
    right = (target / INDEX).read_bytes()
    harm(target)
    [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert reason in problem
    assert [rank.outcome.value for rank in unify(target).ranks] == ["resumed"] * 5
    assert (target / INDEX).read_bytes() == right
    assert verify_target(str(target), VerifyLevel.CHECKSUM).problems == ()


def test_the_manifest_tells_of_layout_and_index(target: Path) -> None:
    unify(target)
    manifest = read_manifest(parse_url(str(target)))
    assert manifest is not None
    assert manifest.layout == TargetLayout.UNIFIED
    assert manifest.index is not None
    assert manifest.index.file == INDEX
    assert manifest.carried == OUTSIDE


def test_a_file_of_another_checkpoint_is_told(target: Path) -> None:
    unify(target)
    shutil.copy(target / "model-00001-of-00005.safetensors", target / "model.safetensors")
    (target / "config.json").write_text("{}")  # is what belongs there
    [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert "model.safetensors: does not belong to this checkpoint, but loaders may take it for a part" in problem
    with pytest.raises(TargetError, match=r"model\.safetensors: does not belong to this checkpoint"):
        unify(target)


@pytest.fixture
def place(folder: Location) -> str:
    return str(folder.child("out"))


def files_in(url: str) -> list[str]:
    """Files of a checkpoint, without what is recorded of it."""
    root = parse_url(url)
    found = [path.removeprefix(root.path).lstrip("/") for path in find_entries(root)]
    return sorted(path for path in found if not path.startswith(".reshard"))


def test_fewer_files_replace_more_and_ranks_replace_files(place: str) -> None:
    unify(place)
    assert len(files_in(place)) == 6
    with pytest.raises(TargetError, match="pass overwrite=True to replace it"):
        unify(place, "150KB")
    unify(place, "150KB", overwrite=True)
    assert files_in(place) == [*(f"model-0000{n}-of-00003.safetensors" for n in range(1, 4)), INDEX]
    convert(PIPELINE.request(place, overwrite=True))
    assert files_in(place) == ["rank_0/checkpoint_0.ckpt", "rank_1/checkpoint_1.ckpt"]
    unify(place, "5GB", overwrite=True)
    assert files_in(place) == ["model.safetensors"]
    assert verify_target(place, VerifyLevel.CHECKSUM).problems == ()


def test_what_is_no_checkpoints_is_not_replaced(target: Path) -> None:
    unify(target)
    (target / "config.json").write_text("{}")
    advice = r"\(config\.json\). Name another target, or move them away, and back when the checkpoint is complete"
    with pytest.raises(TargetError, match=advice):
        unify(target, "5GB", overwrite=True)
    assert read_as_transformers_does(target) == whole_model()
    assert not [rank for rank in unify(target).ranks if rank.outcome is not Outcome.RESUMED]  # there it is no harm
    assert verify_target(str(target), VerifyLevel.STRUCTURE).problems == ()


def test_a_nightly_export_keeps_the_newest(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "training"
    options: dict[str, Any] = {"target_strategy": "", "layout": "unified", "max_shard_size": "50KB"}
    for step in ("1_1", "1_2"):
        save_step(source, step)
        report = convert_latest(latest_request(source, target, keep_checkpoint_max=1, **options))
        assert report.step == step
    assert report.removed == ("1_1",)
    assert names_in(target) == ["1_2"]
    assert INDEX in names_in(target / "1_2")


def test_an_export_whose_index_was_changed_is_left_alone(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "training"
    options: dict[str, Any] = {"target_strategy": "", "layout": "unified", "max_shard_size": "50KB"}
    save_step(source, "1_1")
    convert_latest(latest_request(source, target, **options))
    spoil_index(target / "1_1")
    save_step(source, "1_2")
    report = convert_latest(latest_request(source, target, keep_checkpoint_max=1, **options))
    assert report.removed == ()
    assert any(f"{INDEX} was changed after it was written" in note for note in report.notes)
    assert names_in(target) == ["1_1", "1_2"]

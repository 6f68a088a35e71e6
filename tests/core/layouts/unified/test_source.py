"""Unified checkpoints as sources: what is taken for one, what their index is compared with, and what they become."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import CatalogError, InputError
from reshard.core.layouts.ranks.rank_files import RankShape
from reshard.core.layouts.survey import survey
from reshard.core.layouts.unified.source import FoundUnified
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest
from reshard.core.strategy.files import read_strategy
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from reshard.core.verification.published import verify_target
from reshard.mindspore import unified_safetensors
from tests.conformance.cases import Case as RandomCase
from tests.conformance.cases import Side, rank_contents
from tests.conformance.random_cases import build_case
from tests.support.checkpoints import case, read_rank, read_safetensors, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.source_directories import found_ranks
from tests.support.strategy_writer import write_strategy_file
from tests.support.training import latest_request

INDEX = "model.safetensors.index.json"
PIPELINE = case(7010)
A = np.arange(8, dtype=np.float32).reshape(4, 2)
B = np.arange(6, dtype=np.int8)

Files = dict[str, dict[str, np.ndarray]]


def write_unified(directory: Path, files: Files, name: str = INDEX, **moved: str) -> Path:
    """Files and their index; `moved` are parameters that the index has elsewhere, in no file if that is empty."""
    directory.mkdir(parents=True)
    for file, tensors in files.items():
        save_file(tensors, directory / file, {"format": "pt"})
    weights = {key: file for file, tensors in files.items() for key in tensors} | moved
    if name:
        message = {"metadata": {}, "weight_map": {key: file for key, file in weights.items() if file}}
        (directory / name).write_text(json.dumps(message))
    return directory


TWO: Files = {"model-00001-of-00002.safetensors": {"a": A}, "model-00002-of-00002.safetensors": {"b": B}}


def to_one(source: Path | str, target: Path, **options: object) -> ConversionReport:
    return convert(build_request(source=str(source), target=str(target), **options))


# ---- what is taken for one ----


@pytest.mark.parametrize("named", ["", INDEX])
def test_a_directory_with_an_index(tmp_path: Path, named: str) -> None:
    source = write_unified(tmp_path / "src", TWO)
    (source / "config.json").write_text("{}")
    save_file({"c": A}, source / "adapter.safetensors")
    found = survey(str(source / named if named else source))
    assert isinstance(found, FoundUnified)
    assert [file.location.name for (file,) in found.files.values()] == list(TWO)
    assert found.ignored == ("adapter.safetensors", "config.json")
    report = to_one(source / named if named else source, tmp_path / "out")
    assert read_rank(tmp_path / "out", 0) == {
        "a": ("Float32", (4, 2), A.tobytes()),
        "b": ("Int8", (6,), B.tobytes()),
    }
    assert "beside the files of the checkpoint, and not in its index, so ignored: adapter.safetensors" in report.notes
    assert (report.source_kind, report.source_world_size, report.target_kind) == ("file", 2, "rank")


def test_one_file_without_an_index(tmp_path: Path) -> None:
    source = write_unified(tmp_path / "src", {"model.safetensors": {"a": A, "b": B}}, name="")
    assert isinstance(survey(str(source)), FoundUnified)
    assert found_ranks(str(source / "model.safetensors")).shape is RankShape.FILE
    to_one(source, tmp_path / "out")
    assert read_rank(tmp_path / "out", 0).keys() == {"a", "b"}


def test_many_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    files = {f"part{number}.safetensors": {f"p{number}": B} for number in range(12)}
    source = write_unified(tmp_path / "src", files, "param_name_map.json")
    save_file({"step": B}, source / "hyper_param.safetensors")
    found = survey(str(source))
    assert [file.location.name for (file,) in found.files.values()] == [*files, "hyper_param.safetensors"]


def test_rank_folders_come_before_an_index(tmp_path: Path) -> None:
    source = write_unified(tmp_path / "src", TWO)
    shutil.copytree(PIPELINE.directory / "src" / "rank_0", source / "rank_0")
    assert found_ranks(str(source)).shape is RankShape.RANK_FOLDERS


def test_from_a_remote_storage(tmp_path: Path) -> None:
    source = write_unified(tmp_path / "src", TWO)
    files = fsspec.filesystem("memory")
    files.put(str(source), "/unified-source/model", recursive=True)
    to_one("memory://unified-source/model", tmp_path / "out")
    files.rm("/unified-source", recursive=True)
    assert read_rank(tmp_path / "out", 0).keys() == {"a", "b"}


# ---- what its index is compared with ----


def without_file(source: Path) -> None:
    (source / "model-00002-of-00002.safetensors").unlink()


def with_single(source: Path) -> None:
    save_file({"a": A}, source / "model.safetensors")


def with_another_index(source: Path) -> None:
    shutil.copy(source / INDEX, source / "model.fp16.safetensors.index.json")


def with_both(source: Path) -> None:
    save_file({"a": A, "b": B}, source / "model-00002-of-00002.safetensors")


def with_index(text: str) -> Callable[[Path], None]:
    def write(source: Path) -> None:
        (source / INDEX).write_text(text)

    return write


def with_float8(source: Path) -> None:
    header = b'{"b":{"dtype":"F8_E4M3","shape":[6],"data_offsets":[0,6]}}'
    path = source / "model-00002-of-00002.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + B.tobytes())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (without_file, "model-00002-of-00002.safetensors is missing, where the index places b"),
        (with_single, f"has model.safetensors, and beside it {INDEX}, which does not list it"),
        (with_another_index, f"has several indexes, model.fp16.safetensors.index.json, {INDEX}: name the one"),
        (with_both, "parameter 'a' is in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors"),
        (with_index("[]"), "is not a map of parameters to files"),
        (with_index('{"weight_map": {"a": 1}}'), "is not a map of parameters to files"),
        (with_index('{"weight_map": {}}'), "its index names no file"),
        (with_index('{"weight_map": {"a": "x.bin", "a": "y"}}'), "'a' occurs twice"),
        (
            with_index('{"weight_map": {"a": "../a.safetensors"}}'),
            "parameter 'a' in '../a.safetensors', which is not",
        ),
        (with_index('{"weight_map": {"a": "pytorch_model.bin"}}'), "not the name of a .safetensors file beside it"),
        (with_float8, "parameter 'b' has dtype F8_E4M3, which only layout='unified', layout='torch_dist' and "),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    source = write_unified(tmp_path / "src", TWO)
    harm(source)
    with pytest.raises(InputError) as caught:
        make_plan(build_request(source=str(source), target=str(tmp_path / "out")))
    assert message in str(caught.value)


def test_what_has_a_dtype_of_others_is_compared(tmp_path: Path) -> None:
    sources = [write_unified(tmp_path / name, TWO) for name in ("one", "same", "other")]
    for source in sources:
        with_float8(source)
    file = sources[2] / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    one, same, other = map(str, sources)
    assert compare_checkpoints(build_comparison(a=one, b=same)).differences == ()
    [found] = compare_checkpoints(build_comparison(a=one, b=other)).differences
    assert (found.name, found.dtypes, found.values) == ("b", ("F8_E4M3", "F8_E4M3"), ("0x05", "0x7f"))
    message = tmp_path / "one.json"
    message.write_text(fingerprint_checkpoint(FingerprintRequest(source=str(one))).model_dump_json())
    assert compare_checkpoints(build_comparison(a=same, b=str(message))).differences == ()


@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_what_has_a_dtype_of_others_can_be_left_out(tmp_path: Path, format: str) -> None:
    source = write_unified(tmp_path / "src", TWO)
    with_float8(source)
    to_one(source, tmp_path / "out", exclude=["b"], format=format, verify="content")
    assert read_tree(tmp_path / "out") == {0: {"a": ("Float32", (4, 2), A.tobytes())}}
    # once more from the plan that was written
    (tmp_path / f"out/rank_0/checkpoint_0.{format}").unlink()
    to_one(source, tmp_path / "out", exclude=["b"], format=format)
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT).problems == ()


@pytest.mark.parametrize("stem", ["model", "model.fp16"])
def test_some_of_several_files_without_their_index_are_no_checkpoint(tmp_path: Path, stem: str) -> None:
    first, second = (f"{stem}-0000{number}-of-00002.safetensors" for number in (1, 2))
    source = write_unified(tmp_path / "src", {first: {"a": A}}, name="")
    with pytest.raises(CatalogError) as caught:
        survey(str(source))
    assert str(caught.value) == (
        f"{source}: has 1 of 2 files that number themselves, and no index ({INDEX}); missing: {second}. Get them as "
        "well, or name the one file that is meant"
    )
    assert found_ranks(str(source / first)).shape is RankShape.FILE
    (source / first).rename(source / "model-00001-of-00001.safetensors")
    assert found_ranks(str(source)).shape is RankShape.FOLDER


@pytest.mark.parametrize("stem", ["model", "model.fp16"])
def test_all_of_several_files_without_their_index_are_converted(tmp_path: Path, stem: str) -> None:
    first, second = (f"{stem}-0000{number}-of-00002.safetensors" for number in (1, 2))
    source = write_unified(tmp_path / "src", {first: {"a": A}, second: {"b": B}}, name="")
    report = to_one(source, tmp_path / "out", layout="unified")
    assert "there is no index: its 2 files are complete by the numbers in their names" in report.notes
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert {name: content for name, (_, _, content) in found.items()} == {"a": A.tobytes(), "b": B.tobytes()}


def test_files_without_an_index_that_share_a_parameter_are_refused(tmp_path: Path) -> None:
    first, second = TWO
    source = write_unified(tmp_path / "src", {first: {"a": A}, second: {"a": A, "b": B}}, name="")
    with pytest.raises(CatalogError, match=f"parameter 'a' is in {first} and in {second}"):
        to_one(source, tmp_path / "out", layout="unified")


def test_a_parameter_that_is_elsewhere_is_told(tmp_path: Path) -> None:
    source = write_unified(tmp_path / "src", TWO, a="model-00002-of-00002.safetensors", c=next(iter(TWO)))
    with pytest.raises(CatalogError) as caught:
        make_plan(build_request(source=str(source), target=str(tmp_path / "out")))
    first, second = TWO
    assert str(caught.value).splitlines() == [
        f"{source / INDEX}: does not match the files beside it:",
        f"  - parameter 'a' is not in {second}, where the index places it; it is in {first}",
        f"  - parameter 'c' is not in {first}, where the index places it",
    ]


def test_what_the_index_does_not_name_is_taken_and_told(tmp_path: Path) -> None:
    files: Files = {"model-00001-of-00002.safetensors": {"a": A, "c": B}, "model-00002-of-00002.safetensors": {"b": B}}
    source = write_unified(tmp_path / "src", files, c="")
    report = to_one(source, tmp_path / "out")
    assert f"in its files, but not in {INDEX}, used anyway: c" in report.notes
    assert read_rank(tmp_path / "out", 0).keys() == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_strategy": str(PIPELINE.directory / "src_strategy.ckpt")}, "its tensors are whole, so leave out"),
        ({"step": "1_1"}, "without steps or prefixes: leave out 'step' and 'source_prefix'"),
        ({"source_prefix": "net"}, "without steps or prefixes: leave out 'step' and 'source_prefix'"),
        ({"recover": True}, "has everything once and so nothing to recover from: leave out recover=True"),
    ],
)
def test_refused_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    source = write_unified(tmp_path / "src", TWO)
    with pytest.raises(CatalogError, match="is a unified checkpoint") as caught:
        to_one(source, tmp_path / "out", **options)
    assert message in str(caught.value)


def test_no_training_saves_such(tmp_path: Path) -> None:
    source = write_unified(tmp_path / "src", TWO)
    with pytest.raises(CatalogError, match="is a unified checkpoint, and has no steps: convert it"):
        convert_latest(latest_request(source, tmp_path / "out", source_strategy=""))


# ---- what they become ----


def test_what_a_strategy_lacks_is_dropped_and_told(tmp_path: Path) -> None:
    files: Files = {f"model-0000{number}-of-00002.safetensors": {} for number in (1, 2)}
    [whole] = read_tree(PIPELINE.directory / "full").values()
    for number, (name, (dtype, shape, content)) in enumerate(whole.items()):
        file = list(files)[number % 2]
        files[file][name] = np.frombuffer(content, dtype.lower()).reshape(shape)
    source = write_unified(tmp_path / "src", files)
    report = convert(PIPELINE.request(tmp_path / "out", source=str(source), source_strategy="", format="ckpt"))
    known = read_strategy(str(PIPELINE.directory / "dst_strategy.ckpt")).parameters
    assert {*report.dropped} == whole.keys() - known
    assert read_tree(tmp_path / "out") == {
        rank: {name: entry for name, entry in held.items() if name in known} for rank, held in PIPELINE.want.items()
    }


def test_what_unified_safetensors_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.core.mindspore_api.unifying.PART_BYTES", 100_000)
    given = PIPELINE.directory
    for path in (given / "src").glob("*/*"):
        folder = tmp_path / "src" / path.parent.name
        folder.mkdir(parents=True)
        arrays = {
            name: np.frombuffer(c, d.lower()).reshape(s)
            for name, (d, s, c) in read_rank(given / "src", int(path.parent.name[5:])).items()
        }
        save_file(arrays, folder / "net.safetensors", {"format": "ms"})
    unified_safetensors(str(tmp_path / "src"), str(given / "src_strategy.ckpt"), str(tmp_path / "whole"))
    assert len([*(tmp_path / "whole").glob("part*")]) > 2
    source = str(tmp_path / "whole")
    convert(PIPELINE.request(tmp_path / "out", source=source, source_strategy="", format="ckpt"))
    assert read_tree(tmp_path / "out") == PIPELINE.want


def write_case(directory: Path, random_case: RandomCase) -> dict[str, Any]:
    """A random checkpoint and both strategies; the options of its conversion."""
    held = rank_contents(random_case, random_case.source, random_case.uncut_in_source)
    texts = [(name, "str", (0,), (text or "\0").encode("utf-32-le")) for name, text in random_case.text.items()]
    for rank, contents in held.items():
        path = directory / "src" / f"rank_{rank}" / "net.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(checkpoint_bytes(*((name, *entry) for name, entry in contents.items()), *texts))
    options = {"source": str(directory / "src")}
    for name, side in (("source", random_case.source), ("target", random_case.target)):
        if side is not None:
            options[f"{name}_strategy"] = _write_strategy(directory / f"{name}.ckpt", random_case, side)
    return options


def _write_strategy(path: Path, random_case: RandomCase, side: Side) -> str:
    stages = {
        number: {f"{number}-{name}": cut.for_file(random_case.model[name][1]) for name, cut in cuts.items()}
        for number, cuts in enumerate(side.stages)
    }
    write_strategy_file(path, stages)
    return str(path)


RANDOM = [seed for seed in range(60) if build_case(seed).source is not None]


@pytest.mark.parametrize("seed", RANDOM[:8])
def test_by_way_of_whole_tensors_as_directly(tmp_path: Path, seed: int) -> None:
    check_both_ways(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", RANDOM[8:20])
def test_more_of_them(tmp_path: Path, seed: int) -> None:
    check_both_ways(tmp_path, seed)


def check_both_ways(tmp_path: Path, seed: int) -> None:
    options = write_case(tmp_path, build_case(seed))
    convert(build_request(**options, target=str(tmp_path / "directly")))
    target_strategy = options.pop("target_strategy", "")
    naming = "mindspore" if seed % 2 else "huggingface"
    unified: dict[str, Any] = {"layout": "unified", "max_shard_size": "300B", "unified_naming": naming}
    convert(build_request(**options, **unified, target=str(tmp_path / "whole")))
    again = {**unified, "unified_naming": "huggingface", "max_shard_size": f"{200 + 100 * (seed % 9)}B"}
    convert(build_request(source=str(tmp_path / "whole"), target=str(tmp_path / "again"), **again))
    convert(
        build_request(
            source=str(tmp_path / "again"),
            target=str(tmp_path / "back"),
            target_strategy=target_strategy,
            format="ckpt",
        )
    )
    assert read_tree(tmp_path / "back") == read_tree(tmp_path / "directly")
    found: dict[str, Any] = {}
    for path in (tmp_path / "again").glob("*.safetensors"):
        found |= read_safetensors(path)
    assert found == build_case(seed).model

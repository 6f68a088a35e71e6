"""Whole state dicts of PyTorch as sources: what is taken for one, the dict in a tree, and what they become."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from fsspec.implementations.memory import MemoryFileSystem

from reshard import load_rank, make_strategy
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import CatalogError, InputError
from reshard.core.layouts.survey import survey
from reshard.core.layouts.torch.source import FoundStateDict
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.source.description import describe
from reshard.core.source.opening import open_source
from reshard.core.verification.compare import compare_checkpoints
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, read_rank, read_safetensors, read_tree, write_safetensors
from tests.support.diagnosed import diagnose
from tests.support.families import Family, directory_contents, switches_of
from tests.support.locked_storage import put_tree
from tests.support.places import FIXTURES
from tests.support.torch_files import state_dict_file

TORCH = FIXTURES / "torch"
"""Files that torch 2.13 wrote."""
INDEX = "pytorch_model.bin.index.json"
LLAMA = Family("llama")


def numbers(count: int, shape: tuple[int, ...], dtype: str = "Float32") -> tuple[str, tuple[int, ...], bytes]:
    kinds: dict[str, Any] = {
        "Float32": np.float32,
        "BFloat16": ml_dtypes.bfloat16,
        "Int64": np.int64,
        "UInt16": np.uint16,
    }
    return dtype, shape, np.arange(count).astype(kinds[dtype]).tobytes()


def reordered(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return "Float32", array.shape, np.ascontiguousarray(array, np.float32).tobytes()


FLAT: Contents = {
    "embed.weight": numbers(32, (8, 4)),
    "lm_head.weight": numbers(32, (8, 4)),
    "turned": reordered(np.arange(15).reshape(3, 5).T),
    "part": reordered(np.arange(20).reshape(4, 5)[1:3, 1:4]),
    "repeated": reordered(np.arange(3).reshape(3, 1).repeat(4, 1)),
    "half": numbers(4, (4,), "BFloat16"),
    "count": ("Int64", (), np.int64(3).tobytes()),
    "empty": ("Float32", (0, 3), b""),
    "parameter": reordered(np.ones(2)),
    "unsigned": numbers(2, (2,), "UInt16"),
}
"""What flat.pt and the state_dict of nested.pth hold, but for `narrow`, of float8."""
A, B = numbers(8, (4, 2)), numbers(6, (6,))
TWO: dict[str, Contents] = {
    "pytorch_model-00001-of-00002.bin": {"a": A},
    "pytorch_model-00002-of-00002.bin": {"b": B},
}


def write_model(directory: Path, files: dict[str, Contents], index: str = INDEX, **moved: str) -> Path:
    """Files, and their index; `moved` are tensors that the index has elsewhere, in no file if that is empty."""
    directory.mkdir(parents=True)
    for name, contents in files.items():
        (directory / name).write_bytes(state_dict_file(contents))
    places = {key: name for name, contents in files.items() for key in contents} | moved
    if index:
        weights = {key: name for key, name in places.items() if name}
        (directory / index).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return directory


def whole(source: Path | str, target: Path, **options: object) -> ConversionReport:
    return convert(build_request(source=str(source), target=str(target), layout="unified", **options))


def made(target: Path) -> Contents:
    return read_safetensors(target / "model.safetensors")


def refusal(source: Path | str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        open_source(SourceRequest.model_validate({"source": str(source)} | options))
    return str(caught.value)


# ---- one file ----


def test_a_state_dict_of_torch(tmp_path: Path) -> None:
    report = whole(TORCH / "flat.pt", tmp_path / "out", verify="content", exclude=["narrow"])
    assert made(tmp_path / "out") == FLAT
    assert (
        "flat.pt has one tensor of several names, which is written under each: embed.weight, lm_head.weight"
    ) in report.notes
    assert (report.source_kind, report.source_world_size) == ("file", 1)


def test_a_state_dict_of_a_module(tmp_path: Path) -> None:
    whole(TORCH / "net.bin", tmp_path / "out")
    assert {name: shape for name, (_, shape, _) in made(tmp_path / "out").items()} == {
        "one.weight": (2, 2),
        "one.bias": (2,),
    }


def test_a_tensor_of_float8(tmp_path: Path) -> None:
    whole(TORCH / "flat.pt", tmp_path / "out", include=["narrow"])
    [(name, entry)] = safetensors.deserialize((tmp_path / "out/model.safetensors").read_bytes())
    want = np.arange(4).astype(ml_dtypes.float8_e4m3fn).tobytes()
    assert (name, entry["dtype"], entry["shape"], bytes(entry["data"])) == ("narrow", "F8_E4M3", [4], want)


def test_the_dict_that_is_meant_is_named(tmp_path: Path) -> None:
    source = TORCH / "nested.pth"
    report = whole(source, tmp_path / "out", root="state_dict", exclude=["narrow"])
    assert made(tmp_path / "out") == FLAT
    assert (
        "left out of nested.pth, beside root='state_dict': epoch, pytorch-lightning_version, callbacks, "
        "optimizer_states (6 tensors), hyper_parameters, net"
    ) in report.notes
    same = build_comparison(a=str(source), root_a="state_dict", b=str(TORCH / "flat.pt"))
    assert compare_checkpoints(same).same
    assert diagnose(str(source), root="state_dict").fits is True


def test_without_its_name_a_tree_is_refused_with_what_it_has() -> None:
    source = TORCH / "nested.pth"
    assert refusal(source) == (
        f"{source}: has tensors in dicts or lists in it; it has state_dict (11 tensors), optimizer_states (6 tensors), "
        "epoch, pytorch-lightning_version, callbacks, hyper_parameters, net: choose one with root='state_dict'"
    )
    with pytest.raises(CatalogError, match=r"choose one with root='state_dict'"):
        diagnose(str(source))


def test_in_a_comparison_the_option_is_of_its_side() -> None:
    with pytest.raises(InputError, match="choose one with root_b='state_dict'"):
        compare_checkpoints(build_comparison(a=str(TORCH / "flat.pt"), b=str(TORCH / "nested.pth")))


@pytest.mark.parametrize(("name", "root"), [("model.pt", "model"), ("x.bin", "a.b"), ("y.pth", "module")])
def test_names_and_roots(name: str, root: str, tmp_path: Path) -> None:
    def below(tensors: object) -> object:
        for key in reversed(root.split(".")):
            tensors = {key: tensors, "step": 3}
        return tensors

    (tmp_path / name).write_bytes(state_dict_file({"w": A}, below))
    assert f"choose one with root='{root}'" in refusal(tmp_path / name)
    report = whole(tmp_path / name, tmp_path / "out", root=root)
    assert made(tmp_path / "out") == {"w": A}
    beside = {"model": "step", "a.b": "step, a.step", "module": "step"}[root]
    assert f"left out of {name}, beside root='{root}': {beside}" in report.notes


def test_what_is_no_tensor_is_noted(tmp_path: Path) -> None:
    values = {"step": 3, "text": "x", "rate": 0.5, "sizes": [1, 2], "config": {"layers": 2}, "none": None}
    (tmp_path / "model.pt").write_bytes(state_dict_file({"w": A}, lambda tensors: tensors | values))
    report = whole(tmp_path / "model.pt", tmp_path / "out")
    assert "left out of model.pt, as they are not tensors: step, text, rate, sizes, config, none" in report.notes
    assert made(tmp_path / "out") == {"w": A}


def test_states_of_modules_and_names_of_dtypes_are_noted(tmp_path: Path) -> None:
    values = {
        "layer._extra_state": PickledObject(Global("transformer_engine", "State"), ()),
        "dtype": Global("torch", "float32"),
    }
    (tmp_path / "model.pt").write_bytes(state_dict_file({"w": A}, lambda tensors: tensors | values))
    report = whole(tmp_path / "model.pt", tmp_path / "out")
    assert "left out of model.pt, as they are not tensors: layer._extra_state, dtype" in report.notes


# ---- files of Hugging Face's ----


@pytest.mark.parametrize("named", ["", INDEX])
def test_a_directory_with_an_index(named: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    for name in ("config.json", "training_args.bin", "optimizer.pt"):
        (source / name).write_text("{}")
    found = survey(str(source / named if named else source))
    assert isinstance(found, FoundStateDict)
    assert [file.location.name for (file,) in found.files.values()] == list(TWO)
    assert found.ignored == ("config.json", "optimizer.pt", "training_args.bin")
    report = whole(source / named if named else source, tmp_path / "out")
    assert made(tmp_path / "out") == {"a": A, "b": B}
    assert (report.source_kind, report.source_world_size) == ("file", 2)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model.fp16.bin", "adapter_model.bin", "diffusion_pytorch_model.bin"]
)
@pytest.mark.parametrize("is_named", [True, False])
def test_one_file_without_an_index(name: str, is_named: bool, tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", {name: {"a": A, "b": B}}, index="")
    whole(source / name if is_named else source, tmp_path / "out")
    assert made(tmp_path / "out") == {"a": A, "b": B}


def test_a_variant_with_its_index(tmp_path: Path) -> None:
    files = {name.replace("model", "model.fp16"): contents for name, contents in TWO.items()}
    source = write_model(tmp_path / "src", files, "pytorch_model.bin.index.fp16.json")
    whole(source, tmp_path / "out")
    assert made(tmp_path / "out") == {"a": A, "b": B}


def test_all_of_several_files_without_their_index(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO, index="")
    report = whole(source, tmp_path / "out")
    assert made(tmp_path / "out") == {"a": A, "b": B}
    assert "there is no index: its 2 files are complete by the numbers in their names" in report.notes


def test_one_of_several_files_is_noted(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    name = next(iter(TWO))
    report = whole(source / name, tmp_path / "out")
    assert made(tmp_path / "out") == {"a": A}
    assert f"{name} is one of 2 files by its name: what the others hold is not read" in report.notes


def test_safetensors_come_before_it(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", {"pytorch_model.bin": {"a": A}}, index="")
    write_safetensors(source / "model.safetensors", {"b": B})
    report = whole(source, tmp_path / "out")
    assert made(tmp_path / "out") == {"b": B}
    assert "beside its .safetensors files, so ignored: pytorch_model.bin" in report.notes


def test_rank_folders_come_before_it(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    (source / "rank_0").mkdir()
    write_safetensors(source / "rank_0/net.safetensors", {"b": B})
    convert(build_request(source=str(source), target=str(tmp_path / "out")))
    assert read_rank(tmp_path / "out", 0) == {"b": B}


def test_files_beside_the_indexed_ones_are_noted(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    (source / "pytorch_model_1.bin").write_bytes(state_dict_file({"a": B}))
    report = whole(source, tmp_path / "out")
    assert ("beside the files of the checkpoint, and not in its index, so ignored: pytorch_model_1.bin") in report.notes


# ---- what its index is compared with ----


def without_file(source: Path) -> None:
    (source / "pytorch_model-00002-of-00002.bin").unlink()


def without_files(source: Path) -> None:
    for name in TWO:
        (source / name).unlink()


def with_whole(source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(state_dict_file({"a": A}))


def with_another_index(source: Path) -> None:
    shutil.copy(source / INDEX, source / "pytorch_model.bin.index.fp16.json")


def with_both(source: Path) -> None:
    (source / "pytorch_model-00002-of-00002.bin").write_bytes(state_dict_file({"a": A, "b": B}))


def with_index(text: str) -> Callable[[Path], None]:
    def write(source: Path) -> None:
        (source / INDEX).write_text(text)

    return write


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (without_file, "pytorch_model-00002-of-00002.bin is missing, where the index places b"),
        (without_files, "pytorch_model-00001-of-00002.bin is missing, where the index places a"),
        (with_whole, f"has pytorch_model.bin, and beside it {INDEX}, which does not list it"),
        (with_another_index, f"has several indexes, pytorch_model.bin.index.fp16.json, {INDEX}: name the one"),
        (with_both, "parameter 'a' is in pytorch_model-00001-of-00002.bin and in pytorch_model-00002-of-00002.bin"),
        (with_index("[]"), "is not a map of parameters to files"),
        (with_index('{"weight_map": {}}'), "its index names no file"),
        (
            with_index('{"weight_map": {"a": "../pytorch_model.bin"}}'),
            "parameter 'a' in '../pytorch_model.bin', which is not the name of a .bin file beside it",
        ),
        (
            with_index(json.dumps({"weight_map": {"b": next(iter(TWO))}})),
            "parameter 'b' is not in pytorch_model-00001-of-00002.bin, where the index places it",
        ),
    ],
)
def test_what_is_wrong_is_told(harm: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    harm(source)
    assert message in refusal(source)


def test_some_of_several_files_without_their_index_are_no_checkpoint(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO, index="")
    without_file(source)
    assert (
        f"has 1 of 2 files that number themselves, and no index ({INDEX}); missing: pytorch_model-00002-of-00002.bin"
    ) in refusal(source)


def test_two_models_are_not_chosen_from(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", {name: {"a": A} for name in ("pytorch_model.bin", "pytorch_model.fp16.bin")})
    (source / INDEX).unlink()
    assert refusal(source) == (
        f"{source}: has pytorch_model.bin, pytorch_model.fp16.bin: name the one that is meant "
        f"({source}/pytorch_model.bin)"
    )


def test_files_of_other_names_have_to_be_named_themselves(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", {name: {"a": A} for name in ("ema.pt", "model.pth")}, index="")
    message = "name the file that is meant, if it is one of these: ema.pt, model.pth"
    assert message in refusal(source)
    with pytest.raises(InputError, match=message):
        describe(str(source))


# ---- what is done with it ----


def test_it_becomes_ranks_and_is_compared(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    strategy = str(tmp_path / "strategy.ckpt")
    make_strategy(strategy, like=str(source), data_parallel=1, model_parallel=2, cuts=["a=0", "b=0"])
    request = build_request(
        source=str(source),
        target=str(tmp_path / "out"),
        target_strategy=strategy,
        verify="content",
        format="safetensors",
    )
    convert(request)
    halves = {
        rank: {
            "a": ("Float32", (2, 2), A[2][16 * rank : 16 * rank + 16]),
            "b": ("Float32", (3,), B[2][12 * rank : 12 * rank + 12]),
        }
        for rank in (0, 1)
    }
    assert read_tree(tmp_path / "out") == halves
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT).problems == ()
    assert compare_checkpoints(build_comparison(a=str(source), b=str(tmp_path / "out"))).same
    (tmp_path / "out/rank_1/checkpoint_1.safetensors").unlink()
    report = convert(request)  # goes on
    assert [str(rank.outcome) for rank in report.ranks] == ["resumed", "written"]
    assert read_tree(tmp_path / "out") == halves


def test_a_rank_is_loaded_from_it() -> None:
    loaded = load_rank(TORCH / "nested.pth", root="state_dict", include=["turned", "count"])
    assert {name: np.asarray(array).tolist() for name, array in loaded} == {
        "turned": np.arange(15).reshape(3, 5).T.tolist(),
        "count": 3,
    }


def test_a_description_has_files_or_what_is_to_be_chosen_from(tmp_path: Path) -> None:
    found = describe(str(write_model(tmp_path / "src", TWO)))
    assert (found["kind"], found["index"]) == ("PyTorch checkpoint", INDEX)
    assert [(file["file"], file["parameters"]) for file in found["files"]] == [
        (name, [{"name": key, "dtype": "Float32", "shape": list(contents[key][1])} for key in contents])
        for name, contents in TWO.items()
    ]
    found = describe(str(TORCH / "nested.pth"))
    assert found["kind"] == "PyTorch file"
    assert "state_dict (11 tensors)" in found["has"]
    assert found["note"] == "choose one with root='KEY'"


def test_doctor_needs_no_strategy() -> None:
    diagnosis = diagnose(str(TORCH / "flat.pt"))
    assert diagnosis.fits is True
    assert dict(diagnosis.facts)["checkpoint"].endswith("flat.pt: PyTorch, 1 file, 11 parameters")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source_strategy": str(FIXTURES / "compiled_strategies" / "strategy_4_npus.ckpt")},
            "is a PyTorch checkpoint: its tensors are whole, so leave out 'source_strategy'",
        ),
        (
            {"integrated_save": "yes"},
            "whose tensors are whole, and which is never encrypted: leave out 'integrated_save'",
        ),
        ({"step": "3"}, "is a PyTorch checkpoint, without steps or prefixes: leave out 'step' and 'source_prefix'"),
        ({"source_prefix": "x"}, "without steps or prefixes: leave out"),
        ({"recover": True}, "which has everything once and so nothing to recover from: leave out recover=True"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    assert message in refusal(TORCH / "flat.pt", **options)


def test_other_checkpoints_have_no_root(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": A})
    for source in (tmp_path, tmp_path / "model.safetensors"):
        assert refusal(source, root="model") == (
            f"{source}: its tensors are not in trees of dicts, as PyTorch saves them in files that end in .pt, .pth or "
            ".bin: leave out 'root'"
        )


def as_bin(family: Family, directory: Path) -> Path:
    """A family's directory, its weights in two files that torch would write."""
    contents = directory_contents(family.hf)
    names = list(contents)
    files = {
        name: {key: contents[key] for key in part}
        for name, part in zip(TWO, (names[: len(names) // 2], names[len(names) // 2 :]), strict=True)
    }
    write_model(directory, files)
    for path in family.hf.iterdir():
        if not path.name.startswith("model"):
            shutil.copy(path, directory / path.name)
    return directory


def test_by_a_preset_with_the_configuration_beside_it(tmp_path: Path) -> None:
    source = as_bin(LLAMA, tmp_path / "src")
    options: dict[str, Any] = {"preset": LLAMA.case["preset"], "switch": switches_of(LLAMA, to_mf=True)}
    convert(build_request(source=str(source), target=str(tmp_path / "out"), verify="content", **options))
    convert(build_request(source=str(LLAMA.hf), target=str(tmp_path / "want"), **options))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "want")


def test_one_file_has_the_configuration_beside_it_as_well(tmp_path: Path) -> None:
    source = as_bin(LLAMA, tmp_path / "src")
    (source / "all.pt").write_bytes(state_dict_file(directory_contents(LLAMA.hf)))
    options: dict[str, Any] = {"preset": LLAMA.case["preset"], "switch": switches_of(LLAMA, to_mf=True)}
    convert(build_request(source=str(source / "all.pt"), target=str(tmp_path / "out"), **options))
    convert(build_request(source=str(LLAMA.hf), target=str(tmp_path / "want"), **options))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "want")


def test_a_complete_directory_is_modelled_on_it(tmp_path: Path) -> None:
    source = as_bin(LLAMA, tmp_path / "src")
    report = whole(source, tmp_path / "out", like=str(source), max_shard_size="16KB")
    assert directory_contents(tmp_path / "out") == directory_contents(LLAMA.hf)
    assert (tmp_path / "out/config.json").read_bytes() == (LLAMA.hf / "config.json").read_bytes()
    assert (tmp_path / "out/tokenizer.json").exists()
    assert report.notes[0] == (
        f"like {source}: config.json, generation_config.json, tokenizer.json, tokenizer_config.json copied, dtype "
        f"bfloat16; 21 tensors have its names, shapes and dtypes; not copied: {INDEX}"
    )


def test_from_a_remote_storage(tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    files = MemoryFileSystem()
    put_tree(files, source, "/torch-source/model")
    whole("memory://torch-source/model", tmp_path / "out", verify="content")
    files.rm("/torch-source", recursive=True)
    assert made(tmp_path / "out") == {"a": A, "b": B}

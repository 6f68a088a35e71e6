"""`.metadata` that torch wrote, and everything that it refuses."""

import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from reshard.core.errors import StrategyError
from reshard.core.layouts.dcp.metadata import DcpMetadata, parse_dcp_metadata
from reshard.core.tensor.slices import TensorSlice
from tests.support.dcp import CASES, DCP_FIXTURES, FOREIGN, MODELS, DcpCase, dcp_case

UNEVEN = dcp_case("fsdp_uneven")
EMBEDDING = "model.embed.weight"


def parsed(case: DcpCase) -> DcpMetadata:
    return parse_dcp_metadata((case.source / ".metadata").read_bytes(), "somewhere")


def place(metadata: Any, name: str, number: int = 0) -> Any:
    """The storage of a chunk of a tensor."""
    return [each for index, each in metadata.storage_data.items() if index.fqn == name][number]


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("case_hf") and name != FOREIGN])
def test_tensors_and_objects_are_those_that_torch_saved(name: str) -> None:
    case = DcpCase(DCP_FIXTURES / name)
    found = parsed(case)
    whole = case.whole
    assert found.tensors.keys() >= whole.keys()
    for tensor in found.tensors.values():
        assert sum(chunk.box.size for chunk in tensor.chunks) == TensorSlice.whole(tensor.shape).size
        if tensor.name in whole:
            dtype, shape, _ = whole[tensor.name]
            assert (tensor.dtype and tensor.dtype.name, tensor.shape) == (dtype, shape)


def test_shards_are_uneven_boxes_in_files() -> None:
    tensor = parsed(UNEVEN).tensors[EMBEDDING]
    assert [(chunk.box.start[0], chunk.box.shape[0]) for chunk in tensor.chunks] == [(0, 3), (3, 3), (6, 3), (9, 2)]
    assert [chunk.place.path for chunk in tensor.chunks] == [f"__{rank}_0.distcp" for rank in range(4)]


def test_objects_are_listed_by_name() -> None:
    found = parsed(dcp_case("single"))
    assert sorted(found.objects) == ["note", "step"]
    assert found.objects["step"].path == "__0_0.distcp"


def _set(name: str, value: object) -> Any:
    return lambda metadata: setattr(place(metadata, EMBEDDING), name, value)


def _tensor(metadata: Any) -> Any:
    return metadata.state_dict_metadata[EMBEDDING]


def _first(metadata: Any) -> Any:
    return _tensor(metadata).chunks[0]


def _drop_place(metadata: Any) -> None:
    index = next(index for index in metadata.storage_data if index.fqn == EMBEDDING)
    del metadata.storage_data[index]


def _many(chunk: Any) -> None:
    chunk.__dict__.update({f"x{number}": 0 for number in range(64)})


def _share_chunks(metadata: Any) -> None:
    """Eight tensors have one list of very many chunks."""
    tensor, chunk = _tensor(metadata), _first(metadata)
    tensor.chunks, chunk.sizes = [chunk] * 5000, tensor.size
    index, value = next((index, value) for index, value in metadata.storage_data.items() if index.fqn == EMBEDDING)
    metadata.state_dict_metadata = {f"w{number}": tensor for number in range(8)}
    metadata.storage_data = {}
    for name in metadata.state_dict_metadata:
        other = type(index)()
        other.__dict__.update(index.__dict__ | {"fqn": name})
        metadata.storage_data[other] = value


def _two_indexes(metadata: Any) -> None:
    index, value = next((index, value) for index, value in metadata.storage_data.items() if index.fqn == EMBEDDING)
    other = type(index)()
    other.__dict__.update({name: each for name, each in index.__dict__.items() if name != "arguments"})
    metadata.storage_data[other] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("relative_path", "../secret"), r"places parameter 'model.embed.weight' in '../secret', which is not a"),
        (_set("relative_path", "/etc/passwd"), "'/etc/passwd', which is not a file in the directory"),
        (_set("relative_path", "a\\b"), "which is not a file in the directory"),
        (_set("relative_path", "a//b"), "which is not a file in the directory"),
        (_set("relative_path", "."), "which is not a file in the directory"),
        (_set("relative_path", ""), "which is not a file in the directory"),
        (_set("relative_path", 3), "in 'int', which is not a file in the directory"),
        (_set("offset", -1), "gives no offset and length"),
        (_set("length", 2**64), "gives no offset and length"),
        (_set("offset", True), "gives no offset and length"),
        (_set("transform_descriptors", ["zstd"]), r"was transformed when it was saved \(transform_descriptors\)"),
        (_drop_place, r"says nowhere which file holds its chunk \[0:3, 0:6\]"),
        (_two_indexes, "gives two places for one chunk"),
        (lambda each: _tensor(each).chunks.pop(), r"places chunks that it does not list: \[9, 0\]"),
        (lambda each: setattr(_first(each).sizes, "arguments", ((4, 6),)), r"shards overlap: element \[3, 0\]"),
        (
            lambda each: setattr(_first(each).sizes, "arguments", ((2, 6),)),
            r"incomplete: element \[2, 0\] of \[11, 6\]",
        ),
        (
            lambda each: setattr(_first(each).sizes, "arguments", ((2,),)),
            "a chunk has 2 offsets and 1 sizes, the tensor 2 axes",
        ),
        (lambda each: setattr(_first(each).sizes, "arguments", ((-2, 6),)), "has no sizes of parameter"),
        (lambda each: setattr(_tensor(each).size, "arguments", ((2**40, 2**40),)), "too large"),
        (lambda each: setattr(_tensor(each).size, "arguments", ((1,) * 33,)), "has 33 axes, reshard allows 32"),
        (lambda each: _many(_first(each)), "a ChunkStorageMetadata without attributes"),
        (_share_chunks, r"lists more chunks than its \d+ bytes can describe"),
        (
            lambda each: each.planner_data.update({EMBEDDING: ("model", "embe\x64.weights")}),
            "'model.embed.weights': damaged",
        ),
        (lambda each: setattr(_tensor(each), "chunks", None), "lists no chunks"),
        (lambda each: setattr(_tensor(each), "chunks", [None]), "has a NoneType where a ChunkStorageMetadata belongs"),
        (lambda each: setattr(_tensor(each), "properties", None), "has a tensor without properties"),
        (lambda each: each.state_dict_metadata.clear(), "places parameters that it does not list"),
        (lambda each: (each.state_dict_metadata.clear(), each.storage_data.clear()), "lists no tensor"),
        (lambda each: setattr(each, "storage_data", None), "has no storage_data"),
        (lambda each: each.state_dict_metadata.update({7: _tensor(each)}), "by something that is not text"),
    ],
)
def test_what_contradicts_itself_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    case = UNEVEN.copied(tmp_path / "case")
    case.change_metadata(change)
    with pytest.raises(StrategyError, match=message) as refused:
        parsed(case)
    assert str(refused.value).startswith("somewhere: ")


def test_code_in_the_metadata_is_not_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {touched}",)

    case = UNEVEN.copied(tmp_path / "case")
    case.change_metadata(lambda metadata: setattr(metadata, "planner_data", Hostile()))
    with pytest.raises(StrategyError, match=r"at byte \d+: wants 'posix.system', which no checkpoint needs"):
        parsed(case)
    assert not touched.exists()


def test_other_pickles_are_refused() -> None:
    for value in (None, {"state_dict": 1}, [1, 2]):
        with pytest.raises(StrategyError, match="where a Metadata belongs"):
            parse_dcp_metadata(pickle.dumps(value), "somewhere")
    with pytest.raises(StrategyError, match="somewhere: is not the metadata of a DCP checkpoint: at byte 0"):
        parse_dcp_metadata(b"{}", "somewhere")


@pytest.mark.parametrize("package", ["core.distributed_checkpoint", "core.checkpoint"])
def test_hyper_parallel_s_classes_are_read(package: str) -> None:
    data = hyper_metadata(f"hyper_parallel.{package}", {"w": [(0, 2), (2, 3)]})
    tensor = parse_dcp_metadata(data, "somewhere").tensors["w"]
    assert tensor.shape == (5,)
    assert tensor.dtype is not None
    assert tensor.dtype.name == "Float32"
    assert [(chunk.place.path, chunk.place.length, chunk.place.key) for chunk in tensor.chunks] == [
        ("_rank0_.safetensors", -1, "w"),
        ("_rank1_.safetensors", -1, "w"),
    ]


def hyper_metadata(package: str, tensors: dict[str, list[tuple[int, int]]]) -> bytes:
    """Metadata of hyper_parallel: vectors in pieces of (start, length), the first of rank 0."""
    names = (*MODELS, "StorageInfo")
    modules: dict[str, Any] = {}
    parts = package.split(".")
    for count in range(1, len(parts) + 1):
        modules[".".join(parts[:count])] = types.ModuleType(parts[count - 1])
    models = modules[f"{package}.metadata"] = types.ModuleType("metadata")
    storage = modules[f"{package}.storage"] = types.ModuleType("storage")
    for name in names:
        module = storage if name == "StorageInfo" else models
        qualified = f"{package}.{module.__name__}"
        setattr(module, name, type(name, (), {"__module__": qualified, "__init__": _keep}))
    described, places = {}, {}
    for name, pieces in tensors.items():
        chunks = [models.ChunkStorageMetadata(offsets=(start,), sizes=(length,)) for start, length in pieces]
        described[name] = models.TensorStorageMetadata(
            properties=models.TensorProperties(dtype="Float32", requires_grad=False, memory_format=None),
            size=(sum(length for _, length in pieces),),
            chunks=chunks,
        )
        for rank, (start, _) in enumerate(pieces):
            index = models.MetadataIndex(fqn=name, offset=(start,), index=None)
            path = f"_rank{rank}_.safetensors"
            places[index] = storage.StorageInfo(relative_path=path, offset=0, length=-1, tensor_key=None)
    with mock.patch.dict(sys.modules, modules):
        return pickle.dumps(
            models.Metadata(state_dict_metadata=described, planner_data=None, storage_data=places, version="1.0")
        )


def _keep(self: Any, **attributes: object) -> None:
    self.__dict__.update(attributes)

"""Files of PyTorch that are refused, each with what it has and what to do."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError
from reshard.core.layouts.survey import find_steps
from reshard.core.request.conversion import build_request
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.pickled import PersistentId
from reshard.core.source.opening import open_source
from tests.support.checkpoints import Contents, read_rank
from tests.support.dcp import archive
from tests.support.fsdp import fsdp_case
from tests.support.places import FIXTURES
from tests.support.torch_files import state_dict_file

TORCH = FIXTURES / "torch"
W: Contents = {"w": ("Float32", (3,), bytes(range(12)))}


def refusal(source: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        open_source(SourceRequest.model_validate({"source": str(source)} | options))
    message = str(caught.value)
    assert message.startswith(f"{source}: ")
    return message.removeprefix(f"{source}: ")


def saved(tmp_path: Path, data: bytes, name: str = "model.pt") -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


def pickled(tmp_path: Path, value: object) -> Path:
    """A file whose tree is pickled by Python."""
    return saved(tmp_path, archive({"data.pkl": pickle.dumps(value, 2), "byteorder": b"little", "version": b"3\n"}))


MODULE = (
    "which is not data and was not run; load it in PyTorch, and save its tensors with torch.save(module.state_dict(), "
    "FILE)"
)
UNREAD = "which reshard does not read; save what its"
OF_TORCH = {
    "module.pt": f"record 'module/data.pkl': has a whole module, '__main__.Net', {MODULE}",
    "legacy.pt": "is saved in PyTorch's format before 1.6, or is a plain pickle; load it in PyTorch and save it again: "
    "torch.save(torch.load(FILE), NEW_FILE)",
    "script.pt": "is a TorchScript program, not a checkpoint; save its state_dict with torch.save",
    "quantized.pt": f"'w' has a quantized tensor (torch._utils._rebuild_qtensor), {UNREAD} dequantize() gives",
    "sparse.pt": f"'w' has a sparse tensor (torch._utils._rebuild_sparse_tensor), {UNREAD} to_dense() gives",
    "sparse_rows.pt": f"'w' has a sparse tensor (torch._utils._rebuild_sparse_tensor), {UNREAD} to_dense() gives",
    "meta.pt": "'w' has a tensor on the device 'meta', without values (torch._utils._rebuild_meta_tensor_no_storage), "
    "which reshard does not read; save one that has some",
    "ragged.pt": f"'w' has a nested tensor (torch._utils._rebuild_nested_tensor), {UNREAD} unbind() gives",
    "conjugated.pt": "record 'conjugated/data.pkl': at ['w']: has a tensor whose stored bytes are conjugated or "
    "negated; save it resolved",
}
"""Files that torch 2.13 wrote."""


@pytest.mark.parametrize(("name", "message"), OF_TORCH.items(), ids=OF_TORCH)
def test_what_torch_saves_beside_plain_tensors(name: str, message: str) -> None:
    assert refusal(TORCH / name) == message


def test_a_tensor_of_one_rank(tmp_path: Path) -> None:
    message = refusal(saved(tmp_path, fsdp_case("fsdp1").file(0).read_bytes()))
    assert "has a tensor of the class 'torch.distributed.tensor.DTensor', of which this is one rank's part; " in message
    assert message.endswith("name the directory with the files of all ranks, or save what its full_tensor() gives")


def test_complex_numbers_are_left_to_who_can_hold_them(tmp_path: Path) -> None:
    request = build_request(source=str(TORCH / "complex.pt"), target=str(tmp_path / "out"))
    with pytest.raises(InputError, match="parameter 'w' has dtype C64, which reshard cannot convert"):
        convert(request)


def test_a_module_within_the_dict_that_is_meant() -> None:
    assert refusal(TORCH / "nested.pth", root="net") == (
        "at net: holds an object of '__main__.Net', not a dict of tensors; it has state_dict (11 tensors), "
        "optimizer_states (6 tensors), epoch, pytorch-lightning_version, callbacks, hyper_parameters, net: choose one "
        "with root='state_dict'"
    )


class Foreign:
    """A class that is not data."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "holds a list, not a dict of tensors; save model.state_dict()"),
        (None, "holds a NoneType, not a dict of tensors"),
        (Foreign(), f"record 'archive/data.pkl': has '{__name__}.Foreign', which is not data and was not run"),
        ({}, "has no tensors"),
        ({"step": 3}, "has no tensors; it has step"),
        ({"w": Foreign()}, f"'w' has '{__name__}.Foreign', which is not data and was not run; save the checkpoint"),
        ({"w": os.system}, f"'w' has '{os.system.__module__}.system', which is not data and was not run"),
        ({3: 1}, "has the key 3, which is not the name of a tensor"),
    ],
)
def test_trees_without_a_state_dict(value: object, message: str, tmp_path: Path) -> None:
    assert refusal(pickled(tmp_path, value)).startswith(message)


@pytest.mark.parametrize(
    ("wrapped", "root", "message"),
    [
        (lambda w: {"w": w["w"], "ema": w}, "", "has tensors in dicts or lists in it; it has ema (1 tensor), w (1 te"),
        (
            lambda w: {"model": {"a": w}},
            "model",
            "at model: has tensors in dicts or lists in it; it has model.a (1 ten",
        ),
        (lambda w: {"model": w}, "modle", "has no 'modle'; it has model (1 tensor): choose one with root='model'"),
        (lambda w: {"model": w, "b": 3}, "b", "at b: holds a int, not a dict of tensors; it has model (1 tensor), b"),
        (lambda w: {"a.b": w, "a": {"b": w}}, "a.b", "several keys are 'a.b': 'a.b', 'a'.'b'; save the one that is"),
        (lambda w: {"list": [w["w"]]}, "", "has tensors in dicts or lists in it; it has list (1 tensor)"),
        (lambda w: {"m": {1: w["w"]}}, "m", "at m: has the key 1, which is not the name of a tensor"),
        (lambda w: w["w"], "", "holds a tensor, not a dict of tensors; save model.state_dict()"),
        (lambda w: w, "w", "at w: holds a tensor, not a dict of tensors; it has w (1 tensor)"),
    ],
)
def test_dicts_in_trees(wrapped: Any, root: str, message: str, tmp_path: Path) -> None:
    source = saved(tmp_path, state_dict_file(W, wrapped))
    assert refusal(source, root=root).startswith(message)


def test_a_storage_without_a_tensor(tmp_path: Path) -> None:
    source = saved(tmp_path, state_dict_file(W, lambda w: w | {"storage": PersistentId(("storage",))}))
    assert refusal(source) == "'storage' has a storage that belongs to no tensor; save tensors instead"


def test_of_several_dicts_none_is_suggested(tmp_path: Path) -> None:
    for name, tree in {"a.pt": lambda w: {"w": w["w"], "ema": w}, "b.pt": lambda w: {"model": w, "ema": w}}.items():
        assert refusal(saved(tmp_path, state_dict_file(W, tree), name)).endswith("choose one with root='KEY'")


def test_nothing_of_a_hostile_pickle_is_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {touched}",)

    source = pickled(tmp_path, {"w": Hostile()})
    assert "system', which is not data and was not run" in refusal(source)
    source = pickled(tmp_path, {"model": {}, "other": Hostile()})
    assert refusal(source, root="model") == "at model: has no tensors; it has model, other"
    assert not touched.exists()


def test_objects_beside_the_dict_that_is_meant_stay_records(tmp_path: Path) -> None:
    source = TORCH / "nested.pth"
    assert len(open_source(SourceRequest(source=str(source), root="state_dict")).catalog.records[0].index.entries) == 11


# ---- damage ----


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


def records_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name.removeprefix("archive/"): file.read(name) for name in file.namelist()}


def test_sizes_that_lie(tmp_path: Path) -> None:
    data = state_dict_file(W)
    files = records_of(data)
    longer = files | {"data.pkl": changed(files["data.pkl"], b"K\x03\x85", b"K\x09\x85")}
    assert "its tensor ends after its storage of 12 bytes: damaged" in refusal(saved(tmp_path, archive(longer)))
    shorter = files | {"data/0": bytes(8)}
    assert "its storage is said to have 12 bytes, it has 8" in refusal(saved(tmp_path, archive(shorter)))
    without = {name: content for name, content in files.items() if name != "data/0"}
    assert "in the storage '0', which the file does not have: damaged" in refusal(saved(tmp_path, archive(without)))
    packed = archive(files, compression=zipfile.ZIP_DEFLATED)
    assert "is compressed or encrypted, which torch.save never does" in refusal(saved(tmp_path, packed))
    big = archive(files | {"byteorder": b"big"})
    assert "is of byte order 'big', reshard reads little" in refusal(saved(tmp_path, big))
    assert "has no directory at its end: truncated" in refusal(saved(tmp_path, data[:-40]))


def test_a_storage_larger_than_its_tensors(tmp_path: Path) -> None:
    files = records_of(state_dict_file({"w": ("Float32", (6,), bytes(range(24)))}))
    files["data.pkl"] = changed(files["data.pkl"], b"K\x06\x85", b"K\x02\x85")
    source = saved(tmp_path, archive(files))
    [record] = open_source(SourceRequest(source=str(source))).catalog.records.values()
    assert record.index.entries["w"].shape == (2,)


@pytest.mark.parametrize("layout", ["unified", "ranks"])
def test_a_changed_value_is_found(layout: str, tmp_path: Path) -> None:
    data = state_dict_file(W)
    source = saved(tmp_path, changed(data, bytes(range(12)), bytes(12)))
    request = build_request(source=str(source), target=str(tmp_path / "out"), layout=layout)
    with pytest.raises(InputError, match=r"model\.pt: parameter 'w': its 12 bytes at \d+ have the CRC-32"):
        convert(request)


def test_a_changed_value_of_a_tensor_with_two_names_is_found(tmp_path: Path) -> None:
    data = state_dict_file(W, lambda w: w | {"tied": w["w"]})
    source = saved(tmp_path, changed(data, bytes(range(12)), bytes(12)))
    assert "its 12 bytes at" in refusal(source)


def test_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    source = saved(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "pytorch_model.bin")
    assert refusal(source) == "is a Git LFS pointer; fetch the file itself (git lfs pull)"


@pytest.mark.parametrize("device", ["cuda:0", "npu:3"])
def test_tensors_of_any_device_are_read(device: str, tmp_path: Path) -> None:
    files = records_of(state_dict_file(W))
    text = b"X" + len(device).to_bytes(4, "little") + device.encode()
    files["data.pkl"] = changed(files["data.pkl"], b"X\x03\0\0\0cpu", text)
    convert(build_request(source=str(saved(tmp_path, archive(files))), target=str(tmp_path / "out")))
    assert read_rank(tmp_path / "out", 0) == W


def test_it_is_not_the_directory_of_a_training(tmp_path: Path) -> None:
    source = saved(tmp_path, state_dict_file(W))
    with pytest.raises(CatalogError, match="is one PyTorch checkpoint, and has no steps: convert it with"):
        find_steps(str(source))


# ---- files of several ranks ----


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("consolidated.00.pth", "consolidated.01.pth"),
        ("model_rank_0.pt", "model_rank_1.pt"),
        ("rank0.bin", "rank12.bin"),
        ("mp-rank-00-of-02.pt", "mp-rank-01-of-02.pt"),
    ],
)
def test_one_of_several_ranks_is_refused(one: str, other: str, tmp_path: Path) -> None:
    source = saved(tmp_path, state_dict_file(W), one)
    open_source(SourceRequest(source=str(source)))
    saved(tmp_path, state_dict_file(W), other)
    assert refusal(source) == (
        f"is one rank's of 2 files by its name, with {other} beside it: its tensors may be slices, and how they are "
        "cut is not in it. Put the model together with the program that saved it, and convert that"
    )


def test_files_of_other_libraries_are_called_by_their_names(tmp_path: Path) -> None:
    source = saved(tmp_path, state_dict_file(W), "model_optim_rng.pt")
    assert "is a part of a Megatron checkpoint" in refusal(source)

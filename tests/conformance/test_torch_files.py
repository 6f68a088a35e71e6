"""What torch.save writes is read, and what is written torch.load reads."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.core.errors import CheckpointError
from reshard.core.files.model import OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.tensor.dtypes import DType, dtype_from_name, foreign_dtype
from tests.conformance.dcp import PYTHON
from tests.conformance.mindspore_process import JudgeProcess
from tests.support.torch_files import described, read, tensors_of, written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="PyTorch is not installed: `make conformance` does it"),
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    with JudgeProcess(tmp_path_factory.mktemp("judge") / "log", PYTHON, "torch_files_judge.py") as judge:
        yield judge


def test_what_torch_saves_is_read(judge: JudgeProcess, tmp_path: Path) -> None:
    tree = judge.ask("save", directory=str(tmp_path))["tree"]
    for protocol in (2, 4, 5):
        path = tmp_path / f"protocol{protocol}.pt"
        data, file = path.read_bytes(), read(path)
        assert described(file.root, data) == tree
        crcs = [tensor.crc for tensor in tensors_of(file.root) if tensor.crc]
        for stored in crcs:
            assert zlib.crc32(data[stored.extent.offset :][: stored.extent.length]) == stored.crc
        # an empty storage has none
        assert {crc.extent for crc in crcs} == {each for each in file.storages if each.length}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sparse", "at ['w']: has a sparse tensor (torch._utils._rebuild_sparse_tensor)"),
        ("quantized", "at ['w']: has a quantized tensor (torch._utils._rebuild_qtensor)"),
        ("lazy", "at ['w']: has a tensor whose stored bytes are conjugated or negated"),
        ("meta", "at ['w']: has a tensor on the device 'meta', without values"),
        ("storage", "at ['w']: has a storage that belongs to no tensor"),
        ("old", "is saved in PyTorch's format before 1.6"),
        ("program", "is a TorchScript program"),
    ],
)
def test_what_is_no_plain_tensor_is_refused(judge: JudgeProcess, tmp_path: Path, kind: str, message: str) -> None:
    path = judge.ask("refused", path=str(tmp_path))[kind]
    with pytest.raises(CheckpointError) as refusal:
        read(Path(path))
    assert str(refusal.value).startswith(f"{path}: ")
    assert message in str(refusal.value)


def _entries() -> dict[str, tuple[OutputEntry, bytes]]:
    dtypes: list[DType] = [
        *map(dtype_from_name, ("Float32", "BFloat16", "Float16", "Bool", "UInt16", "Int64", "UInt8")),
        foreign_dtype("F8_E4M3", 1, 1),
    ]
    found = {}
    for dtype in dtypes:
        for shape in ((2, 3), (), (0, 4), (5,)):
            entry = OutputEntry(f"{dtype}{shape}", dtype, shape)
            found[entry.name] = entry, bytes(number % 2 for number in range(entry.size_bytes))
    return found


def test_torch_loads_what_is_written(judge: JudgeProcess, tmp_path: Path) -> None:
    entries = _entries()
    first = next(iter(entries))
    root = {
        "z first": [1, -5, 2**40, 2.5, None, True, ("a", ()), [], {}],
        "model": PickledObject(
            Global("collections", "OrderedDict"), (), None, Pairs((name, TensorPlace(name)) for name in entries)
        ),
        "reshaped": TensorPlace(first, (3, 1, 2)),
        (Global("torch", "bfloat16"), Global("torch", "float32")): "ünï",
        7: b"\x00\xff",
    }
    path = tmp_path / "weights.pt"
    path.write_bytes(written(root, entries, "weights"))
    expected = described(read(path).root, path.read_bytes())
    for weights_only in (True, False):
        assert judge.ask("load", path=str(path), weights_only=weights_only)["tree"] == expected
    assert expected[1][1][1][1][0][1] == ["tensor", "float32", [2, 3], entries[first][1].hex()]


def test_torch_loads_a_namespace(judge: JudgeProcess, tmp_path: Path) -> None:
    namespace = PickledObject(Global("argparse", "Namespace"), (), Pairs([("layers", 2), ("lr", 1e-4)]))
    path = tmp_path / "args.pt"
    path.write_bytes(written({"args": namespace, "iteration": 3}, {}))
    loaded = judge.ask("load", path=str(path), weights_only=False)["tree"]
    assert loaded == described(read(path).root, b"")
    assert loaded[1][0][1][:2] == ["object", "argparse.Namespace"]

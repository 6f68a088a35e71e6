"""Whole files of torch.save as reshard lays them out: zips that Python reads, trees that come back."""

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files.model import Content, OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace, TensorValue, plan_torch_file
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.tensor.dtypes import INT4, TEXT, dtype_from_name, foreign_dtype
from reshard.core.tensor.slices import Shape
from tests.support.torch_files import content_of, items_of, read, written

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=9)
TREES = st.recursive(
    SCALARS | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(st.tuples(st.text(), inner), unique_by=lambda pair: pair[0]).map(Pairs)
    ),
    max_leaves=20,
)


def entry(name: str, dtype: str = "Float32", shape: Shape = (2, 3)) -> OutputEntry:
    return OutputEntry(name, dtype_from_name(dtype), shape)


def contents_of(*entries: OutputEntry) -> dict[str, tuple[OutputEntry, bytes]]:
    return {
        each.name: (each, bytes((number + len(each.name)) % 251 for number in range(each.size_bytes)))
        for each in entries
    }


@given(TREES)
def test_a_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, root: object) -> None:
    path = tmp_path_factory.mktemp("tree") / "x.pt"
    path.write_bytes(written(root, {}))
    assert read(path).root == root


def test_tensors_come_back(tmp_path: Path) -> None:
    entries = contents_of(
        entry("a"),
        entry("b", "BFloat16", (0, 4)),
        entry("c", "Int64", ()),
        entry("d", "UInt16", (3,)),
        OutputEntry("e", foreign_dtype("F8_E4M3", 1, 1), (5,)),
    )
    root = {"model": [TensorPlace(name) for name in entries], "seen as": TensorPlace("a", (3, 1, 2))}
    data = written(root, entries, "model_optim_rng")
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    tensors, seen = items_of(read(path).root).values()
    for tensor, (each, content) in zip(tensors, entries.values(), strict=True):
        assert isinstance(tensor, StoredTensor)
        assert (tensor.dtype, tensor.shape) == (each.dtype, each.shape)
        assert content_of(data, tensor) == content
    assert seen.shape == (3, 1, 2)
    assert seen.extent == tensors[0].extent
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        names = ["data.pkl", ".format_version", ".storage_alignment", "byteorder"]
        names += [*(f"data/{number}" for number in range(5)), "version"]
        assert file.namelist() == [f"model_optim_rng/{name}" for name in names]
    assert all(tensor.extent.offset % 64 == 0 for tensor in tensors)


def test_numbers_are_tensors_of_known_bytes(tmp_path: Path) -> None:
    step = TensorValue(dtype_from_name("Float32"), (), b"\0\0\x80\x40")
    root = {"step": step, "param": TensorPlace("a"), "again": [step]}
    (tmp_path / "x.pt").write_bytes(written(root, contents_of(entry("a"))))
    found = dict(items_of(read(tmp_path / "x.pt").root))
    assert isinstance(found["step"], StoredTensor)
    assert found["step"].extent is not None
    assert found["step"].extent.offset % 64 == 0
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None
        assert [archive.read(f"archive/data/{key}") for key in (1, 2)] == [step.data] * 2


def test_objects_come_back(tmp_path: Path) -> None:
    namespace = PickledObject(Global("argparse", "Namespace"), (), Pairs([("lr", 1e-4), ("names", ("a", None))]))
    made = PickledObject(Global("x", "Made"), (1,), None, Pairs([("a", 1)]), [2])
    root: dict[object, object] = {
        "args": {"namespace": namespace, "made": made, "name": Global("x", "function")},
        3: Global("torch", "int8"),
    }
    path = tmp_path / "x.pt"
    path.write_bytes(written(root, {}))
    found = items_of(read(path, "args").root)
    assert items_of(found.pop("args")) == root["args"]
    assert found == {3: Global("torch", "int8")}


def test_sums_are_in_order(tmp_path: Path) -> None:
    entries = [entry("a"), entry("b", shape=(0,)), entry("c")]
    places = plan_torch_file([TensorPlace(each.name) for each in entries], entries, "x").sum_places
    assert [place.name for place in places] == ["a", "b", "c", "a", "b", "c"]
    assert [place.offset for place in places] == sorted(place.offset for place in places)


def test_records_beyond_four_gigabytes(tmp_path: Path) -> None:
    entries = [entry("large", "UInt8", (2**32 + 5,)), entry("small"), entry("large too", "UInt8", (2**32 - 1,))]
    plan = plan_torch_file([TensorPlace(each.name) for each in entries], entries, "x")
    path = tmp_path / "x.pt"
    with path.open("wb") as file:  # with holes in place of contents
        for segment in plan.segments:
            if isinstance(segment, Content):
                file.seek(segment.stop - segment.start, io.SEEK_CUR)
            else:
                file.write(segment)
        assert file.tell() == plan.size_bytes
    with zipfile.ZipFile(path) as archive:
        assert [archive.getinfo(f"x/data/{n}").file_size for n in range(3)] == [each.size_bytes for each in entries]
        assert archive.read("x/version") == b"3\n"
    tensors = read(path).root
    assert [tensor.shape for tensor in tensors] == [each.shape for each in entries]  # type: ignore[attr-defined]
    assert [tensor.extent.offset % 64 for tensor in tensors] == [0, 0, 0]  # type: ignore[attr-defined]


def test_as_many_records_as_a_field_of_16_bits_cannot_count(tmp_path: Path) -> None:
    entries = contents_of(*(entry(str(number), "UInt8", (1,)) for number in range(66_000)))
    plan = plan_torch_file([TensorPlace(name) for name in entries], [each for each, _ in entries.values()], "x")
    path = tmp_path / "x.pt"
    path.write_bytes(b"".join(bytes(1) if isinstance(segment, Content) else segment for segment in plan.segments))
    with zipfile.ZipFile(path) as archive:
        assert len(archive.infolist()) == 66_005
    assert len(read(path).storages) == 66_000


@pytest.mark.parametrize("dtype", [INT4, TEXT, foreign_dtype("F4", 2, 1)])
def test_dtypes_that_torch_lacks_are_refused(dtype: object) -> None:
    with pytest.raises(CheckpointError, match=r"parameter 'w' is a \w+, for which PyTorch has no dtype"):
        plan_torch_file(TensorPlace("w"), [OutputEntry("w", dtype, (2,))], "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("root", "names", "message"),
    [
        (TensorPlace("b"), ("a",), "the tree has a place for 'b', which is no entry"),
        ([], ("a", "b"), r"the tree has no place for \['a', 'b'\]"),
        ([TensorPlace("a")], ("a", "a"), "two entries have the same name"),
        (TensorPlace("a", (7,)), ("a",), r"'a' has the shape \(2, 3\), which cannot become \(7,\)"),
    ],
)
def test_trees_and_entries_have_to_agree(root: object, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_torch_file(root, [entry(name) for name in names], "x")

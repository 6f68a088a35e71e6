"""Strided tensors of a file, shown in C order."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.checkpoint import dense_view
from reshard.core.checkpoint.dense_view import dense, place_strided
from reshard.core.files.model import CheckpointFormat, FileIndex, StridedContent, TensorEntry
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import Extent

INT16 = dtype_from_name("Int16")
FILE = np.arange(400, dtype="<i2").tobytes() + b"odd"
ELEMENTS = np.frombuffer(FILE, "<i2", 400)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """A view of the file's elements: sliced, transposed, expanded."""
    array = ELEMENTS.reshape(draw(st.sampled_from([(400,), (20, 20), (4, 10, 10)])))
    steps = tuple(slice(draw(st.integers(0, 2)), None, draw(st.integers(1, 3))) for _ in array.shape)
    array = array[steps].transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        array = np.broadcast_to(array, (3, *array.shape))
    return array


def file_of(directory: Path, *arrays: np.ndarray) -> tuple[Path, FileIndex]:
    path = directory / "file"
    path.write_bytes(FILE)
    first = ELEMENTS.__array_interface__["data"][0]
    entries = [TensorEntry(str(number), INT16, array.shape, ()) for number, array in enumerate(arrays)]
    strided = {
        str(number): StridedContent(array.__array_interface__["data"][0] - first, array.strides)
        for number, array in enumerate(arrays)
    }
    extents = place_strided(entries, len(FILE))
    placed = {entry.name: TensorEntry(entry.name, INT16, entry.shape, (extents[entry.name],)) for entry in entries}
    return path, FileIndex(CheckpointFormat.SAFETENSORS, len(FILE), placed, strided=strided)


@given(st.lists(views(), min_size=1, max_size=3), st.data())
def test_any_range_is_what_numpy_has(tmp_path_factory, arrays: list[np.ndarray], data: st.DataObject) -> None:
    shared = tmp_path_factory.getbasetemp()
    path, index = file_of(shared, *arrays)
    file = dense(open_source(parse_url(str(path))), index)
    expected = FILE + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    for _ in range(5):
        start = data.draw(st.integers(0, len(expected)))
        stop = data.draw(st.integers(start, len(expected)))
        buffer = bytearray(stop - start)
        file.read_into(start, memoryview(buffer))
        assert bytes(buffer) == expected[start:stop]
        assert file.read_many([(start, stop - start), (0, 3)]) == [expected[start:stop], FILE[:3]]
    file.close()


def test_wide_gaps_are_skipped_and_long_reads_split(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(dense_view, "_READ_BYTES", 64)
    monkeypatch.setattr(dense_view, "_GAP_BYTES", 16)
    array = ELEMENTS.reshape(20, 20).T
    path, index = file_of(tmp_path, array)
    file = dense(open_source(parse_url(str(path))), index)
    assert file.read_many([(len(FILE), 800)]) == [np.ascontiguousarray(array).tobytes()]
    file.close()


def test_a_file_without_strided_tensors_is_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(FILE)
    file = open_source(parse_url(str(tmp_path / "file")))
    entry = TensorEntry("w", INT16, (2,), (Extent(0, 4),))
    assert dense(file, FileIndex(CheckpointFormat.SAFETENSORS, len(FILE), {"w": entry})) is file
    file.close()

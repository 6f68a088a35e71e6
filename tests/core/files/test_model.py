from hypothesis import given
from hypothesis import strategies as st

from reshard.core.files.model import OutputEntry, TensorEntry, text_entry
from reshard.core.tensor.dtypes import MAP_TENSOR, dtype_from_name
from reshard.core.tensor.slices import Extent


def test_sizes_follow_from_dtype_and_shape() -> None:
    assert TensorEntry("w", dtype_from_name("Float32"), (2, 3), (Extent(0, 24),)).size_bytes == 24
    assert TensorEntry("s", dtype_from_name("Int8"), (), (Extent(0, 1),)).size_bytes == 1
    assert TensorEntry("m", MAP_TENSOR, (7,), (Extent(0, 3), Extent(5, 4))).size_bytes == 7
    assert OutputEntry("w", dtype_from_name("BFloat16"), (5,)).size_bytes == 10


def test_texts_take_utf_32_code_units_and_an_empty_one_takes_one() -> None:
    assert text_entry("t", "añ").size_bytes == 8
    assert text_entry("t", "").size_bytes == 4
    assert text_entry("t", "x").extents == ()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_extents_of_a_range_are_those_of_its_bytes(lengths: list[int], drawn: st.DataObject) -> None:
    extents, end = [], 0
    for length in lengths:
        extents.append(Extent(end + 2, length))
        end += length + 2
    places = [extent.offset + byte for extent in extents for byte in range(extent.length)]
    entry = TensorEntry("w", dtype_from_name("Int8"), (len(places),), tuple(extents))
    start = drawn.draw(st.integers(0, len(places) - 1))
    length = drawn.draw(st.integers(1, len(places) - start))
    found = [extent.offset + byte for extent in entry.extents_of(start, length) for byte in range(extent.length)]
    assert found == places[start : start + length]

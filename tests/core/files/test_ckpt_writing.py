import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files import ckpt, ckpt_writing
from reshard.core.files.model import FileIndex, OutputEntry
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, dtype_from_name, dtype_from_safetensors
from tests.support.ckpt_writer import MemoryFile, extents_bytes, filled
from tests.support.places import FIXTURES

FORMATS = FIXTURES / "formats"
TENSOR_DTYPES = [
    "Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64",
    "Float16", "Float32", "Float64", "Bool", "BFloat16", "Int4",
]  # fmt: skip


def read(data: bytes) -> FileIndex:
    return ckpt.read_index(MemoryFile(data))


def content_of(name: str, size_bytes: int) -> bytes:
    return (name.encode() + bytes(range(251))) * (size_bytes // 251 + 1)


names = st.text(min_size=1, max_size=12).filter(lambda name: not any(0xD800 <= ord(c) < 0xE000 for c in name))
tensors = st.builds(
    lambda name, dtype, shape: OutputEntry(name, dtype_from_name(dtype), tuple(shape)),
    names,
    st.sampled_from(TENSOR_DTYPES),
    st.lists(st.integers(0, 5), max_size=3),
)
texts = st.builds(
    lambda name, text: OutputEntry(name, TEXT, (4 * max(1, len(text)),), text),
    names,
    st.text(max_size=20).map(lambda text: text.rstrip("\0")),
)
maps = st.builds(
    lambda name, lengths: OutputEntry(name, MAP_TENSOR, (sum(lengths),), None, tuple(lengths)),
    names,
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
)


@given(
    st.lists(st.one_of(tensors, texts, maps), min_size=1, max_size=8, unique_by=lambda entry: entry.name),
    st.integers(1, 50),
)
def test_what_is_planned_reads_back(entries: list[OutputEntry], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ckpt_writing, "MAX_PIECE_BYTES", piece_bytes)
        plan = ckpt_writing.plan_file(entries)
    sizes = {entry.name: entry.size_bytes for entry in entries}
    data = filled(plan, lambda name: content_of(name, sizes[name])[: sizes[name]])
    assert not any(
        isinstance(a, bytes) and isinstance(b, bytes) for a, b in zip(plan.segments, plan.segments[1:], strict=False)
    )
    index = read(data)
    assert list(index.entries) == [entry.name for entry in entries]
    for entry in entries:
        found = index.entries[entry.name]
        assert (found.dtype, found.shape, found.text) == (entry.dtype, entry.shape, entry.text)
        if entry.text is None:
            assert extents_bytes(data, found.extents) == content_of(entry.name, sizes[entry.name])[: sizes[entry.name]]
        if entry.dtype is MAP_TENSOR:
            assert tuple(extent.length for extent in found.extents) == entry.piece_bytes
        elif entry.text is None:
            assert len(found.extents) == max(1, math.ceil(entry.size_bytes / piece_bytes))


class TestPlan:
    def test_same_bytes_as_mindspore_writes(self) -> None:
        data = (FORMATS / "plain.ckpt").read_bytes()
        index = read(data)
        entries = [OutputEntry(e.name, e.dtype, e.shape, e.text) for e in index.entries.values()]
        plan = ckpt_writing.plan_file(entries)
        assert filled(plan, lambda name: extents_bytes(data, index.entries[name].extents)) == data

    def test_large_parameters_are_split(self) -> None:
        dtype = dtype_from_name("Float32")
        size = 5 << 28
        plan = ckpt_writing.plan_file([OutputEntry("w", dtype, (5, 1 << 26)), OutputEntry("v", dtype, (1 << 27,))])
        contents = [part for part in plan.segments if not isinstance(part, bytes)]
        assert [(part.name, part.start, part.stop) for part in contents] == [
            ("w", 0, 512 << 20),
            ("w", 512 << 20, 1024 << 20),
            ("w", 1024 << 20, size),
            ("v", 0, 512 << 20),
        ]

    def test_nothing_to_write(self) -> None:
        with pytest.raises(CheckpointError, match="has to hold at least one parameter"):
            ckpt_writing.plan_file([])

    def test_a_dtype_of_others(self) -> None:
        with pytest.raises(CheckpointError, match=r"parameter 'w' is a F8_E5M2, which \.ckpt cannot hold"):
            ckpt_writing.plan_file([OutputEntry("w", dtype_from_safetensors("F8_E5M2", 2, 2), (2,))])

    def test_a_name_that_would_not_be_read(self) -> None:
        assert ckpt_writing.plan_file([OutputEntry("n" * 2**16, dtype_from_name("Int8"), ())]).size_bytes > 2**16
        with pytest.raises(CheckpointError, match=f"parameter '{'n' * 40}…': a name of 65537 bytes, more than 65536"):
            ckpt_writing.plan_file([OutputEntry("n" * (2**16 + 1), dtype_from_name("Int8"), ())])

    def test_map_tensor_needs_its_pieces(self) -> None:
        with pytest.raises(ValueError, match=r"pieces .* do not make 7 bytes"):
            ckpt_writing.plan_file([OutputEntry("table", MAP_TENSOR, (7,), None, (3, 3))])

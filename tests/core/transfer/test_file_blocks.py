"""Blocks of a file: every byte once, in order, within the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.files.any_format import plan_file
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat, OutputEntry
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.transfer.file_blocks import file_blocks

FLOAT = dtype_from_name("Float32")
ENTRIES = (
    OutputEntry("a", FLOAT, (3, 50)),
    OutputEntry("empty", FLOAT, (0, 4)),
    OutputEntry("scalar", FLOAT, ()),
    OutputEntry("b", FLOAT, (40, 7)),
)


@given(st.sampled_from(SELF_CONTAINED), st.sampled_from([64, 200, 4096]), st.sampled_from([0, 800, 10_000]))
def test_blocks_cover_the_file(format: CheckpointFormat, block_bytes: int, wide_bytes: int) -> None:
    plan = plan_file(format, ENTRIES)
    blocks = list(file_blocks(plan, ENTRIES, block_bytes, wide=frozenset({"b"}), wide_bytes=wide_bytes))
    assert sum(block.size_bytes for block in blocks) == plan.size_bytes
    elements = dict.fromkeys((entry.name for entry in ENTRIES), 0)
    for block in blocks:
        wide = [chunk for chunk in block.chunks if chunk.size_bytes > block_bytes]
        assert block.size_bytes <= block_bytes or [chunk.name for chunk in wide] == ["b"] == [
            chunk.name for chunk in block.chunks
        ]
        pieces = [(position, len(literal)) for position, literal in block.literals]
        pieces += [(chunk.position, chunk.size_bytes) for chunk in block.chunks]
        end = 0
        for position, length in sorted(pieces):
            assert position == end
            end += length
        assert end == block.size_bytes
        for chunk in block.chunks:
            elements[chunk.name] += chunk.box.size
    assert elements == {"a": 150, "empty": 0, "scalar": 1, "b": 280}


@pytest.mark.parametrize("wide_bytes", [0, 10_000])
def test_a_wide_chunk_is_a_block_of_its_own(wide_bytes: int) -> None:
    plan = plan_file(CheckpointFormat.SAFETENSORS, ENTRIES)
    blocks = file_blocks(plan, ENTRIES, 200, wide=frozenset({"b"}), wide_bytes=wide_bytes)
    sizes = [block.size_bytes for block in blocks if any(chunk.name == "b" for chunk in block.chunks)]
    assert (max(sizes) == 40 * 7 * 4) is bool(wide_bytes)

"""Owners of source shards: the rank to read from, and boxes without an owner."""

from reshard.core.plan.ownership import (
    NO_RANK,
    CopyShards,
    LostBox,
    SourceCopies,
    SourceCopy,
    common_units,
    lacks_shards,
    lost_boxes,
)
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import TensorSlice

ROWS_TWICE = ParameterLayout((2, 2), ((0,), ()), nested=True)
"""Rows of two shards; ranks 0 and 2 own the first, ranks 1 and 3 the second."""
COLUMNS = ParameterLayout((2,), ((), (0,)), nested=True)


def test_a_shard_is_read_from_its_lowest_owner() -> None:
    shards = CopyShards(SourceCopy(8, ROWS_TWICE, frozenset({8, 9, 11})), (2, 1))
    assert [shards.owner(cell) for cell in ((0, 0), (1, 0))] == [10, NO_RANK]
    assert shards.intended_owners((1, 0)) == (9, 11)


def test_units_lie_between_all_borders() -> None:
    grids = [layout.shard_grid(2) for layout in (ROWS_TWICE, COLUMNS, ParameterLayout((3,), ((0,), ()), nested=True))]
    assert common_units((12, 4), grids) == (6, 2)
    uneven = ParameterLayout((2,), ((0,), ()), param_split_shape=(5, 7))
    assert common_units((12, 4), [*grids, uneven.shard_grid(2)]) == (12, 2)


def test_other_copies_serve_the_shards_without_an_owner() -> None:
    copies = [SourceCopy(0, ROWS_TWICE, frozenset({1, 3})), SourceCopy(4, COLUMNS)]
    parts = list(SourceCopies(copies, (2, 2)).parts(TensorSlice.whole((2, 2))))
    assert [(part.rank, str(part.shard), str(part.box)) for part in parts] == [
        (0, "[0:1, 0:2]", "[0:1, 0:2]"),
        (4, "[0:2, 0:1]", "[1:2, 0:1]"),
        (5, "[0:2, 1:2]", "[1:2, 1:2]"),
    ]


def test_what_no_copy_owns_is_lost() -> None:
    whole = SourceCopy(0, ROWS_TWICE)
    assert not lacks_shards(whole, 2)
    assert list(lost_boxes("w", (4, 6), [whole])) == []
    assert not lacks_shards(SourceCopy(0, ROWS_TWICE, frozenset({1})), 2)
    copies = [SourceCopy(0, ROWS_TWICE, frozenset({1, 3})), SourceCopy(4, COLUMNS, frozenset({5}))]
    assert lacks_shards(copies[0], 2)
    assert list(lost_boxes("w", (4, 6), copies)) == [LostBox("w", TensorSlice((2, 3), (4, 6)), (1, 3, 5))]

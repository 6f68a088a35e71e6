"""The plan of a part of a parameter reads exactly the elements of the part."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from reshard.core.plan.model import ParameterPlan, ReadItem, SourceTensor
from reshard.core.plan.selected import selected_plan
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.indexing import select
from reshard.core.tensor.slices import TensorSlice

FLOAT = dtype_from_name("Float32")


@given(st.data())
def test_a_selection_of_a_parameter_in_quarters(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(st.integers(2, 9), st.integers(2, 9)))
    row, column = data.draw(st.integers(1, rows - 1)), data.draw(st.integers(1, columns - 1))
    whole = np.arange(rows * columns).reshape(rows, columns)
    boxes = [
        TensorSlice((low, left), (high, right))
        for low, high in ((0, row), (row, rows))
        for left, right in ((0, column), (column, columns))
    ]
    shards = [whole[box.as_index()] for box in boxes]
    reads = tuple(
        ReadItem(rank, TensorSlice.whole(shard.shape), box)
        for rank, (box, shard) in enumerate(zip(boxes, shards, strict=True))
    )
    source = SourceTensor("w", FLOAT, whole.shape, ())
    parameter = ParameterPlan("w", FLOAT, TensorSlice.whole(whole.shape), reads, (source,))
    box = select(data.draw(st_numpy.basic_indices(whole.shape, allow_ellipsis=True)), whole.shape).box

    selected = selected_plan(parameter, box)
    found = np.full(box.shape, -1)
    for read in selected.reads:
        assert (found[read.target_box.as_index()] == -1).all()
        found[read.target_box.as_index()] = shards[read.source_rank][read.source_box.as_index()]
    assert selected.box == TensorSlice.whole(box.shape)
    assert np.array_equal(found, whole[box.as_index()])

"""Sums of boxes, computed together or alone, are those of the boxes one by one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.tensor.fingerprint import box_fingerprint
from reshard.core.verification import box_sums
from reshard.core.verification.box_sums import BoxSums

SHAPES = st.sampled_from([(), (0, 3), (1,), (700,), (3, 5), (5, 3), (2, 300), (2, 3, 4)])


@settings(max_examples=60)
@given(st.data())
def test_boxes_count_the_same_together_as_one_by_one(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    monkeypatch.setattr(box_sums, "_SMALL_BYTES", data.draw(st.sampled_from([0, 40, 2**15])))
    monkeypatch.setattr(box_sums, "_WAITING_BYTES", data.draw(st.sampled_from([0, 100, 2**20])))
    monkeypatch.setattr(box_sums, "_MAX_WAITING", data.draw(st.sampled_from([1, 3, 4096])))
    bits = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sums, wanted = BoxSums[str](["none"]), Counter[str](none=0)
    buffer = np.empty(0, np.uint8)
    for _ in range(data.draw(st.integers(0, 12))):
        itemsize, shape = data.draw(st.sampled_from((1, 2, 4, 8))), data.draw(SHAPES)
        buffer = bits.integers(0, 256, (*shape, itemsize), np.uint8)
        values = buffer.view(f"u{itemsize}")[..., 0]
        if data.draw(st.booleans()):
            values = values.T.copy().T  # another order of memory
        start = tuple(data.draw(st.sampled_from((0, 1, 255))) for _ in shape)
        steps = tuple(data.draw(st.sampled_from((1, 2))) for _ in shape) if data.draw(st.booleans()) else ()
        key = data.draw(st.sampled_from("abc"))
        wanted[key] += box_fingerprint(values, start, steps)
        sums.add(key, values, start, steps)
        values[...] = 0  # the next block is read to the same place
    assert sums.sums() == {key: total % 2**64 for key, total in wanted.items()}

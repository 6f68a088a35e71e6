"""Operations on parameters that no step of a changes file asks for, and their order."""

import math

import numpy as np
import pytest

from reshard.core.errors import LayoutError
from reshard.core.plan.operations import Adapted, Added, Composed, DividedAxis
from reshard.core.tensor.segments import fill_once, whole_piece
from reshard.core.tensor.value_changes import UNCHANGED, Increase
from tests.support.composing import assembled


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_axis_can_be_divided(axis: int) -> None:
    shape = (4, 2, 6)
    array = np.arange(math.prod(shape)).reshape(shape)
    pieces, divided = DividedAxis("gates", 2, axis).apply([Composed("w", (whole_piece(shape),), shape)])
    assert divided == (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
    assert fill_once(pieces, divided)
    np.testing.assert_array_equal(assembled(pieces, divided, [array]), array.reshape(divided))


def test_an_axis_that_does_not_divide_is_named() -> None:
    with pytest.raises(LayoutError, match="gates: axis 1 of 'w' has 3 elements, which do not divide by 2"):
        DividedAxis("gates", 2, 1).apply([Composed("w", (whole_piece((2, 3)),), (2, 3))])


def test_what_changes_values_by_their_places_comes_first() -> None:
    part = Composed("w", (whole_piece((2, 3)),), (2, 3))
    pieces, shape = Added("the addition", 1).apply([part])
    with pytest.raises(LayoutError, match="^the merge: the values of 'w' can only be changed as the source has them, "):
        Adapted("the merge", shape).apply([Composed("w", pieces, shape)])


@pytest.mark.parametrize("numbers", [(1,), (1, -1), (2, 3)])
def test_numbers_in_turn_are_added_as_one(numbers: tuple[int, ...]) -> None:
    changes = UNCHANGED
    for number in numbers:
        changes = changes.increased(number)
    assert changes.each == ((Increase(sum(numbers)),) if sum(numbers) else ())

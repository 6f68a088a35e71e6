from typing import NamedTuple

import pytest

from reshard.core.runtime.named_tuples import named_tuples


class Point(NamedTuple):
    x: int
    y: int
    label: str = "none"


def test_made_as_by_calls() -> None:
    [first, second] = named_tuples(Point, y=[2, 4], x=iter([1, 3]))
    assert (first, second) == (Point(1, 2), Point(3, 4, "none"))
    assert type(second) is Point


def test_a_field_without_default_must_be_given() -> None:
    with pytest.raises(KeyError, match="y"):
        named_tuples(Point, x=[1])


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="no fields \\['z'\\]"):
        named_tuples(Point, x=[1], y=[2], z=[3])

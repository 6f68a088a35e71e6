"""The algebra of pieces, against the same done with numpy arrays."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.errors import PlanError
from reshard.core.tensor.segments import (
    Piece,
    Pieces,
    Progression,
    are_whole,
    fill_once,
    joined,
    merged,
    merged_axes,
    split,
    stacked,
    transposed,
    unmerged_axes,
    unstacked,
    whole_piece,
)
from reshard.core.tensor.slices import TensorSlice
from tests.support.composing import assembled, join_arrays, split_array


@dataclass(frozen=True)
class Made:
    """A parameter, as an array and as pieces."""

    array: np.ndarray
    pieces: Pieces

    def turned(self, axes: tuple[int, ...]) -> "Made":
        return Made(self.array.transpose(axes), transposed(self.pieces, axes))

    def parts(self, axis: int, shares: list[int], groups: int) -> list["Made"]:
        arrays = split_array(self.array, axis, shares, groups)
        pieces = split_all(self.pieces, self.array.shape, axis, shares, groups)
        return [Made(*part) for part in zip(arrays, pieces, strict=True)]


def split_all(pieces: Pieces, shape: tuple[int, ...], axis: int, shares: list[int], groups: int) -> list[Pieces]:
    return [split(pieces, shape, axis, shares, groups, number) for number in range(len(shares))]


def made_of(number: int, shape: tuple[int, ...]) -> Made:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int64).reshape(shape) + 10_000 * number
    piece = whole_piece(shape)
    return Made(array, (Piece(number, piece.box, piece.axes, piece.start),))


def together(parts: list[Made], axis: int, groups: int) -> Made:
    pieces = joined([(part.pieces, part.array.shape) for part in parts], axis, groups)
    return Made(join_arrays([part.array for part in parts], axis, groups), pieces)


@settings(max_examples=80)
@given(st.data())
def test_whatever_is_composed_is_what_numpy_makes(data: st.DataObject) -> None:
    axis_count = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 4, 12]), min_size=axis_count, max_size=axis_count)))
    at_hand = [made_of(number, shape) for number in range(data.draw(st.integers(1, 3)))]
    sources = [made.array for made in at_hand]
    for _ in range(data.draw(st.integers(1, 5))):
        axis, groups = data.draw(st.integers(0, axis_count - 1)), data.draw(st.sampled_from([1, 1, 2, 3]))
        kind = data.draw(st.sampled_from(["split", "join", "turn"]))
        first = at_hand.pop(data.draw(st.integers(0, len(at_hand) - 1)))
        if kind == "turn":
            at_hand.append(first.turned(tuple(data.draw(st.permutations(range(axis_count))))))
            continue
        shares = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
        if kind == "split" and first.array.shape[axis] % (groups * sum(shares)) == 0:
            at_hand.extend(first.parts(axis, shares, groups))
            continue
        beside = np.delete(first.array.shape, axis).tolist()
        others = [made for made in at_hand if np.delete(made.array.shape, axis).tolist() == beside]
        if kind == "join" and others and first.array.shape[axis] % groups == others[0].array.shape[axis] % groups == 0:
            at_hand = [made for made in at_hand if made is not others[0]]
            first = together([first, others[0]], axis, groups)
        at_hand.append(first)
    for made in at_hand:
        assert fill_once(made.pieces, made.array.shape)
        np.testing.assert_array_equal(assembled(made.pieces, made.array.shape, sources), made.array)


@settings(max_examples=30)
@given(st.data())
def test_a_split_is_undone_exactly_by_a_join(data: st.DataObject) -> None:
    axis, groups = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
    shares = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    shape = tuple(groups * sum(shares) * 2 if number == axis else 2 for number in range(3))
    fused = made_of(0, shape)
    back = together(fused.parts(axis, shares, groups), axis, groups)
    assert are_whole(back.pieces, shape)
    turned = back.turned((2, 0, 1)).turned((1, 2, 0))
    assert are_whole(turned.pieces, shape)


def test_interleaved_query_key_and_value_come_apart() -> None:
    fused = np.array(list("qqkvqqkvqqkv"))
    parts = split_all((whole_piece((12,)),), (12,), 0, [2, 1, 1], 3)
    query, key, value = [assembled(pieces, (length,), [fused]) for pieces, length in zip(parts, (6, 3, 3), strict=True)]
    assert ("".join(query), "".join(key), "".join(value)) == ("qqqqqq", "kkk", "vvv")


def test_neighbors_become_one_piece_and_others_stay() -> None:
    quarters = [
        Piece(0, TensorSlice((row, column), (row + 1, column + 2)), (1, 0), (column, row))
        for row in (0, 1)
        for column in (0, 2)
    ]
    assert merged(quarters) == (Piece(0, TensorSlice((0, 0), (2, 4)), (1, 0), (0, 0)),)
    swapped = [Piece(0, piece.box, piece.axes, (2 - piece.start[0], piece.start[1])) for piece in quarters]
    assert [str(piece.box) for piece in merged(swapped)] == ["[0:2, 2:4]", "[0:2, 0:2]"]
    other_source = [quarters[0], Piece(1, *(getattr(quarters[1], name) for name in ("box", "axes", "start")))]
    assert len(merged(other_source)) == 2


def test_what_is_not_filled_exactly_once_is_noticed() -> None:
    half = Piece(0, TensorSlice((0, 0), (2, 4)), (0, 1), (0, 0))
    rest = Piece(0, TensorSlice((2, 0), (4, 4)), (0, 1), (2, 0))
    assert fill_once([half, rest], (4, 4))
    assert not fill_once([half], (4, 4))
    assert not fill_once([half, half], (4, 4))
    assert not fill_once([half, rest], (4, 5))
    assert not fill_once([half, Piece(0, rest.box, rest.axes, (3, 0))], (4, 4))
    assert not fill_once([half, Piece(0, rest.box, rest.axes, (1, 0))], (4, 4))


def test_scalars_and_what_is_empty_are_filled() -> None:
    assert fill_once([whole_piece(())], ())
    assert fill_once([whole_piece((0, 4))], (0, 4))
    parts = split_all((whole_piece((0, 4)),), (0, 4), 1, [1, 3], 1)
    assert [fill_once(pieces, (0, length)) for pieces, length in zip(parts, (1, 3), strict=True)] == [True, True]


def test_boxes_are_found_in_both_directions() -> None:
    piece = Piece(0, TensorSlice((2, 10), (4, 14)), (1, 0), (100, 7))
    inside = TensorSlice((101, 7), (103, 8))
    assert str(piece.source_box(inside)) == "[2:3, 11:13]"
    assert piece.placed_box(piece.source_box(inside)) == inside


@settings(max_examples=80)
@given(st.data())
def test_the_parts_of_pieces_in_boxes_are_those_of_the_whole(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from([4, 12, 24])), data.draw(st.sampled_from([1, 3]))
    axis = data.draw(st.integers(0, 1))
    one, other = (made_of(number, (rows, columns)).turned((1, 0) if axis else (0, 1)) for number in range(2))
    whole = together([one, other], axis, data.draw(st.sampled_from([1, 2, rows]))).turned((1, 0))
    part = data.draw(st.sampled_from(whole.parts(1 - axis, [1, 1], data.draw(st.sampled_from([1, rows])))))
    sources = [made_of(number, (rows, columns)).array for number in range(2)]
    box = draw_box(data, (rows, columns))
    found = np.full(part.array.shape, -1)
    np.testing.assert_array_equal(assembled(part.pieces, part.array.shape, sources), part.array)
    inside = [np.full(source.shape, -1) for source in sources]
    for source, values in zip(inside, sources, strict=True):
        source[box.as_index()] = values[box.as_index()]
    wanted = assembled(part.pieces, part.array.shape, inside)
    for piece in part.pieces:
        within = piece.in_source(box)
        if within is not None:
            assert (found[within.target_box.as_index()] == -1).all()
            found[within.target_box.as_index()] = within.arranged(sources[piece.source][within.box.as_index()])
    np.testing.assert_array_equal(found, wanted)
    target_box = draw_box(data, part.array.shape)
    clipped_pieces = [within for piece in part.pieces if (within := piece.in_target(target_box)) is not None]
    np.testing.assert_array_equal(
        assembled(clipped_pieces, part.array.shape, sources)[target_box.as_index()], part.array[target_box.as_index()]
    )
    assert sum(within.target_box.size for within in clipped_pieces) == target_box.size


def draw_box(data: st.DataObject, shape: tuple[int, ...]) -> TensorSlice:
    start = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    return TensorSlice(
        start, tuple(data.draw(st.integers(low + 1, high)) for low, high in zip(start, shape, strict=True))
    )


def test_rows_in_turn_are_one_piece_of_each_parameter() -> None:
    gate, up = made_of(0, (1000, 3)), made_of(1, (1000, 3))
    fused = together([gate, up], 0, 1000)
    assert [(str(piece.box), str(piece.target_box)) for piece in fused.pieces] == [
        ("[0:1000, 0:3]", "[0:1999:2, 0:3]"),
        ("[0:1000, 0:3]", "[1:2000:2, 0:3]"),
    ]
    back = fused.parts(0, [1, 1], 1000)
    assert [part.pieces for part in back] == [gate.pieces, up.pieces]
    apart = made_of(0, (2000, 3)).parts(0, [1, 1], 1000)
    assert [str(piece.box) for part in apart for piece in part.pieces] == ["[0:1999:2, 0:3]", "[1:2000:2, 0:3]"]
    assert are_whole(together(apart, 0, 1000).pieces, (2000, 3))


def test_reshaping_rows_in_turn_makes_no_piece_for_each() -> None:
    pairs = unmerged_axes((whole_piece((2000, 3)),), (2000, 3), 1000)
    assert [(str(piece.box), str(piece.target_box)) for piece in pairs] == [
        ("[0:1999:2, 0:3]", "[0:1000, 0:1, 0:3]"),
        ("[1:2000:2, 0:3]", "[0:1000, 1:2, 0:3]"),
    ]
    assert fill_once(pairs, (1000, 2, 3))
    assert are_whole(merged_axes(pairs, (1000, 2, 3)), (2000, 3))


@settings(max_examples=80)
@given(st.data())
def test_axes_merged_and_divided_anywhere_are_what_numpy_makes(data: st.DataObject) -> None:
    first, second, columns = (data.draw(st.sampled_from([1, 2, 3, 8, 12])) for _ in range(3))
    made = [made_of(number, (first * second, columns)) for number in range(2)]
    sources = [each.array for each in made]
    fused = together(made, 0, data.draw(st.sampled_from([1, first, first * second])))
    count = data.draw(st.sampled_from([1, 2, first, 2 * first, first * second, 2 * first * second]))
    count = count if fused.array.shape[0] % count == 0 else 1
    shape = (count, fused.array.shape[0] // count, columns)
    divided = unmerged_axes(fused.pieces, fused.array.shape, count)
    assert fill_once(divided, shape)
    np.testing.assert_array_equal(assembled(divided, shape, sources), fused.array.reshape(shape))
    turned = Made(fused.array.reshape(shape), divided).turned(data.draw(st.sampled_from([(0, 1, 2), (1, 0, 2)])))
    flat = (shape[0] * shape[1], columns)
    again = merged_axes(turned.pieces, turned.array.shape)
    assert fill_once(again, flat)
    np.testing.assert_array_equal(assembled(again, flat, sources), turned.array.reshape(flat))
    index = data.draw(st.integers(0, turned.array.shape[0] - 1))
    one = unstacked(turned.pieces, turned.array.shape, index)
    np.testing.assert_array_equal(assembled(one, turned.array.shape[1:], sources), turned.array[index])
    both = stacked(
        [turned.pieces, tuple(Piece(1 - p.source, p.box, p.axes, p.start, steps=p.steps) for p in turned.pieces)]
    )
    assert fill_once(both, (2, *turned.array.shape))


@settings(max_examples=200)
@given(st.data())
def test_positions_in_two_progressions_are_found_and_moved(data: st.DataObject) -> None:
    start, step, count = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20))
    low, distance, length = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20))
    to = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 5))
    own = data.draw(st.integers(1, 4))
    box = TensorSlice.stepped((7,), (count,), (own,))
    steps = TensorSlice.stepped((start,), (count,), (step,)).steps
    picked = Piece(0, box, (0,), (start,), steps=steps).picked(
        0, Progression(low, distance, length), Progression(to[0], to[1], length)
    )
    found = {}
    if picked is not None:
        places = range(*picked.target_box.as_index()[0].indices(10**6))
        found = dict(zip(places, range(*picked.box.as_index()[0].indices(10**6)), strict=True))
    wanted = {}
    for number in range(count):
        position = start + number * step
        if (position - low) % distance == 0 and 0 <= (position - low) // distance < length:
            wanted[to[0] + (position - low) // distance * to[1]] = 7 + number * own
    assert found == wanted


@settings(max_examples=150)
@given(st.data())
def test_stepped_pieces_that_miss_or_double_an_element_are_noticed(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(12,), (24, 2), (6, 8)]))
    counts = np.zeros(shape, int)
    pieces = []
    for _ in range(data.draw(st.integers(1, 6))):
        axis_steps = tuple(data.draw(st.integers(1, min(4, length))) for length in shape)
        start = tuple(data.draw(st.integers(0, step - 1)) for step in axis_steps)
        lengths = tuple(-(-(length - low) // step) for length, low, step in zip(shape, start, axis_steps, strict=True))
        lengths = tuple(data.draw(st.sampled_from([length, length, max(1, length // 2)])) for length in lengths)
        box = TensorSlice.stepped(start, lengths, axis_steps)
        pieces.append(Piece(0, TensorSlice.whole(lengths), tuple(range(len(shape))), start, steps=box.steps))
        counts[box.as_index()] += 1
    rest = [
        Piece(0, TensorSlice((0,) * len(shape), (1,) * len(shape)), tuple(range(len(shape))), index)
        for index, count in np.ndenumerate(counts)
        if count == 0
    ]
    assert fill_once([*pieces, *rest], shape) == bool((counts <= 1).all())
    assert not fill_once([*pieces, *rest[1:]], shape) or not rest


def test_pieces_whose_steps_have_no_small_common_multiple_are_refused_before_memory_is_taken() -> None:
    length = 2**36
    steps = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
    pieces = [
        Piece(0, TensorSlice((0,), (count,)), (0,), (0,), steps=(step,))
        for step in steps
        if (count := length // (100 * step))
    ]
    rest = length - sum(piece.box.size for piece in pieces)
    pieces.append(Piece(0, TensorSlice((0,), (rest,)), (0,), (0,)))
    with pytest.raises(PlanError, match="its 13 pieces cut it into [0-9]+ boxes, more than 16,777,216, the limit"):
        fill_once(pieces, (length,))

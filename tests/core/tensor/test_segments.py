"""The algebra of pieces, against the same done with numpy arrays."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.tensor.segments import (
    Piece,
    Pieces,
    are_whole,
    fill_once,
    in_steps,
    joined,
    merged,
    split,
    transposed,
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


@settings(max_examples=80, deadline=None)
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


@settings(max_examples=30, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pieces_at_equal_distances_are_the_same_pieces_in_any_box(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from([4, 12, 24])), data.draw(st.sampled_from([1, 3]))
    axis = data.draw(st.integers(0, 1))
    one, other = (made_of(number, (rows, columns)).turned((1, 0) if axis else (0, 1)) for number in range(2))
    whole = together([one, other], axis, data.draw(st.sampled_from([1, 2, rows]))).turned((1, 0))
    steps = in_steps(whole.pieces)
    sources = [made_of(number, (rows, columns)).array for number in range(2)]
    start = (data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1)))
    box = TensorSlice(
        start, (data.draw(st.integers(start[0] + 1, rows)), data.draw(st.integers(start[1] + 1, columns)))
    )
    found, wanted = (np.full(whole.array.shape, -1) for _ in range(2))
    for piece in whole.pieces:
        common = piece.box.intersect(box)
        if common is not None:
            wanted[piece.placed_box(common).as_index()] = piece.arranged(sources[piece.source][common.as_index()])
    for each in steps:
        part = each.within(box)
        if part is None:
            continue
        values = part.piece.arranged(sources[each.piece.source][box.as_index()][part.index(box)])
        place = zip(part.piece.start, values.shape, part.steps, strict=True)
        index = tuple(slice(low, low + length * step, step) for low, length, step in place)
        assert (found[index] == -1).all()
        found[index] = values
    np.testing.assert_array_equal(found, wanted)


def test_every_other_row_is_one_progression() -> None:
    gate, up = made_of(0, (1000, 3)), made_of(1, (1000, 3))
    steps = in_steps(together([gate, up], 0, 1000).pieces)
    assert [(each.count, each.axis, each.distance, each.place_distance) for each in steps] == [(1000, 0, 1, 2)] * 2

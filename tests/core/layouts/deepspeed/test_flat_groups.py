"""Places in flat groups, without any file."""

from reshard.core.layouts.deepspeed.flat_groups import Piece, joined_group, partitioned, partitioned_groups


def test_a_cut_falls_anywhere_in_a_parameter() -> None:
    row = joined_group(0, {"a": (3, 2), "b": (5,)}, [2, 0], part_length=5, ranks=3)
    a, b = row.parameters
    assert a.pieces == (Piece(0, 0, 0, 5), Piece(1, 0, 5, 6))
    assert b.pieces == (Piece(1, 3, 0, 2), Piece(2, 0, 2, 5))
    assert [row.content_of(rank) for rank in range(3)] == [5, 5, 3]


def test_each_rank_has_a_part_of_a_parameter() -> None:
    a, b = partitioned_groups([{"a": (5,)}, {"b": (4,)}], [2, 2], ranks=3)
    assert a.pieces == (Piece(0, 0, 0, 2), Piece(1, 0, 2, 4), Piece(2, 0, 4, 5))
    assert (b.group, b.pieces) == (1, (Piece(0, 0, 0, 2), Piece(1, 0, 2, 4)))


def test_one_flat_group_may_hold_several_groups_of_shapes() -> None:
    a, b = partitioned_groups([{"a": (4,)}, {"b": (2,)}], [3], ranks=2)
    assert [(each.group, each.pieces[0].offset) for each in (a, b)] == [(0, 0), (0, 2)]


def test_a_parameter_of_fewer_elements_than_ranks() -> None:
    assert partitioned("a", (), 4).pieces == (Piece(0, 0, 0, 1),)
    assert partitioned("a", (0, 3), 4).pieces == ()

"""Patterns with `{rank}`: the names that they match, and where a path lies relative to them."""

import pytest

from reshard.core.storage.patterns import Relation, matched_rank, relation_of, spelled_for


@pytest.mark.parametrize(
    ("part", "name", "rank"),
    [
        ("rank_{rank}", "rank_17", 17),
        ("rank_{rank}", "rank_017", None),
        ("rank_{rank}", "rank_", None),
        ("{rank}_of_{rank}", "3_of_3", 3),
        ("{rank}_of_{rank}", "3_of_4", None),
        ("a.b{rank}", "axb1", None),
    ],
)
def test_the_rank_in_a_name(part: str, name: str, rank: int | None) -> None:
    assert matched_rank(part, name) == rank


@pytest.mark.parametrize(
    ("place", "pattern", "relation"),
    [
        ("/run", "/run/rank_{rank}/a.ckpt", Relation.ABOVE),
        ("/run/rank_3/a.ckpt", "/run/rank_{rank}/a.ckpt", Relation.AT),
        ("/run/rank_3/a.ckpt/more", "/run/rank_{rank}/a.ckpt", Relation.INSIDE),
        ("/run/rank_3/other", "/run/rank_{rank}/a.ckpt", Relation.INSIDE),
        ("/run/rank_x", "/run/rank_{rank}/a.ckpt", None),
        ("/runs", "/run/rank_{rank}/a.ckpt", None),
        ("/run", "/run", Relation.AT),
        ("/run/x", "/run", Relation.INSIDE),
    ],
)
def test_where_a_path_lies(place: str, pattern: str, relation: Relation | None) -> None:
    assert relation_of(place, pattern) is relation


def test_a_spelling_for_a_rank() -> None:
    assert spelled_for("{rank}/net_{rank}", 12) == "12/net_12"

"""What optimizer parallel cuts, and what layouts say of it, in the numbers that MindSpore writes."""

import pytest

from reshard.core.strategy.optimizer_shards import replica_count, with_optimizer_shard, without_optimizer_shard
from reshard.core.tensor.layout import ParameterLayout

ROWS = ParameterLayout((2, 4), ((0,), ()))


@pytest.mark.parametrize(
    ("layout", "copies", "step"),
    [
        (ROWS, 2, 4),
        (ParameterLayout((2, 4), ((), (1,))), 4, 1),
        (ParameterLayout((2, 4), ((), ())), 8, 1),
        (ParameterLayout((2, 1, 2, 2), ((1,), ())), 4, 1),  # ranks 0, 1, 4, 5: steps of 5 / 3, rounded down
        (ParameterLayout((3, 1), ((),)), 3, 1),
    ],
)
def test_all_copies(layout: ParameterLayout, copies: int, step: int) -> None:
    assert replica_count(layout) == copies
    sharded = with_optimizer_shard(layout, None, -1)
    assert sharded is not None
    assert (sharded.optimizer_shard_size, sharded.optimizer_shard_step) == (-1, step)
    assert without_optimizer_shard(sharded) == layout


def test_axis_0_has_to_divide_by_both() -> None:
    assert with_optimizer_shard(ROWS, (8, 3), -1) is not None
    assert with_optimizer_shard(ROWS, (12, 8), -1) is None
    assert with_optimizer_shard(ParameterLayout((2, 4), ((), (0,))), (12, 8), -1) is not None


def test_a_limit_has_to_divide_the_copies() -> None:
    whole = ParameterLayout((6,), ((),))
    assert with_optimizer_shard(whole, (12,), 3) is not None
    assert with_optimizer_shard(whole, (12,), 4) is None


def test_nothing_to_cut() -> None:
    assert with_optimizer_shard(ParameterLayout((1, 4), ((0,),)), None, -1) is None
    assert with_optimizer_shard(ParameterLayout((4,), ()), (), -1) is None

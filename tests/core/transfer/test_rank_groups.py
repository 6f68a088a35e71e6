"""Ranks written side by side: who with whom, what it saves, and that one's failure is not the others'."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.changes.changes import Changes, TransposeRule
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import ConversionError, StorageError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.runtime.progress import SilentProgress
from reshard.core.runtime.retry import WORK, RetryPolicy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.rank_groups import group_ranks
from reshard.core.transfer.writer import transform_ranks
from tests.support.checkpoints import read_tree
from tests.support.columns import COLUMN_RANKS, ColumnCase, column_case
from tests.support.plans import FLOAT, catalog_of, entry, make_catalog, make_strategy, plan_of, sides
from tests.support.reference import AXIS_LENGTH, wholes


def plan_from_one(matrix: tuple[int, ...], **maps: tuple[tuple[int, ...], ...]) -> ConversionPlan:
    """Whole parameters of 64 x 4096 elements on one rank, to be cut over a device matrix as their maps say."""
    catalog = make_catalog({0: [entry(name, (64, 4096), FLOAT) for name in maps]})
    layouts = {name: ParameterLayout(matrix, tensor_map, nested=True) for name, tensor_map in maps.items()}
    return plan_of(catalog, None, make_strategy(layouts))


@pytest.mark.parametrize(
    ("matrix", "tensor_map", "want"),
    [
        # by rows over the slow device axis, by columns over the fast one: neighbors are next to each other
        ((2, 4), ((1,), (0,)), ((0, 1, 2, 3), (4, 5, 6, 7))),
        ((4, 2), ((0,), (1,)), ((0, 2, 4, 6), (1, 3, 5, 7))),
        ((8,), ((), (0,)), ((0, 1, 2, 3), (4, 5, 6, 7))),
        ((8,), ((0,), ()), tuple((rank,) for rank in range(8))),
    ],
)
def test_ranks_that_need_parts_of_the_same_rows_are_together(
    matrix: tuple[int, ...], tensor_map: tuple[tuple[int, ...], ...], want: tuple[tuple[int, ...], ...]
) -> None:
    plan = plan_from_one(matrix, w=tensor_map)
    assert group_ranks(plan, plan.target_ranks, min_groups=2, max_ranks=32) == want


def test_turned_ranks_that_need_parts_of_the_same_rows_are_together() -> None:
    """The source's rows are the target's columns: the target's rows are cut over the fast device axis."""
    catalog = make_catalog({0: [entry("w", (64, 4096), FLOAT)]})
    target = make_strategy({"w": ParameterLayout((2, 4), ((0,), (1,)), nested=True)})
    changes = Changes(transpose=(TransposeRule(parameters="w"),))
    plan = build_plan(PlanInputs(catalog, None, target, CheckpointFormat.CKPT, changes=changes, layout=RankFolders()))
    assert group_ranks(plan, plan.target_ranks, min_groups=2, max_ranks=32) == ((0, 1, 2, 3), (4, 5, 6, 7))
    target = make_strategy({"w": ParameterLayout((4, 2), ((1,), (0,)), nested=True)})
    plan = build_plan(PlanInputs(catalog, None, target, CheckpointFormat.CKPT, changes=changes, layout=RankFolders()))
    assert group_ranks(plan, plan.target_ranks, min_groups=2, max_ranks=32) == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_the_costliest_parameters_decide() -> None:
    rows_first, columns_first = ((1,), (0,)), ((0,), (1,))
    plan = plan_from_one((2, 2), a=rows_first, b=columns_first, c=columns_first)
    assert group_ranks(plan, plan.target_ranks, min_groups=2, max_ranks=32) == ((0, 2), (1, 3))
    plan = plan_from_one((2, 2), a=rows_first, b=columns_first, c=rows_first)
    assert group_ranks(plan, plan.target_ranks, min_groups=2, max_ranks=32) == ((0, 1), (2, 3))


def test_little_to_share_is_no_reason() -> None:
    columns, rows = ((), (0,)), ((0,), ())
    plan = plan_from_one((2,), a=columns)
    assert group_ranks(plan, [0, 1], min_groups=1, max_ranks=32) == ((0, 1),)
    plan = plan_from_one((2,), a=columns, **{f"r{number}": rows for number in range(6)})
    assert group_ranks(plan, [0, 1], min_groups=1, max_ranks=32) == ((0,), (1,))


@pytest.mark.parametrize(
    ("fewest", "max_ranks", "sizes"), [(1, 32, [8]), (3, 32, [2] * 4), (1, 3, [3, 3, 2]), (8, 32, [1] * 8)]
)
def test_no_worker_is_idle_and_no_group_too_large(fewest: int, max_ranks: int, sizes: list[int]) -> None:
    plan = plan_from_one((8,), w=((), (0,)))
    assert [
        len(group) for group in group_ranks(plan, plan.target_ranks, min_groups=fewest, max_ranks=max_ranks)
    ] == sizes


@settings(max_examples=25)
@given(st.data())
def test_every_rank_is_in_one_group_and_none_spans_stages(data: st.DataObject) -> None:
    axis_counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    source, target = data.draw(sides(axis_counts)), data.draw(sides(axis_counts))
    tensors = wholes([(AXIS_LENGTH,) * count for count in axis_counts])
    plan = plan_of(catalog_of(source.shards(tensors)), source.strategy(), target.strategy())
    ranks = sorted(data.draw(st.sets(st.sampled_from(list(plan.target_ranks)), min_size=1)))
    fewest = data.draw(st.integers(1, 4))
    groups = group_ranks(plan, ranks, min_groups=fewest, max_ranks=data.draw(st.integers(1, 8)))
    assert sorted(rank for group in groups for rank in group) == ranks
    assert len(groups) >= min(fewest, len(ranks))
    assert all(len({rank // target.devices for rank in group}) == 1 for group in groups)


@pytest.fixture
def case(tmp_path: Path) -> ColumnCase:
    return column_case(tmp_path)


def test_shared_rows_are_read_once(case: ColumnCase) -> None:
    report = convert(case.request(workers=1))
    assert read_tree(case.target) == case.want
    assert report.read_bytes == sum(rank.read_bytes for rank in report.ranks) == case.source_bytes
    alone = convert(case.request(workers=COLUMN_RANKS, overwrite=True, prefix="alone_"))
    assert alone.read_bytes > 4 * case.source_bytes, "or the test proves nothing"


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_a_failing_rank_of_a_group_lets_the_others_finish(case: ColumnCase, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(plan: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        if 5 in ranks:
            raise StorageError("rank 5's disk is broken")
        return transform_ranks(plan, ranks, *args, **kwargs)

    notes = Notes()
    with monkeypatch.context() as patch:
        patch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
        with pytest.raises(ConversionError, match=r"1 of 8 target ranks failed.*\n  rank_5: rank 5's disk is broken"):
            convert(case.request(workers=1), notes)
    assert "rank_0 and 7 more are written one by one: rank 5's disk is broken" in notes.notes
    report = convert(case.request(workers=1))
    assert [rank.outcome.value for rank in report.ranks] == ["resumed"] * 5 + ["written"] + ["resumed"] * 2
    assert read_tree(case.target) == case.want


def test_a_rank_that_cannot_be_written_for_long_does_not_fail_its_group(
    case: ColumnCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may pass is tried again, but not for ever, and not by the others."""
    monkeypatch.setattr("reshard.core.runtime.retry.WORK", RetryPolicy(WORK.attempts, 0.001))
    tried: list[Sequence[int]] = []

    def flaky(plan: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        tried.append(tuple(ranks))
        if 5 in ranks:
            raise StorageError("busy", transient=True)
        return transform_ranks(plan, ranks, *args, **kwargs)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", flaky)
    with pytest.raises(ConversionError, match=r"1 of 8 target ranks failed.*\n  rank_5: busy"):
        convert(case.request(workers=1))
    alone = [(rank,) for rank in range(COLUMN_RANKS)]
    assert tried == [tuple(range(COLUMN_RANKS)), *alone[:5], *[(5,)] * WORK.attempts, *alone[6:]]


def test_when_the_storage_is_down_not_every_rank_waits_for_it(
    case: ColumnCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.runtime.retry.WORK", RetryPolicy(WORK.attempts, 0.001))
    tried: list[tuple[int, ...]] = []

    def failing(plan: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        tried.append(tuple(ranks))
        raise StorageError("busy", transient=True)

    monkeypatch.setattr("reshard.core.conversion.rank_work.transform_ranks", failing)
    with pytest.raises(
        ConversionError, match=r"8 of 8 target ranks failed(.|\n)*rank_3: not tried, because the storage"
    ):
        convert(case.request(workers=1))
    assert {ranks for ranks in tried if len(ranks) == 1} == {(0,), (1,), (2,)}


def test_ranks_with_very_many_parameters_are_not_together() -> None:
    columns = ((), (0,))
    few, many = (plan_from_one((8,), **{f"p{number}": columns for number in range(count)}) for count in (100, 10_000))
    assert [len(group) for group in group_ranks(few, few.target_ranks, min_groups=1, max_ranks=32)] == [8]
    assert [len(group) for group in group_ranks(many, many.target_ranks, min_groups=1, max_ranks=32)] == [3, 3, 2]


@pytest.mark.parametrize(("workers", "groups", "prefetch"), [(1, 1, 1), (2, 2, 1), (8, 8, 1), (20, 8, 2), (100, 8, 8)])
def test_workers_without_a_group_of_their_own_prefetch_for_others(
    case: ColumnCase, workers: int, groups: int, prefetch: int
) -> None:
    request = case.request(workers=workers)
    with open_session(request, make_plan(request)) as session:
        assert (len(session.groups), session.prefetch) == (groups, prefetch)
    assert convert(request).committed
    assert read_tree(case.target) == case.want


def test_in_little_memory_blocks_are_small_and_the_result_is_the_same(case: ColumnCase) -> None:
    report = convert(case.request(workers=2, memory_limit="16MiB"))
    assert read_tree(case.target) == case.want
    assert report.read_bytes < 3 * case.source_bytes

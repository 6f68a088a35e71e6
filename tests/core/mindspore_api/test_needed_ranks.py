"""The source ranks that a target rank is read from."""

from pathlib import Path

import pytest

from reshard import mindspore
from tests.support.checkpoints import ALL_CASES, Case, read_ckpt
from tests.support.strategy_writer import FileLayout, write_strategy_file
from tests.support.transformed import ROWS, VALUES, strategies, tensor


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.directory.name)
def test_just_the_ranks_that_are_listed_are_needed(case: Case, tmp_path: Path) -> None:
    for rank, wanted in case.want.items():
        ranks = mindspore.rank_list_for_transform(rank, *strategies(case))
        assert ranks == sorted(set(ranks), reverse=True)
        files = {each: str(next((case.directory / "src" / f"rank_{each}").iterdir())) for each in ranks}
        path = tmp_path / "out" / f"{rank}.ckpt"
        mindspore.transform_checkpoint_by_rank(rank, files, str(path), *strategies(case))
        assert read_ckpt(path) == wanted
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".ckpt"}


@pytest.mark.parametrize("ranks", [(0, 1), (2, 3), (0, 3), (1, 2), (0, 1, 2, 3)])
def test_any_ranks_that_hold_it_will_do(ranks: tuple[int, ...], repeated: tuple, tmp_path: Path) -> None:
    files, strategy = repeated
    path = tmp_path / "whole.ckpt"
    mindspore.transform_checkpoint_by_rank(0, {rank: files[rank] for rank in ranks}, str(path), strategy)
    assert read_ckpt(path) == {"w": tensor(VALUES)}


@pytest.mark.parametrize(("ranks", "named"), [((0, 2), "rank_1"), ((3,), "rank_0"), ((), "rank_0, rank_1")])
def test_a_rank_that_is_needed_is_not_given(
    ranks: tuple[int, ...], named: str, repeated: tuple, tmp_path: Path
) -> None:
    files, strategy = repeated
    with pytest.raises(ValueError, match=f"rank 0 is made from .*{named}"):
        mindspore.transform_checkpoint_by_rank(
            0, {rank: files[rank] for rank in ranks}, str(tmp_path / "a.ckpt"), strategy
        )
    assert not (tmp_path / "a.ckpt").exists()


def test_without_a_source_strategy_rank_0_has_all(rows: Path) -> None:
    assert mindspore.rank_list_for_transform(1, None, str(rows / "columns.ckpt")) == [0]


def test_the_rank_in_the_same_place_stands_for_those_that_share_its_slice(repeated: tuple) -> None:
    _, strategy = repeated
    assert [mindspore.rank_list_for_transform(rank, strategy, strategy) for rank in range(4)] == [[0], [1], [2], [3]]


def test_any_rank_of_a_stage_may_be_given_the_whole(repeated: tuple, tmp_path: Path) -> None:
    files, strategy = repeated
    lists = [mindspore.rank_list_for_transform(rank, strategy) for rank in range(4)]
    assert lists == [[1, 0], [1, 0], [3, 2], [3, 2]]
    for rank, ranks in enumerate(lists):
        path = tmp_path / f"{rank}.ckpt"
        mindspore.transform_checkpoint_by_rank(rank, {each: files[each] for each in ranks}, str(path), strategy)
        assert read_ckpt(path) == {"w": tensor(VALUES)}


def test_layouts_that_do_not_fit_each_other(tmp_path: Path) -> None:
    write_strategy_file(tmp_path / "a.ckpt", {0: {"w": ROWS}})
    write_strategy_file(tmp_path / "b.ckpt", {0: {"w": FileLayout((2,), ((0,), (), ()), False, 0, 0, (2, 2, 2))}})
    with pytest.raises(ValueError, match="'w': it has 2 axes in the source's strategy, 3 in the target's"):
        mindspore.rank_list_for_transform(0, str(tmp_path / "a.ckpt"), str(tmp_path / "b.ckpt"))

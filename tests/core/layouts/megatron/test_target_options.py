"""Options of Megatron targets: where they lie, and conversions of all steps of a training."""

from pathlib import Path

import pytest

from reshard.core.errors import InputError
from reshard.core.layouts.megatron.options import OPTIONS
from reshard.core.layouts.megatron.sizes import ParallelSizes
from reshard.core.request.conversion import build_request


@pytest.mark.parametrize(
    ("target", "iteration", "directory"),
    [
        ("out/", "4", "out/iter_0000004"),
        ("s3://bucket/out", "12345678", "s3://bucket/out/iter_12345678"),
        ("out", "0", "out/release"),
        ("out", "", "out/release"),
        ("out/iter_0000040", "40", "out/iter_0000040"),
        ("out/release", "", "out/release"),
    ],
)
def test_the_directory_of_a_target(target: str, iteration: str, directory: str) -> None:
    request = build_request(source="a", target=target, layout="megatron", iteration=iteration)
    assert request.target_directory == directory


def test_steps_are_iterations_of_one_target(tmp_path: Path) -> None:
    assert OPTIONS.options_of_step("out", "src", "40") == {"iteration": "40"}
    with pytest.raises(InputError, match="step 10_5 of src has no iteration number, which Megatron's checkpoints"):
        OPTIONS.options_of_step("out", "src", "10_5")
    OPTIONS.check_for_all_steps("out")
    with pytest.raises(ValueError, match="the target 'release' is named after one iteration"):
        OPTIONS.check_for_all_steps("out/release")


@pytest.mark.parametrize(
    ("sizes", "paths"),
    [
        (ParallelSizes(), ["mp_rank_00"]),
        (ParallelSizes(tensor=2, expert_tensor=2), ["mp_rank_00", "mp_rank_01"]),
        (ParallelSizes(pipeline=2), ["mp_rank_00_000", "mp_rank_00_001"]),
        (ParallelSizes(expert=2), ["mp_rank_00_000", "mp_rank_00_001"]),
        (ParallelSizes(tensor=2, expert=2, expert_tensor=1), ["mp_rank_00_000", "mp_rank_01_001"]),
        # of four tensor ranks, two have the first half of the experts
        (
            ParallelSizes(tensor=4, expert=2, expert_tensor=1),
            ["mp_rank_00_000", "mp_rank_01_001", "mp_rank_02_000", "mp_rank_03_001"],
        ),
        (
            ParallelSizes(tensor=4, expert=4, expert_tensor=2),
            [f"mp_rank_{rank % 4:02d}_{rank // 2:03d}" for rank in range(8)],
        ),
    ],
)
def test_each_file_has_one_slice_of_everything(sizes: ParallelSizes, paths: list[str]) -> None:
    """As Megatron names them, of the first ranks of a job whose names differ."""
    names = [sizes.path(stage, rank) for stage in range(sizes.pipeline) for rank in range(sizes.ranks_per_stage)]
    assert names == [f"{path}/model_optim_rng.pt" for path in paths]

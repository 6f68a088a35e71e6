"""What MindSpore 2.10 returns without a started group: the environment's numbers, else 0 of 1."""

import pytest

from reshard.mindspore.communication import get_group_size, get_rank, init, management, release

VARIABLES = ("RANK_ID", "RANK_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in getattr(request, "param", {}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("job", "rank", "size"),
    [
        ({}, 0, 1),
        ({"RANK_ID": "3", "RANK_SIZE": "8"}, 3, 8),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, 1, 4),
        ({"RANK_ID": "0"}, 0, 1),
        ({"RANK_SIZE": "8"}, 0, 8),
    ],
    indirect=["job"],
)
def test_rank_and_size_are_those_of_the_launcher(job: None, rank: int, size: int) -> None:
    init()
    assert (get_rank(), get_group_size()) == (rank, size)
    assert (get_rank("nccl_world_group"), get_group_size("nccl_world_group")) == (rank, size)
    release()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"RANK_ID": "3"}, "the environment says rank 3, but not the number of ranks: set RANK_SIZE"),
        ({"RANK_ID": "8", "RANK_SIZE": "8"}, "the environment says rank 8 of 8 ranks"),
        ({"RANK_SIZE": "eight"}, "the environment's RANK_SIZE is 'eight', not a number of ranks"),
        ({"OMPI_COMM_WORLD_RANK": "-1"}, "the environment's OMPI_COMM_WORLD_RANK is '-1', not a rank"),
    ],
    indirect=["job"],
)
def test_numbers_that_cannot_be_are_refused(job: None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_group_size()


def test_arguments_are_refused_as_by_mindspore() -> None:
    for wrong in (5, None):
        with pytest.raises(TypeError, match="'group' has to be a string"):
            get_rank(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="'group' has to be a string"):
            get_group_size(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'backend_name' has to be a string"):
        init(5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="has to be one of hccl, nccl, mccl, not 'mpi'"):
        init("mpi")
    init("hccl")


def test_the_older_path_has_the_same_functions() -> None:
    assert management.get_rank is get_rank
    assert management.init is init

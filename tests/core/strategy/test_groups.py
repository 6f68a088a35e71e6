"""Files that say which ranks hold the same."""

import json
from pathlib import Path

import pytest

from reshard.core.errors import StrategyError
from reshard.core.strategy.groups import parse_groups, read_groups
from tests.support.ckpt_writer import blob, number


def group_file(*ranks: int) -> bytes:
    """MindSpore's file of one rank's groups: a communication group, and the ranks to restore from."""

    def listed(*numbers: int) -> bytes:
        return b"".join(number(1, rank) for rank in numbers)

    group = blob(1, b"hccl_world_group") + blob(2, listed(0, 1, 2, 3))
    return blob(1, group) + blob(2, listed(*ranks))


def test_lists_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "group_info"
    path.write_text(json.dumps([[3, 1], [0, 2]]))
    assert read_groups([str(path)]) == ((0, 2), (1, 3))


def test_files_of_ranks_together(tmp_path: Path) -> None:
    """Ranks of one group write the same file but for themselves; the communication groups do not matter."""
    urls = []
    for rank, ranks in enumerate([(0, 2), (1, 3), (2, 0), (3, 1)]):
        path = tmp_path / f"group_info_{rank}.pb"
        path.write_bytes(group_file(*ranks))
        urls.append(str(path))
    assert read_groups(urls) == ((0, 2), (1, 3))
    with pytest.raises(StrategyError, match=r"ranks 0,2 are in no group.*by one 'group_info' each"):
        read_groups(urls[1:2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[[0, 1], [1, 2]]", r"rank 1 is in two groups"),
        (b"[[0, 0]]", r"a group is \[0, 0\]: it has to have ranks, each once"),
        (b"[[]]", r"a group is \[\]"),
        (b"[]", "must be a list of lists of ranks"),
        (b"[[0, true]]", "must be a list of lists of ranks"),
        (b"[[0, -1]]", "has a negative rank"),
        (b"[[0, 1", "is not valid JSON"),
        (b"\xff\xff", "is neither a JSON list of groups nor a MindSpore group file"),
        (b"", "is neither a JSON list of groups nor|lists no ranks to restore from"),
        (group_file(), "lists no ranks to restore from"),
    ],
)
def test_what_is_no_group_file(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "groups"
    path.write_bytes(data)
    with pytest.raises(StrategyError, match=message):
        read_groups([str(path)])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match="no such file"):
        read_groups([str(tmp_path / "none")])


def test_the_bytes_of_a_file() -> None:
    assert parse_groups(b" [[1, 0]]", "here") == ((0, 1),)
    assert parse_groups(group_file(5, 1), "here") == ((1, 5),)

from collections.abc import Sequence

from reshard.core.reports.plain_text import Paper, lines_of
from reshard.core.reports.rank_table import (
    Column,
    amount_column,
    file_column,
    rank_column,
    rank_table,
    ranks_column,
)

Row = tuple[int, str, int, tuple[int, ...]]
"""A rank, how it was made, the bytes read for it, and its sources."""


def columns() -> list[Column[Row]]:
    return [
        rank_column(lambda row: row[0]),
        file_column(lambda row: row[0], lambda row: f"rank_{row[0]}/checkpoint_{row[0]}.ckpt"),
        Column("how", lambda row: row[1]),
        amount_column("read", lambda row: row[2], lambda count: f"{count} B"),
        ranks_column("from", lambda row: row[3]),
    ]


def printed(rows: Sequence[Row], *, is_short: bool = False, groups_in_files: bool = False) -> list[str]:
    table = rank_table(columns(), rows, groups_in_files=groups_in_files)
    return list(lines_of(table, Paper(whole="--json", is_short=is_short)))


ROWS: list[Row] = [
    (rank, "written" if rank < 512 else "copied", 10 + rank % 2, (rank, rank + 1) if rank < 512 else ())
    for rank in range(2000)
]


def test_few_ranks_have_a_row_each() -> None:
    assert printed(ROWS[:2], groups_in_files=True) == [
        "rank  file                      how      read  from",
        "   0  rank_0/checkpoint_0.ckpt  written  10 B  0-1",
        "   1  rank_1/checkpoint_1.ckpt  written  11 B  1-2",
    ]


def test_many_ranks_are_grouped() -> None:
    assert printed(ROWS, groups_in_files=True) == [
        "rank      ranks  file                                how              read  from",
        "0-511       512  rank_{rank}/checkpoint_{rank}.ckpt  written  10 B to 11 B  0-512",
        "512-1999   1488  rank_{rank}/checkpoint_{rank}.ckpt  copied   10 B to 11 B",
        "(2000 ranks in 2 groups of equal ones; --json lists each)",
    ]


def test_pipes_get_every_rank() -> None:
    assert len(printed(ROWS)) == 2001


def test_terminals_get_groups() -> None:
    assert len(printed(ROWS, is_short=True)) == 4


def test_a_rank_unlike_the_others_has_its_own_row() -> None:
    odd = [*ROWS[:700], (700, "resumed", 0, ()), *ROWS[701:]]
    shown = printed(odd, groups_in_files=True)
    assert [line.split()[:2] for line in shown[1:4]] == [["0-511", "512"], ["512-699,701-1999", "1487"], ["700", "1"]]
    assert shown[3].split()[2] == "rank_700/checkpoint_700.ckpt"


def test_of_many_groups_the_first_and_the_last_are_shown() -> None:
    shown = printed([(rank, f"how {rank}", 0, ()) for rank in range(100)], groups_in_files=True)
    assert [line.split()[0] for line in shown[1:-1]] == [str(rank) for rank in (*range(12), *range(88, 100))]
    assert shown[-1] == (
        "(100 ranks in 100 groups of equal ones; 76 groups in the middle are not shown; --json lists each)"
    )

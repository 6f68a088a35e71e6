"""Ranks in batches: where there are thousands of them, what records a task's beginning and end cannot follow each one.

A batch is written and checked in one go. One rank's failure stops no other, and what is recorded is not done again when
the batch is repeated.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from reshard.core.conversion.session import check_rank, convert_rank
from reshard.core.errors import ReshardError, StorageError, is_transient
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import VerifyLevel
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.retry import Losses
from reshard.core.target.workspace import Workspace, read_records

Groups = Sequence[Sequence[int]]


class RanksFailedError(StorageError):
    """Ranks of a batch failed; transient if repeating it may help any of them."""

    def __init__(self, failures: Mapping[int, ReshardError]) -> None:
        told = "\n  ".join(f"rank_{rank}: {error}" for rank, error in sorted(failures.items()))
        super().__init__(f"{len(failures)} ranks failed\n  {told}", any(map(is_transient, failures.values())))
        self.failures = failures
        self.args = (failures,)  # what it is made from again in another process


def batch_groups(groups: Groups, most_batches: int) -> list[tuple[tuple[int, ...], ...]]:
    """Groups of ranks in at most so many batches of about equal size; a group stays whole."""
    total = sum(map(len, groups))
    batches: list[list[tuple[int, ...]]] = [[] for _ in range(max(1, most_batches))]
    before = 0
    for group in groups:
        batches[before * len(batches) // total].append(tuple(group))
        before += len(group)
    return [tuple(batch) for batch in batches if batch]


def convert_batch(
    workspace: Workspace,
    plan: ConversionPlan,
    groups: Groups,
    budget: Budget,
    level: VerifyLevel,
    advance: Callable[[int], None],
    *,
    copies: bool,
    prefetch: int,
) -> None:
    """Writes and checks the ranks of some groups, or makes them as copies of ranks that are there.

    Raises:
        RanksFailedError: some failed; all others are done.
        ConversionError: all is to stop.
    """
    ranks = [rank for group in groups for rank in group]
    done = {record.rank for record in read_records(workspace, ranks) if record.is_checked(level)}
    failures: dict[int, ReshardError] = {}
    losses = Losses()

    def work(rank: int, group: Sequence[int]) -> None:
        if rank in done:
            return
        advance(0)  # raises if all is to stop
        try:
            with losses.counted():
                convert_rank(
                    workspace,
                    plan,
                    rank,
                    budget,
                    advance,
                    group=() if copies else group,
                    prefetch=prefetch,
                )
                check_rank(workspace, plan, rank, level, advance)
        except ReshardError as error:
            advance(0)
            failures[rank] = error

    # when the first rank of a group is done the files of all are there: the others only have to be checked
    with ThreadPoolExecutor(prefetch, thread_name_prefix="reshard") as pool:
        for group in groups:
            work(group[0], group)
            for future in [pool.submit(copy_context().run, work, rank, group) for rank in group[1:]]:
                future.result()
    if failures:
        raise RanksFailedError(failures)

"""Batches of units: where there are thousands of ranks, a server cannot record a task's beginning and end for each one.

One rank's failure stops no other rank of its batch, and a repeated batch does only what is left.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Self

from reshard.core.conversion.dispatch import Dispatch, Failures, Kind, Unit, run_in_threads
from reshard.core.conversion.rank_work import RankWork
from reshard.core.errors import ReshardError, StorageError, is_transient
from reshard.core.runtime.retry import FailureStreak
from reshard.core.target.workspace import read_records


class RanksFailedError(StorageError):
    """Ranks of a batch failed; transient if repeating it may help any of them."""

    def __init__(self, failures: Mapping[int, ReshardError]) -> None:
        lines = "\n  ".join(f"rank_{rank}: {error.marked}" for rank, error in sorted(failures.items()))
        super().__init__(f"{len(failures)} ranks failed\n  {lines}", any(map(is_transient, failures.values())))
        self.failures = failures

    def __reduce__(self) -> tuple[type[Self], tuple[Mapping[int, ReshardError]]]:
        return type(self), (self.failures,)


def run_batch(work: RankWork, batch: Unit) -> None:
    """Make and check the ranks of a batch; a RanksFailedError lists those that failed, all others are done."""
    records = read_records(work.workspace, batch.ranks)
    done = {record.rank for record in records if record.is_checked(work.level)}
    failures: Failures = {}
    streak = FailureStreak()

    def do(unit: Unit) -> None:
        work.advance(0)  # raises if the run is being stopped
        try:
            with streak.counted():
                work.make(unit)
                work.check(unit.rank)
        except ReshardError:
            work.advance(0)
            raise

    # one group at a time: the ranks of a failed group are written with its memory
    for unit in batch.units:
        dispatch = Dispatch(list(_left_of(unit, done)))
        run_in_threads(dispatch, do, work.prefetch, work.prefetch, stopping=lambda: None)
        failures |= dispatch.failures
    if failures:
        raise RanksFailedError(failures)


def _left_of(unit: Unit, done: Collection[int]) -> Iterator[Unit]:
    """Units for the ranks of a unit that are left: a group that is partly done is not written side by side again."""
    left = [rank for rank in unit.ranks if rank not in done]
    if len(left) == len(unit.ranks):
        yield unit
    else:
        yield from (Unit(Kind.COMPLETE, (rank,)) for rank in left)

"""Units of work on ranks, and the order in which they are done.

A group of ranks that share reads is written side by side by one unit. Then each of its other ranks has a unit of its
own, which finds its file written, or writes it alone if the group failed. Copies come after all that is written, and
not if their primary failed. One rank's failure stops no other. Where there are thousands of ranks, batches of units
take the place of single ones.

`Dispatch` knows the order and runs nothing: threads of this process are fed by `run_in_threads`, tasks by a flow.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from enum import StrEnum

from reshard.core.errors import ConversionError, ReshardError, StoppedError
from reshard.core.runtime.idle_workers import IdleWorkers, lending
from reshard.core.runtime.records import Record

Failures = dict[int, ReshardError]


class Kind(StrEnum):
    """Kind of work of a unit."""

    WRITE = "write"
    """Write the files of a group of ranks side by side."""
    COMPLETE = "complete"
    """Write a later rank of a group by itself, unless its group is written."""
    COPY = "copy"
    """Copy the file of the rank with the same content."""
    CHECK = "check"
    """Check a written rank."""
    READ = "read"
    """Read source ranks to compare their values."""
    BATCH = "batch"
    """Do other units, and check their ranks."""


class Unit(Record):
    """One unit of work: a kind of work and its ranks; `units` are those of a batch."""

    kind: Kind
    ranks: tuple[int, ...]
    units: tuple["Unit", ...] = ()

    @property
    def rank(self) -> int:
        """The first rank, by which single units are known."""
        return self.ranks[0]

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """The ranks that fail if the unit does: of a group only the first, because the others are tried again."""
        return self.ranks if self.kind in (Kind.BATCH, Kind.READ) else self.ranks[:1]

    @property
    def writes(self) -> bool:
        """True if the unit needs the memory of a whole group."""
        return self.kind is Kind.WRITE or any(unit.writes for unit in self.units)


def batched(units: Sequence[Unit], max_batches: int) -> tuple[Unit, ...]:
    """Combine units into at most `max_batches` batches of about the same number of ranks."""
    total = sum(len(unit.ranks) for unit in units)
    batches: list[list[Unit]] = [[] for _ in range(max(1, max_batches))]
    before = 0
    for unit in units:
        batches[before * len(batches) // total].append(unit)
        before += len(unit.ranks)
    return tuple(_batch(batch) for batch in batches if batch)


def _batch(units: Sequence[Unit]) -> Unit:
    return Unit(Kind.BATCH, tuple(rank for unit in units for rank in unit.ranks), tuple(units))


class Dispatch:
    """The units that are ready, in order, what follows from those that have ended, and `failures` so far by rank."""

    def __init__(
        self,
        written: Sequence[Unit],
        copied: Sequence[Unit] = (),
        primaries: Mapping[int, int] | None = None,
        *,
        separate_checks: bool = False,
    ) -> None:
        """Begin with the units `written`; those of `copied` follow, whose ranks are copies of their `primaries`.

        With `separate_checks` each written rank is checked by a unit of its own, which comes next.
        """
        self.failures: Failures = {}
        self._copied = tuple(copied)
        self._primaries = primaries or {}
        self._separate_checks = separate_checks
        self._waiting: deque[Unit] = deque()
        self._under_way: list[Unit] = []
        self._origins: dict[int, Unit] = {}
        self._left: dict[Unit, set[int]] = {}
        self._admit(written)
        if not self:
            self._admit_copies()

    def __bool__(self) -> bool:
        """True if units are waiting or under way."""
        return bool(self._waiting or self._under_way)

    @property
    def waiting(self) -> Iterator[Unit]:
        """The units that have not begun, in order."""
        return iter(self._waiting)

    def next(self, at_once: int, groups_at_once: int) -> Unit | None:
        """Return the unit to begin next; None if none is ready, or as many are under way as there may be."""
        if not self._waiting or len(self._under_way) >= at_once:
            return None
        unit = self._waiting[0]
        if unit.writes and sum(other.writes for other in self._under_way) >= groups_at_once:
            return None
        return unit

    def idle(self, workers: int, prefetch: int) -> int:
        """Return how many of some workers no unit needs; a group of ranks being written has `prefetch` of them."""
        if self._waiting:
            return 0
        return max(0, workers - sum(prefetch if unit.writes else 1 for unit in self._under_way))

    def begin(self) -> Unit:
        """Take the next unit."""
        unit = self._waiting.popleft()
        self._under_way.append(unit)
        return unit

    def end(self, unit: Unit, failures: Mapping[int, ReshardError]) -> None:
        """Record the end of a unit; the units that follow from it come next."""
        self._under_way.remove(unit)
        self.failures |= failures
        # a file that was written a moment ago is read back first, while it may still be in memory
        following = []
        if self._separate_checks and not failures and unit.kind in (Kind.WRITE, Kind.COMPLETE, Kind.COPY):
            following.append(Unit(Kind.CHECK, unit.ranks[:1]))
        else:
            self._left[self.origin(unit)].difference_update(unit.own_ranks)
        if unit.kind is Kind.WRITE:
            following += [Unit(Kind.COMPLETE, (rank,)) for rank in unit.ranks[1:]]
        self._waiting.extendleft(reversed(following))
        if not self:
            self._admit_copies()

    def origin(self, unit: Unit) -> Unit:
        """Return the unit that began the work on a unit's ranks."""
        return self._origins[unit.rank]

    def is_over(self, origin: Unit) -> bool:
        """True if all ranks of an original unit are done or have failed."""
        return not self._left[origin]

    def fail_rest(self, reason: str) -> None:
        """Fail all ranks that are not done yet: the runner is gone."""
        self._under_way.clear()
        while any(self._left.values()):
            for left in self._left.values():
                self.failures |= {rank: ConversionError(reason) for rank in left}
                left.clear()
            self._waiting.clear()
            self._admit_copies()
        self._waiting.clear()

    def _admit(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._origins |= dict.fromkeys(unit.ranks, unit)
            self._left[unit] = set(unit.ranks)
        self._waiting.extend(units)

    def _admit_copies(self) -> None:
        copied, self._copied = self._copied, ()
        orphans = {rank for unit in copied for rank in unit.ranks if self._primaries[rank] in self.failures}
        for rank in orphans:
            text = f"not written, because it is a copy of rank_{self._primaries[rank]}, which failed"
            self.failures[rank] = ConversionError(text)
        self._admit([unit for each in copied if (unit := _without(each, orphans)) is not None])


def _without(unit: Unit, ranks: set[int]) -> Unit | None:
    """A unit of copies without some ranks; None if nothing is left of it."""
    if ranks.isdisjoint(unit.ranks):
        return unit
    left = [each for each in unit.units if ranks.isdisjoint(each.ranks)]
    return _batch(left) if left else None


def run_in_threads(
    dispatch: Dispatch, do: Callable[[Unit], object], workers: int, prefetch: int, stopping: Callable[[], None]
) -> None:
    """Do all units with threads of this process, of which a group of ranks has `prefetch`; idle ones are lent to units.

    A bug, or an interruption, ends all at once: `stopping` is called before the units under way are waited for.
    """
    groups_at_once = max(1, workers // prefetch)
    under_way: dict[Future[object], Unit] = {}
    with lending(IdleWorkers()) as idle, ThreadPoolExecutor(workers, thread_name_prefix="reshard") as pool:
        try:
            while dispatch:
                idle.offer(0)
                while dispatch.next(workers - idle.lent, groups_at_once) is not None:
                    unit = dispatch.begin()
                    under_way[pool.submit(copy_context().run, do, unit)] = unit
                idle.offer(dispatch.idle(groups_at_once * prefetch, prefetch))
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    unit = under_way.pop(future)
                    dispatch.end(unit, _failures_of(future, unit))
        except BaseException:
            stopping()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _failures_of(future: Future[object], unit: Unit) -> Failures:
    try:
        future.result()
    except StoppedError:
        raise
    except ReshardError as error:
        return dict.fromkeys(unit.own_ranks, error)
    return {}

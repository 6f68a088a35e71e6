"""Keeps ranks that were finished before source files were touched, if they are the same as in the source.

Each is made again from the source as it is now, without being written, and compared with the digests in its record.
That reads what the conversion read. A rank with a different byte is done again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Event

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion.rank_work import rank_or_file
from reshard.core.conversion.report import target_kind
from reshard.core.errors import TargetError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_phase
from reshard.core.runtime.wording import size_text
from reshard.core.storage.file_versions import TOUCHED
from reshard.core.target.target import Target
from reshard.core.target.touched_sources import EarlierWork
from reshard.core.target.workspace import ForeignRecordError, Workspace
from reshard.core.transfer.writer import transform_ranks


class TouchedRanks(Record, dict=True):
    """The ranks in a target's workspace that were finished before source files were touched.

    Attributes:
        workspace: the workspace, whose new records are of the plan of today.
        before: the same directory, with the records of then.
    """

    plan: ConversionPlan
    workspace: Workspace
    before: Workspace
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, target: Target, workspace: Workspace, earlier: EarlierWork) -> "TouchedRanks":
        """Return the ranks of earlier work that are to be compared; damaged records are removed."""
        before = Workspace(workspace.directory, earlier.identity)
        recorded = sorted(workspace.recorded_ranks())
        return cls(target.plan, workspace, before, tuple(rank for rank in recorded if _is_usable(before, rank)))

    @cached_property
    def copies(self) -> Mapping[int, Sequence[int]]:
        """The ranks to make again -> the finished ranks with the same content."""
        copies: dict[int, list[int]] = defaultdict(list)
        for rank in self.ranks:
            copies[self.plan.copies.get(rank, rank)].append(rank)
        return copies

    def compare(self, groups: Sequence[Sequence[int]], budget: Budget, prefetch: int, file: str) -> None:
        """Make groups of ranks again, and give those that are the same a record of the plan of today."""
        first, note = self.plan.target_ranks.start, current_progress().note
        total_bytes = sum(self.plan.totals[rank - first].shard_bytes for rank in self.copies)
        finished = f"{len(self.ranks)} finished {target_kind(self.plan)}s"
        note(f"comparing {finished} with the source ({size_text(total_bytes)}), because {file} is {TOUCHED}")

        def compare(group: Sequence[int], advance: Callable[[int], None]) -> int:
            made = with_retries(lambda: self._make(group, budget, prefetch, advance), note)
            return sum(self._keep_if_same(rank, record) for record in made for rank in self.copies[record.rank])

        workers = max(1, budget.workers // prefetch)
        kept = sum(in_phase("comparing with the source", total_bytes, compare, groups, workers, Event()))
        note(f"{kept} of {finished} are the same as in the source, and are kept")

    def _make(
        self, group: Sequence[int], budget: Budget, prefetch: int, advance: Callable[[int], None]
    ) -> tuple[ShardRecord, ...]:
        identity = self.workspace.identity
        return transform_ranks(
            self.plan, group, None, identity=identity, budget=budget, prefetch=prefetch, advance=advance
        )

    def _keep_if_same(self, rank: int, made: ShardRecord) -> bool:
        record = self.before.read_record(rank)
        if problem := _difference(record, made):
            current_progress().note(f"{rank_or_file(self.plan, rank)} is done again: {problem}")
            self.before.withdraw_record(record)
            return False
        self.workspace.write_record(record.model_copy(update={"identity": self.workspace.identity}))
        return True


def _is_usable(before: Workspace, rank: int) -> bool:
    """True if a rank has a record of the earlier plan; a damaged one is removed."""
    try:
        return before.find_record(rank) is not None
    except ForeignRecordError:  # compared by a run that was killed, or of a conversion before that
        return False
    except TargetError:
        before.remove_record(rank)
        return False


def _difference(record: ShardRecord, made: ShardRecord) -> str | None:
    """Return how a finished rank differs from what the source of today makes of it; None if it is the same."""
    known = {parameter.name: parameter for parameter in record.parameters}
    for parameter in made.parameters:
        if known.get(parameter.name) != parameter:
            return f"parameter {parameter.name!r} has other values in the source than were written"
    if (record.heads, record.size_bytes, len(known)) != (made.heads, made.size_bytes, len(made.parameters)):
        return "its file has other headers than were written"
    return None

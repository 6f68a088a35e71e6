"""The target's ranks at the end of a run, from their records, wherever another run may have moved them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.report import Outcome, RankReport
from reshard.core.conversion.session import Session
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.progress import SilentProgress
from reshard.core.runtime.records import Record
from reshard.core.target.workspace import Workspace, read_records, record_digest
from reshard.core.transfer.overflows import total_overflows

if TYPE_CHECKING:
    from reshard.core.verification.values import ContentCheck


class FinishedRanks(Record):
    """The target's recorded ranks at the end of a run, and whether it was `committed`, complete, before.

    `unchecked` ranks are not recorded as checked as closely as the run asks for; `content` are the fingerprint
    contributions of the others, if contents are compared. `unsigned`: runs that wrote some were to sign the target,
    which was not complete before, and this run is not.
    """

    committed: bool
    workspace: Workspace
    results: Mapping[int, RankReport]
    unchecked: frozenset[int]
    content: "ContentCheck | None"
    overflowed: dict[str, int]
    unsigned: bool = False

    def missing(self, plan: ConversionPlan) -> tuple[int, ...]:
        """The target's ranks that have no record, or none that is checked, of a target that is not complete."""
        return tuple(
            rank
            for rank in plan.target_ranks
            if rank not in self.results or (not self.committed and rank in self.unchecked)
        )


def checked_ranks(session: Session) -> FinishedRanks:
    """Read the records of the target's ranks, and check those of this run that another one has published unchecked."""
    found = _finished_ranks(session)
    if not found.committed:
        return found
    unchecked = found.unchecked & found.results.keys() & set(session.ranks)
    if not unchecked:
        return found
    # another run, which checks less closely, has completed the target before this one had checked its ranks
    work = session.work(SilentProgress().advance, found.workspace)
    for rank in sorted(unchecked):
        work.check(rank)
    return _finished_ranks(session)


def _finished_ranks(session: Session) -> FinishedRanks:
    """Read the records of the target's ranks, wherever they are by now."""
    plan, level, target = session.plan, session.request.verify, session.target
    while True:
        # a run that did other ranks may have completed the target a moment ago, with the ranks of this run
        committed = session.committed or target.is_committed()
        if not committed:
            target.check_not_taken()
        sums: dict[int, str] | None = {} if session.request.sign else None
        workspace = replace(target.finished if committed else session.workspace, sums=sums)
        # a record has a line for every parameter: thousands of them are never in memory together
        results: dict[int, RankReport] = {}
        content = _content_check(plan) if level is VerifyLevel.CONTENT else None
        unchecked, signs = set(plan.target_ranks), False
        for record in read_records(workspace, plan.target_ranks):
            signs |= record.signs
            results[record.rank] = _rank_report(record, resumed=record.rank in session.done)
            if record.is_checked(level):
                unchecked.discard(record.rank)
                if content:
                    content.add_target(record)
        # or the other run completed it while the records were read: they were moved, and are read at their new place
        if committed or not target.is_committed():
            overflowed = total_overflows(plan, [(rank, result.overflowed) for rank, result in results.items()])
            unsigned = signs and not (committed or session.request.sign)
            return FinishedRanks(committed, workspace, results, frozenset(unchecked), content, overflowed, unsigned)


def _content_check(plan: ConversionPlan) -> "ContentCheck":
    from reshard.core.verification.values import ContentCheck

    return ContentCheck(plan)


def _rank_report(record: ShardRecord, resumed: bool) -> RankReport:
    made = Outcome.COPIED if record.copy_of is not None else Outcome.WRITTEN
    return RankReport(
        rank=record.rank,
        outcome=Outcome.RESUMED if resumed else made,
        file=record.file,
        size_bytes=record.size_bytes,
        read_bytes=record.read_bytes,
        seconds=record.seconds,
        source_ranks=record.source_ranks,
        verified=record.verified,
        record_digest=record_digest(record),
        sha256=record.sha256,
        overflowed={overflow.name: overflow.count for overflow in record.overflows},
    )

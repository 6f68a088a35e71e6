"""The end of a run: failures become one error; or contents are compared, the target is committed, a report is made."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from reshard import __version__
from reshard.core.checkpoint.manifest import Manifest, RankSummary, RunRecord, ShardRecord, seal_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.rank_work import rank_or_file
from reshard.core.conversion.report import ConversionReport, Outcome, RankReport, facts_of, target_kind
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.errors import (
    CastError,
    CheckpointError,
    ConversionError,
    InputError,
    ReshardError,
    StorageError,
    VerificationError,
)
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.keys import needed_target_key
from reshard.core.runtime.log import timed
from reshard.core.runtime.progress import SilentProgress, advancing, current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import retries_counted, with_retries
from reshard.core.runtime.this_process import host_name, peak_memory_bytes, user_name
from reshard.core.runtime.threads import in_phase
from reshard.core.runtime.wording import rank_names
from reshard.core.target.documents import companion_summaries
from reshard.core.target.workspace import Workspace, read_records, record_digest
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines
from reshard.core.transfer.overflows import overflow_notes, total_overflows
from reshard.core.transfer.source_files import open_unchanged

if TYPE_CHECKING:
    from reshard.core.verification.values import ContentCheck


def finish(session: Session, seconds: float, source_parts: SourceParts | None = None) -> ConversionReport:
    """Commit the target if all of its ranks are done, and report the run, in which no rank has failed.

    If contents are compared, `source_parts` are what source ranks contribute; missing ones are read here.

    Raises:
        CheckpointError: tensors of the source do not have their CRC.
        VerificationError: a file, or contents, differ.
        ConversionError: a storage failed, or ranks are not done although nothing said so.
    """
    started = time.monotonic()
    found = _checked_ranks(session)
    missing = found.missing(session.plan)
    undone = sorted(set(missing).intersection(session.ranks))
    if undone and not found.committed:
        # for example: a task that was given to two workers ended after its file was checked. Transient, because another
        # run may have committed the target just now
        raise StorageError(
            f"{rank_names(undone, 10)}: reported as done, but no checked file is recorded; rerun the command to retry "
            f"only these ({session.workspace.directory} holds what is done)",
            transient=True,
        )
    if not missing:
        _read_rest(session)
        check_crcs(session)
    compared = found.content if not found.unchecked else None
    if compared:
        _compare_contents(session, compared, source_parts or {}, found.workspace)
    if not found.committed and not missing:
        current_progress().begin("publishing")
        with timed(f"{session.target.final}: committed"):
            manifest = _manifest(session, found, _run_record(session, found, started, seconds), compared)
            session.target.commit(manifest, was_empty=session.was_empty)
    elif found.committed and compared:
        session.target.confirm(session.request.verify, _fingerprint(session, compared))
    return _report(session, found, missing, seconds, compared)


def _read_rest(session: Session) -> None:
    """Read what no rank of this run has read, for its CRCs: ranks done by other runs were made from it."""
    left_bytes = session.crcs.left_bytes()
    if left_bytes:
        progress, stop = current_progress(), Event()
        progress.begin("checking CRCs", left_bytes)
        session.crcs.read_rest(open_unchanged, session.readers, stop, advancing(progress, stop))


def check_crcs(session: Session) -> None:
    """Check the CRCs of source tensors that were read; target ranks made from a damaged one lose their records.

    A rerun repeats these ranks: perhaps the file is right, and was not read right.

    Raises:
        CheckpointError: some differ; the message lists them.
    """
    problems = session.crcs.problems()
    if not problems:
        return
    if not session.target.is_committed():
        for rank in sorted(session.workspace.recorded_ranks()):
            if not problems.keys().isdisjoint(_places_read(session.plan, rank)):
                session.workspace.remove_record(rank)
    what = "\n  ".join(listed_lines(list(dict.fromkeys(problems.values()))))
    raise CheckpointError(
        f"{what}. {session.workspace.directory} holds what was made of the rest: get the damaged files again, and "
        f"begin again with {option('overwrite', True)}"
    )


def _places_read(plan: ConversionPlan, rank: int) -> Iterator[tuple[str, str]]:
    """The source tensors that a target rank is made from: URL of the file, and name."""
    records = plan.inputs.catalog.records
    for each in plan.rank_plan(plan.copies.get(rank, rank)).parameters:
        for read in each.reads:
            yield records[read.source_rank].location, each.sources[read.source].name


def raise_failures(failures: Mapping[int, ReshardError], session: Session) -> None:
    """Raise one error for all ranks that failed, of the kind that most concerns the user; none if none failed."""
    if not failures:
        return
    plan, kind = session.plan, target_kind(session.plan)
    lines = [f"{rank_or_file(plan, rank)}: {error.marked}" for rank, error in sorted(failures.items())]
    # a copy fails as its primary does
    causes = [error for rank, error in failures.items() if plan.copies.get(rank) not in failures]
    # values stay too large, however often they are cast
    is_lasting = any(isinstance(error, CastError) for error in causes)
    advice = "" if is_lasting else "; rerun the command to retry only these"
    message = (
        f"{len(failures)} of {len(session.ranks)} target {kind}s failed{advice} "
        f"({session.workspace.directory} holds what is done)\n  " + "\n  ".join(lines)
    )
    if all(isinstance(error, InputError) for error in causes):
        raise InputError(message)
    if any(isinstance(error, VerificationError) for error in failures.values()):
        raise VerificationError(message)
    raise ConversionError(message) from next(
        (error for error in failures.values() if isinstance(error, StorageError)), None
    )


class _FinishedRanks(Record):
    """The target's recorded ranks at the end of a run, and whether it was `committed`, complete, before.

    `unchecked` ranks are not recorded as checked as closely as the run asks for; `content` are the fingerprint
    contributions of the others, if contents are compared.
    """

    committed: bool
    workspace: Workspace
    results: Mapping[int, RankReport]
    unchecked: frozenset[int]
    content: "ContentCheck | None"
    overflowed: dict[str, int]

    def missing(self, plan: ConversionPlan) -> tuple[int, ...]:
        """The target's ranks that have no record, or none that is checked, of a target that is not complete."""
        return tuple(
            rank
            for rank in plan.target_ranks
            if rank not in self.results or (not self.committed and rank in self.unchecked)
        )


def _checked_ranks(session: Session) -> _FinishedRanks:
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


def _finished_ranks(session: Session) -> _FinishedRanks:
    """Read the records of the target's ranks, wherever they are by now."""
    plan, level, target = session.plan, session.request.verify, session.target
    while True:
        # a run that did other ranks may have completed the target a moment ago, with the ranks of this run
        committed = session.committed or target.is_committed()
        if not committed:
            target.check_not_taken()
        workspace = Workspace(target.final, session.workspace.identity) if committed else session.workspace
        # a record has a line for every parameter: thousands of them are never in memory together
        results: dict[int, RankReport] = {}
        content = _content_check(plan) if level is VerifyLevel.CONTENT else None
        unchecked = set(plan.target_ranks)
        for record in read_records(workspace, plan.target_ranks):
            results[record.rank] = _rank_report(record, resumed=record.rank in session.done)
            if record.is_checked(level):
                unchecked.discard(record.rank)
                if content:
                    content.add_target(record)
        # or the other run completed it while the records were read: they were moved, and are read at their new place
        if committed or not target.is_committed():
            overflowed = total_overflows(plan, [(rank, result.overflowed) for rank, result in results.items()])
            return _FinishedRanks(committed, workspace, results, frozenset(unchecked), content, overflowed)


def _content_check(plan: ConversionPlan) -> "ContentCheck":
    from reshard.core.verification.values import ContentCheck

    return ContentCheck(plan)


def _compare_contents(
    session: Session, content: "ContentCheck", source_parts: SourceParts, workspace: Workspace
) -> None:
    """Compare contents; target ranks that may be to blame lose their records, so a rerun repeats them."""
    from reshard.core.verification.values import content_problems_text

    unread = [rank for rank in content.source_ranks if rank not in source_parts]
    source_parts = source_parts | _read_source_parts(session, unread)
    for rank in content.source_ranks:
        content.add_source(rank, source_parts[rank])
    problems = content.problems(session.readers)
    if not problems:
        return
    for rank in sorted({rank for problem in problems for rank in problem.ranks}):
        workspace.remove_record(rank)
    raise VerificationError(content_problems_text(str(session.target.final), problems))


def _read_source_parts(session: Session, ranks: Sequence[int]) -> SourceParts:
    """Read the source ranks that no unit has read: the target's last rank was done by another run only just now."""
    content, note = session.content, current_progress().note

    def read(rank: int, advance: Callable[[int], None]) -> np.ndarray:
        return with_retries(lambda: content.source_parts(rank, advance), note)

    total_bytes = content.source_bytes() if ranks else 0
    parts = in_phase("comparing values", total_bytes, read, ranks, session.readers, Event())
    return dict(zip(ranks, parts, strict=True))


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
        overflowed={overflow.name: overflow.count for overflow in record.overflows},
    )


def _report(
    session: Session, found: _FinishedRanks, missing: tuple[int, ...], seconds: float, compared: "ContentCheck | None"
) -> ConversionReport:
    plan, level = session.plan, session.request.verify
    ranks = tuple(found.results[rank] for rank in session.ranks if rank in found.results)
    written = [rank for rank in ranks if rank.outcome is not Outcome.RESUMED]
    written_bytes = sum(rank.size_bytes for rank in written)
    return ConversionReport(
        **dict(facts_of(plan, *overflow_notes(found.overflowed))),
        identity=session.workspace.identity,
        target=str(session.target.final),
        directory=str(session.workspace.directory if missing else session.target.final),
        committed=not missing,
        missing_ranks=missing,
        seconds=round(seconds, 3),
        written_bytes=written_bytes,
        read_bytes=sum(rank.read_bytes for rank in written),
        crc_bytes=_crc_bytes(session),
        verified_bytes=0 if level.is_below(VerifyLevel.CHECKSUM) else written_bytes,
        compared=compared.parameter_count if compared else 0,
        compared_bytes=compared.source_bytes() if compared else 0,
        fingerprint=_fingerprint(session, compared),
        retried_requests=retries_counted(),
        verified=level if compared else level.of_files,
        overflowed=found.overflowed,
        ranks=ranks,
    )


def _fingerprint(session: Session, compared: "ContentCheck | None") -> str | None:
    """Return the target's fingerprint, if it was computed; beside an encrypted target it would reveal something."""
    return compared.target_fingerprint() if compared and not session.plan.inputs.encryption else None


def _run_record(session: Session, found: _FinishedRanks, started: float, seconds: float) -> RunRecord:
    """Describe this run: it had taken so many seconds when its end was `started`, by the monotonic clock."""
    took_seconds = seconds + time.monotonic() - started
    written = [found.results[rank] for rank in session.pending if rank in found.results]
    return RunRecord(
        begun=(datetime.now(UTC) - timedelta(seconds=took_seconds)).isoformat(timespec="seconds"),
        seconds=round(took_seconds, 3),
        user=user_name(),
        host=host_name(),
        read_bytes=sum(rank.read_bytes for rank in written),
        written_bytes=sum(rank.size_bytes for rank in written),
        resumed_ranks=len(found.results) - len(written),
        retried_requests=retries_counted(),
        peak_memory_bytes=None if session.request.dask_scheduler else peak_memory_bytes(),
    )


def _manifest(session: Session, found: _FinishedRanks, run: RunRecord, compared: "ContentCheck | None") -> Manifest:
    plan = session.plan
    documents = session.target.documents
    least_verified = min((rank.verified for rank in found.results.values()), key=list(VerifyLevel).index)
    manifest = Manifest(
        identity=session.workspace.identity,
        writer=f"reshard {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=plan.inputs.catalog.url,
        step=plan.inputs.catalog.step,
        source_world_size=plan.inputs.catalog.world_size,
        target_world_size=len(plan.target_ranks),
        format=str(plan.inputs.format),
        verified=VerifyLevel.CONTENT if compared else least_verified,
        dropped=plan.match.dropped,
        excused=plan.match.missing,
        carried=plan.match.beyond_strategies,
        notes=(*overflow_notes(found.overflowed), *plan_notes(plan)),
        ranks=tuple(_rank_summary(found.results[rank]) for rank in plan.target_ranks),
        layout=plan.inputs.layout.name,
        index=documents.index.summary if documents.index else None,
        common=documents.common.summary if documents.common else None,
        other_documents=tuple(each.summary for each in documents.others),
        changes=plan.inputs.changes,
        excluded=tuple(plan.match.left_out.sources),
        plan_digest=xxhash.xxh3_128_hexdigest(session.target.plan_data),
        companions=companion_summaries(plan),
        run=run,
        fingerprint=_fingerprint(session, compared),
    )
    return seal_manifest(manifest, needed_target_key()) if plan.inputs.encryption else manifest


def _rank_summary(report: RankReport) -> RankSummary:
    return RankSummary(
        rank=report.rank, file=report.file, size_bytes=report.size_bytes, record_digest=report.record_digest
    )


def _crc_bytes(session: Session) -> int:
    """Bytes that were read only for CRCs: at the end, or whole files at the beginning."""
    if not session.request.check_crc:
        return 0
    records = session.plan.inputs.catalog.records.values()
    if any(record.index.crcs for record in records):
        return session.crcs.read_bytes
    return sum(record.size_bytes for record in records if record.index.has_crc)

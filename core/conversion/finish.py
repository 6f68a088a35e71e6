"""The end of a run: failures become one error; or contents are compared, the target is committed, a report is made."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from msgspec.structs import replace

from reshard import __version__
from reshard.core.checkpoint.manifest import (
    IndexSummary,
    Manifest,
    RankSummary,
    RunRecord,
    ShardRecord,
    SourceFileRecord,
    seal_manifest,
)
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.custody_summary import custody_of
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.rank_work import rank_or_file
from reshard.core.conversion.report import ConversionReport, Outcome, RankReport, facts_of, target_kind
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.conversion.sha256 import complete_records, listing, with_missing_sha256
from reshard.core.custody.digests import has_sha256
from reshard.core.errors import (
    CastError,
    CheckpointError,
    ConversionError,
    InputError,
    ReshardError,
    StorageError,
    TargetError,
    VerificationError,
)
from reshard.core.layouts.documents import Document
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.keys import needed_target_key
from reshard.core.runtime.log import timed
from reshard.core.runtime.progress import SilentProgress, advancing, current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import retries_counted, with_retries
from reshard.core.runtime.this_process import host_name, peak_memory_bytes, user_name
from reshard.core.runtime.threads import in_phase
from reshard.core.runtime.wording import rank_names
from reshard.core.target.documents import companion_summaries, companions_with_sha256
from reshard.core.target.target import Signing
from reshard.core.target.workspace import Workspace, read_records, record_digest
from reshard.core.text.options import option, spelled
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
    started, level = time.monotonic(), session.request.verify
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
    if not found.committed and not missing:
        found = replace(found, results=with_missing_sha256(session, found.workspace, found.results))
    if found.committed and level is VerifyLevel.CONTENT and found.unchecked.intersection(session.ranks):
        raise TargetError(
            f"{session.target.final}: is signed, and its records lack what a comparison of values needs: compare with "
            f"reshard verify at the level content, or name the key with {option('sign')} to add it and sign again"
        )
    compared = found.content if not found.unchecked else None
    if compared:
        _compare_contents(session, compared, source_parts or {}, found.workspace)
    if not found.committed and not missing:
        source_files = session.source_files if session.request.hashes_source else ()
        current_progress().begin("publishing")
        with timed(f"{session.target.final}: committed"):
            run = _run_record(session, found, started, seconds)
            _commit(session, found, _manifest(session, found, run, compared, source_files), compared)
    raised = False
    if found.committed and compared:
        raised = session.target.confirm(session.request.verify, _fingerprint(session, compared))
    if found.committed:
        complete_records(session, compared, found.overflowed, is_new=raised)
        if session.request.sign:
            from reshard.core.conversion.signing import sign_committed  # with cryptography

            sign_committed(session)
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
            return _FinishedRanks(committed, workspace, results, frozenset(unchecked), content, overflowed, unsigned)


def _commit(session: Session, found: _FinishedRanks, manifest: Manifest, compared: "ContentCheck | None") -> None:
    """Commit the target with its `manifest`, not sealed yet, and with statements if its files have their SHA-256."""
    statements: tuple[Document, ...] = ()
    if has_sha256(manifest):
        from reshard.core.conversion.statements import make_statements

        statements = make_statements(session, manifest, compared, found.overflowed)
    listed = listing(manifest, statements)
    if session.plan.inputs.encryption:
        listed = seal_manifest(listed, needed_target_key())
    signing: Signing | None = None
    if session.request.sign:
        from reshard.core.conversion.signing import signing_of  # with cryptography

        signing = signing_of(session, listed, found.workspace.sums or {})
    session.target.commit(listed, statements, was_empty=session.was_empty, signing=signing)


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
        sha256=record.sha256,
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
        **dict(facts_of(plan, *overflow_notes(found.overflowed), *_unsigned_note(session, found, missing))),
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
        source_files_bytes=session.source_files_bytes,
        fingerprint=_fingerprint(session, compared),
        retried_requests=retries_counted(),
        verified=level if compared else level.of_files,
        overflowed=found.overflowed,
        ranks=ranks,
        custody=custody_of(session) if not missing else None,
    )


def _unsigned_note(session: Session, found: _FinishedRanks, missing: tuple[int, ...]) -> Iterator[str]:
    """Yield a sentence if this run, without a key, has published what another one was to sign."""
    if found.unsigned and not missing:
        yield (
            f"{session.target.final}: is not signed, although another run that wrote files of it was to sign it: this "
            f"one has published it without a key. The same conversion with {spelled(option('sign'))} signs it"
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


def _manifest(
    session: Session,
    found: _FinishedRanks,
    run: RunRecord,
    compared: "ContentCheck | None",
    source_files: tuple[SourceFileRecord, ...],
) -> Manifest:
    plan = session.plan
    documents = session.target.documents
    hashes = any(rank.sha256 is not None for rank in found.results.values())
    least_verified = min((rank.verified for rank in found.results.values()), key=list(VerifyLevel).index)
    return Manifest(
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
        encryption=plan.inputs.encryption,
        layout=plan.inputs.layout.name,
        index=_summary(documents.index, hashes) if documents.index else None,
        common=_summary(documents.common, hashes) if documents.common else None,
        other_documents=tuple(_summary(each, hashes) for each in documents.others),
        changes=plan.inputs.changes,
        excluded=tuple(plan.match.left_out.sources),
        plan_digest=xxhash.xxh3_128_hexdigest(session.target.plan_data),
        companions=companions_with_sha256(plan) if hashes else companion_summaries(plan),
        run=run,
        fingerprint=_fingerprint(session, compared),
        source_files=source_files,
    )


def _summary(document: Document, hashes: bool) -> IndexSummary:
    return document.summary_with_sha256 if hashes else document.summary


def _rank_summary(report: RankReport) -> RankSummary:
    return RankSummary(
        rank=report.rank,
        file=report.file,
        size_bytes=report.size_bytes,
        record_digest=report.record_digest,
        sha256=report.sha256,
    )


def _crc_bytes(session: Session) -> int:
    """Bytes that were read only for CRCs: at the end, or whole files at the beginning."""
    if not session.request.check_crc:
        return 0
    records = session.plan.inputs.catalog.records.values()
    if any(record.index.crcs for record in records):
        return session.crcs.read_bytes
    return sum(record.size_bytes for record in records if record.index.has_crc)

"""The end of a run whose ranks are done: contents are compared, the target is committed, a report is made."""

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from reshard.core.checkpoint.manifest import Manifest, seal_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.custody_summary import custody_of
from reshard.core.conversion.failures import check_crcs
from reshard.core.conversion.finished_ranks import FinishedRanks, checked_ranks
from reshard.core.conversion.report import ConversionReport, Outcome, facts_of
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.conversion.sha256 import complete_records, listing, with_missing_sha256
from reshard.core.conversion.target_manifest import describe_run, fingerprint_of, make_manifest
from reshard.core.custody.digests import has_sha256
from reshard.core.errors import StorageError, TargetError, VerificationError
from reshard.core.layouts.documents import Document
from reshard.core.runtime.keys import needed_target_key
from reshard.core.runtime.log import timed
from reshard.core.runtime.progress import advancing, current_progress
from reshard.core.runtime.retry import retries_counted, with_retries
from reshard.core.runtime.threads import in_phase
from reshard.core.runtime.wording import rank_names
from reshard.core.target.target import Signing
from reshard.core.target.upkeep import confirm
from reshard.core.target.workspace import Workspace
from reshard.core.text.options import option, spelled
from reshard.core.transfer.overflows import overflow_notes
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
    found = checked_ranks(session)
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
            run = describe_run(session, found, seconds + time.monotonic() - started)
            _commit(session, found, make_manifest(session, found, run, compared, source_files), compared)
    raised = False
    if found.committed and compared:
        raised = confirm(session.target, session.request.verify, fingerprint_of(session, compared))
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


def _commit(session: Session, found: FinishedRanks, manifest: Manifest, compared: "ContentCheck | None") -> None:
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

        # of all ranks, this run's lease keeps all others away; else another run may have written records since
        is_alone = set(session.ranks) == set(session.plan.target_ranks)
        sums = found.workspace.sums if is_alone else None
        signing = signing_of(session.target, listed, sums or {}, session.readers)
    session.target.commit(listed, statements, was_empty=session.was_empty, signing=signing)


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


def _report(
    session: Session, found: FinishedRanks, missing: tuple[int, ...], seconds: float, compared: "ContentCheck | None"
) -> ConversionReport:
    plan, request, level = session.plan, session.request, session.request.verify
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
        fingerprint=fingerprint_of(session, compared),
        retried_requests=retries_counted(),
        verified=level if compared else level.of_files,
        overflowed=found.overflowed,
        ranks=ranks,
        custody=custody_of(session.target, signs=bool(request.sign)) if request.hashes_target and not missing else None,
    )


def _unsigned_note(session: Session, found: FinishedRanks, missing: tuple[int, ...]) -> Iterator[str]:
    """Yield a sentence if this run, without a key, has published what another one was to sign."""
    if found.unsigned and not missing:
        yield (
            f"{session.target.final}: is not signed, although another run that wrote files of it was to sign it: this "
            f"one has published it without a key. The same conversion with {spelled(option('sign'))} signs it"
        )


def _crc_bytes(session: Session) -> int:
    """Bytes that were read only for CRCs: at the end, or whole files at the beginning."""
    if not session.request.check_crc:
        return 0
    records = session.plan.inputs.catalog.records.values()
    if any(record.index.crcs for record in records):
        return session.crcs.read_bytes
    return sum(record.size_bytes for record in records if record.index.has_crc)

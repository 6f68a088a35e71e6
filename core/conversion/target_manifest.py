"""The manifest of a target that a run completes, with the run's own record."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import xxhash

from reshard import __version__
from reshard.core.checkpoint.manifest import IndexSummary, Manifest, RankSummary, RunRecord, SourceFileRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.finished_ranks import FinishedRanks
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.report import RankReport
from reshard.core.conversion.run_record import run_record
from reshard.core.conversion.session import Session
from reshard.core.layouts.documents import Document
from reshard.core.runtime.this_process import peak_memory_bytes
from reshard.core.target.documents import companion_summaries, companions_with_sha256
from reshard.core.transfer.overflows import overflow_notes

if TYPE_CHECKING:
    from reshard.core.verification.values import ContentCheck


def describe_run(session: Session, found: FinishedRanks, seconds: float) -> RunRecord:
    """Describe this run, which has taken so many seconds."""
    written = [found.results[rank] for rank in session.pending if rank in found.results]
    return run_record(
        seconds,
        read_bytes=sum(rank.read_bytes for rank in written),
        written_bytes=sum(rank.size_bytes for rank in written),
        resumed_ranks=len(found.results) - len(written),
        peak_memory_bytes=None if session.request.dask_scheduler else peak_memory_bytes(),
    )


def make_manifest(
    session: Session,
    found: FinishedRanks,
    run: RunRecord,
    compared: "ContentCheck | None",
    source_files: tuple[SourceFileRecord, ...],
) -> Manifest:
    """Return the manifest of a target that this run completes; what it lists besides ranks is read for its SHA-256."""
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
        fingerprint=fingerprint_of(session, compared),
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


def fingerprint_of(session: Session, compared: "ContentCheck | None") -> str | None:
    """Return the target's fingerprint, if it was computed; beside an encrypted target it would reveal something."""
    return compared.target_fingerprint() if compared and not session.plan.inputs.encryption else None

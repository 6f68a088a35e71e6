"""The check of a finished conversion: all files against manifest and records, and values against the source."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reshard.core.checkpoint.manifest import Manifest, RankSha256, RankSummary, sha256_by_file, unseal_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import StorageError, TargetError, is_transient
from reshard.core.layouts.targets import is_target_name, side_named
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.bandwidth import bandwidth_limited, parse_bandwidth
from reshard.core.runtime.keys import KeyNames, named_keys, target_key
from reshard.core.runtime.log import timed
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import Progress, SilentProgress, advancing
from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import FILE, RANK
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import utf8_text
from reshard.core.storage.listing import exists
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.publishing import SIGNATURE_NAME, other_files
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.documents import document_problem, places_problem
from reshard.core.target.finished import Finished, find_finished
from reshard.core.target.workspace import Workspace, record_digest
from reshard.core.verification.files import verify_rank
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.source_comparison import SourceComparison
from reshard.core.verification.state import UNDIGESTED, state_problems

if TYPE_CHECKING:
    from reshard.core.custody.checking import SignatureCheck
    from reshard.core.custody.dependencies import Findings
    from reshard.core.signing.verifier import Verifier

_WORKERS = 4
_MAX_LISTED = 6


@contextmanager
def resources_to_verify(
    request: VerificationRequest, resolvers: Mapping[str, Resolver] | None = None
) -> Iterator[None]:
    """Provide the storages, keys and limits of a request inside the block; the target names its source.

    Raises:
        InputError: a name cannot be resolved, or there is no finished conversion.
        StorageError: the target cannot be read.
    """
    names = KeyNames(request.source_decrypt_key, request.source_decrypt_mode, request.decrypt_key, request.decrypt_mode)
    pairs = [(request.target, request.storage), (request.signed_by, request.storage)]
    with named_keys(names, resolvers), bandwidth_limited(parse_bandwidth(request.bandwidth_limit)):
        if request.level is VerifyLevel.CONTENT or request.provenance:
            with named_storages(pairs, resolvers):
                source = find_finished(parse_url(request.target)).manifest.source
            pairs.append((source, request.source_storage))
        with named_storages(pairs, resolvers):
            yield


def verify_requested(
    request: VerificationRequest, progress: Progress, resolvers: Mapping[str, Resolver]
) -> VerificationReport:
    """Check what a request asks for, whose resources are provided; raises as `verify_target` and `read_verifier`."""
    signed_by = None
    if request.signed_by:
        from reshard.core.custody.checking import read_verifier  # with cryptography

        signed_by = read_verifier(request.signed_by, resolvers)
    return verify_target(request.target, request.level, progress, provenance=request.provenance, signed_by=signed_by)


def verify_target(
    url: str,
    level: VerifyLevel,
    progress: Progress | None = None,
    *,
    provenance: bool = False,
    signed_by: "Verifier | None" = None,
) -> VerificationReport:
    """Check a finished conversion against its manifest and records; at `content` also against its source.

    With `provenance`, the statements about it are checked as well, and the files that it was made from by them. With
    `signed_by`, so are signatures: that somebody who is trusted made them, over all files as they are.

    Raises:
        InputError: there is no finished conversion at the URL; or it is encrypted, and its key is not in force; or the
            source to compare it with is missing or changed.
        StorageError: it cannot be read.
    """
    finished = find_finished(parse_url(url))
    return verify_finished(finished, level, progress, provenance=provenance, signed_by=signed_by).report


class Verified(Record):
    """A finished conversion that was checked; `sha256` of the ranks whose files were read for it."""

    report: VerificationReport
    sha256: Mapping[int, RankSha256]


def verify_finished(
    finished: Finished,
    level: VerifyLevel,
    progress: Progress | None = None,
    *,
    provenance: bool = False,
    signed_by: "Verifier | None" = None,
    hashes: bool = False,
) -> Verified:
    """Check a finished conversion as `verify_target` does; with `hashes` the SHA-256 of all files is taken."""
    started = time.monotonic()
    progress = progress or SilentProgress()
    location, manifest = finished.location, finished.manifest
    unseal_manifest(manifest, target_key(), str(location))
    workspace = Workspace(location, manifest.identity)
    comparison = SourceComparison(workspace, manifest) if level is VerifyLevel.CONTENT else None
    signature = _signature(location, manifest, signed_by)
    found = _verify_ranks(workspace, manifest, level, progress, comparison, hashes=hashes or signature is not None)
    taken = {rank.rank: each.sha256 for rank, each in zip(manifest.ranks, found, strict=True) if each.sha256}
    problems = [problem for each in found for problem in each.problems]
    problems += _directory_problems(workspace, manifest, are_ranks_right=not problems)
    stated = _check_statements(location, manifest, signed_by, progress) if provenance else None
    problems += stated.problems if stated else ()
    reads_contents, signing = not level.is_below(VerifyLevel.CHECKSUM), None
    if signature:
        progress.begin("checking the signature")
        read = sha256_by_file((rank.file, taken[rank.rank]) for rank in manifest.ranks if rank.rank in taken)
        signing = signature.compare(read, reads_contents=reads_contents, workers=_WORKERS)
        problems += signing.problems
    if comparison and not problems:  # they would repeat these problems in other words
        problems += comparison.problems(_WORKERS)
    report = VerificationReport(
        target=str(location),
        level=level,
        ranks=len(manifest.ranks),
        read_bytes=sum(each.read_bytes for each in found),
        hashed=sum(each.hashed for each in found),
        compared=comparison.parameter_count if comparison else 0,
        compared_bytes=comparison.source_bytes if comparison else 0,
        seconds=round(time.monotonic() - started, 3),
        problems=tuple(map(utf8_text, problems)),
        notes=(
            *finished.notes,
            *([f"{location}: {UNDIGESTED}"] if manifest.plan_digest is None else []),
            *(stated.notes if stated else ()),
            *(signing.notes if signing else _signature_note(location)),
        ),
        signed_by=signing.signer_of_all if signing and reads_contents else None,
        stated=provenance,
        kind=FILE if side_named(manifest.layout).record.ranks_are_files else RANK,
    )
    return Verified(report, taken)


class _CheckedRank(Record):
    """The problems of one rank, and what was read: bytes of contents, and the SHA-256 of the file, if all was.

    `hashed` files had it compared with the manifest's.
    """

    problems: Sequence[str]
    read_bytes: int = 0
    hashed: int = 0
    sha256: RankSha256 | None = None


def _verify_ranks(
    workspace: Workspace,
    manifest: Manifest,
    level: VerifyLevel,
    progress: Progress,
    comparison: SourceComparison | None,
    *,
    hashes: bool,
) -> list[_CheckedRank]:
    """Check the files of all ranks; with a `comparison`, read the source's values before, and give it theirs."""
    stop = threading.Event()
    advance = advancing(progress, stop)
    if comparison:
        progress.begin("reading the source's values", comparison.source_bytes)
        comparison.read_source(_WORKERS, advance, stop)

    def verify(summary: RankSummary) -> _CheckedRank:
        needed = hashes or summary.sha256 is not None
        with timed(f"{workspace.directory.child(summary.file)}: checked ({level})"):
            return _verify_published(workspace, manifest, summary, level, advance, comparison, hashes=needed)

    reads_contents = not level.is_below(VerifyLevel.CHECKSUM)
    progress.begin("verifying", sum(rank.size_bytes for rank in manifest.ranks) if reads_contents else 0)
    return in_threads(verify, manifest.ranks, _WORKERS, stop)


def _verify_published(
    workspace: Workspace,
    manifest: Manifest,
    summary: RankSummary,
    level: VerifyLevel,
    advance: Callable[[int], None],
    comparison: SourceComparison | None,
    *,
    hashes: bool,
) -> _CheckedRank:
    try:
        record = workspace.read_record(summary.rank, needs_digest=manifest.plan_digest is not None)
    except (StorageError, TargetError) as error:
        if is_transient(error):
            raise
        return _CheckedRank([f"rank_{summary.rank}: {error}"])
    starts = comparison.starts(summary.rank) if comparison else None
    # a run that adds SHA-256 to a finished target records that of its files first, and may have been killed then
    is_recorded = record.file == summary.file and (record.sha256 in (None, summary.sha256) or summary.sha256 is None)
    is_recorded = is_recorded and record_digest(record) == summary.record_digest
    if summary.sha256 is not None:  # what a signature is about is the manifest
        record = record.model_copy(update={"sha256": summary.sha256})
    hashes = hashes or record.sha256 is not None
    found = verify_rank(workspace.directory, record, level, advance=advance, starts=starts, hashes=hashes)
    if comparison and not found.problems:
        comparison.add(record.model_copy(update={"parts": found.parts}))
    if is_recorded:
        hashed = len(sha256_by_file([(summary.file, found.sha256)])) if found.sha256 and summary.sha256 else 0
        return _CheckedRank(found.problems, found.read_bytes, hashed, found.sha256)
    stale = f"rank_{summary.rank}: its record is not the one that the manifest was written for"
    return _CheckedRank([stale, *found.problems], found.read_bytes, sha256=found.sha256)


def _check_statements(
    location: Location, manifest: Manifest, signed_by: "Verifier | None", progress: Progress
) -> "Findings":
    from reshard.core.custody.provenance_checks import check_provenance  # with cryptography

    return check_provenance(location, manifest, signed_by, progress)


def _signature(location: Location, manifest: Manifest, signed_by: "Verifier | None") -> "SignatureCheck | None":
    if signed_by is None:
        return None
    from reshard.core.custody.checking import SignatureCheck

    return SignatureCheck.of(location, manifest, signed_by)


def _signature_note(location: Location) -> Iterator[str]:
    """Yield a sentence on a signature that nobody asked to check, if there is one."""
    if exists(location.child(SIGNATURE_NAME)):
        from reshard.core.custody.checking import signature_note

        yield signature_note(location)


def _directory_problems(workspace: Workspace, manifest: Manifest, *, are_ranks_right: bool) -> Iterator[str]:
    """Problems of the manifest, the index, foreign files and the state."""
    location = workspace.directory
    if len({rank.rank for rank in manifest.ranks}) != manifest.target_world_size:
        are_ranks_right = False
        yield (
            f"{location}: its manifest lists {len(manifest.ranks)} of {manifest.target_world_size} ranks: it was "
            "changed"
        )
    for document in manifest.beside:
        problem = document_problem(location, document)
        if problem is None and are_ranks_right and document is manifest.index:
            records = (workspace.read_record(summary.rank) for summary in manifest.ranks)
            problem = places_problem(location, side_named(manifest.layout), document, records)
        if problem is not None:
            yield problem
    for other in other_files(location, [*manifest.files, SIGNATURE_NAME], is_target_name):
        if other.parent == location:
            risk = "loaders may take it for a part of one"
        else:
            risk = "MindSpore may take it for a rank's newest file"
        yield f"{other}: does not belong to this checkpoint, but {risk}"
    yield from state_problems(location, manifest)

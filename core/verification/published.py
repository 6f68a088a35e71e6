"""The check of a finished conversion: all files against manifest and records, and values against the source."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import Manifest, RankSummary, unseal_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import InputError, StorageError, TargetError, is_transient
from reshard.core.layouts.any_layout import tracked_steps
from reshard.core.layouts.manifests import read_manifest
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
from reshard.core.runtime.wording import listed, utf8_text
from reshard.core.storage.listing import exists
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY, list_names, other_files
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.documents import document_problem, places_problem
from reshard.core.target.workspace import Workspace, record_digest
from reshard.core.verification.files import verify_rank
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.source_comparison import SourceComparison
from reshard.core.verification.state import UNDIGESTED, state_problems

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
    pairs = [(request.target, request.storage)]
    with named_keys(names, resolvers), bandwidth_limited(parse_bandwidth(request.bandwidth_limit)):
        if request.level is VerifyLevel.CONTENT:
            with named_storages(pairs, resolvers):
                source = _find_finished(parse_url(request.target)).manifest.source
            pairs.append((source, request.source_storage))
        with named_storages(pairs, resolvers):
            yield


def verify_target(url: str, level: VerifyLevel, progress: Progress | None = None) -> VerificationReport:
    """Check a finished conversion against its manifest and records; at `content` also against its source.

    Raises:
        InputError: there is no finished conversion at the URL; or it is encrypted, and its key is not in force; or the
            source to compare it with is missing or changed.
        StorageError: it cannot be read.
    """
    started = time.monotonic()
    progress = progress or SilentProgress()
    finished = _find_finished(parse_url(url))
    location, manifest = finished.location, finished.manifest
    unseal_manifest(manifest, target_key(), str(location))
    workspace = Workspace(location, manifest.identity)
    comparison = SourceComparison(workspace, manifest) if level is VerifyLevel.CONTENT else None
    compared_bytes = comparison.source_bytes if comparison else 0
    stop = threading.Event()
    advance = advancing(progress, stop)
    if comparison:
        progress.begin("reading the source's values", compared_bytes)
        comparison.read_source(_WORKERS, advance, stop)

    def verify(summary: RankSummary) -> tuple[list[str], int]:
        with timed(f"{location.child(summary.file)}: checked ({level})"):
            return _verify_published(workspace, manifest, summary, level, advance, comparison)

    reads_contents = not level.is_below(VerifyLevel.CHECKSUM)
    progress.begin("verifying", sum(rank.size_bytes for rank in manifest.ranks) if reads_contents else 0)
    found = in_threads(verify, manifest.ranks, _WORKERS, stop)
    problems = [problem for some, _ in found for problem in some]
    problems += _directory_problems(workspace, manifest, are_ranks_right=not problems)
    if comparison and not problems:  # they would repeat these problems in other words
        problems += comparison.problems(_WORKERS)
    return VerificationReport(
        target=str(location),
        level=level,
        ranks=len(manifest.ranks),
        read_bytes=sum(count for _, count in found),
        compared=comparison.parameter_count if comparison else 0,
        compared_bytes=compared_bytes,
        seconds=round(time.monotonic() - started, 3),
        problems=tuple(map(utf8_text, problems)),
        notes=(*finished.notes, *([f"{location}: {UNDIGESTED}"] if manifest.plan_digest is None else [])),
        kind=FILE if side_named(manifest.layout).record.ranks_are_files else RANK,
    )


def _verify_published(
    workspace: Workspace,
    manifest: Manifest,
    summary: RankSummary,
    level: VerifyLevel,
    advance: Callable[[int], None],
    comparison: SourceComparison | None,
) -> tuple[list[str], int]:
    """The problems of one rank, and the bytes of contents that were read."""
    try:
        record = workspace.read_record(summary.rank, needs_digest=manifest.plan_digest is not None)
    except (StorageError, TargetError) as error:
        if is_transient(error):
            raise
        return [f"rank_{summary.rank}: {error}"], 0
    starts = comparison.starts(summary.rank) if comparison else None
    found = verify_rank(workspace.directory, record, level, advance=advance, starts=starts)
    if comparison and not found.problems:
        comparison.add(record.model_copy(update={"parts": found.parts}))
    if record_digest(record) == summary.record_digest and record.file == summary.file:
        return list(found.problems), found.read_bytes
    stale = f"rank_{summary.rank}: its record is not the one that the manifest was written for"
    return [stale, *found.problems], found.read_bytes


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
    for other in other_files(location, manifest.files, is_target_name):
        if other.parent == location:
            risk = "loaders may take it for a part of one"
        else:
            risk = "MindSpore may take it for a rank's newest file"
        yield f"{other}: does not belong to this checkpoint, but {risk}"
    yield from state_problems(location, manifest)


class _Finished(Record):
    """A finished conversion; `notes` say why it was chosen among several steps."""

    location: Location
    manifest: Manifest
    notes: tuple[str, ...] = ()


def _find_finished(location: Location) -> _Finished:
    """Find the finished conversion that a target means: itself, or one of its steps."""
    manifest = read_manifest(location)
    if manifest is not None:
        return _Finished(location, manifest)
    if not exists(location):
        near = did_you_mean(location)
        raise InputError(f"{location}: does not exist{near or ': name the directory of a finished conversion'}")
    steps = tracked_steps(location, list_names(location))
    directories = steps.directories if steps else {}
    finished = [
        number for number, name in directories.items() if exists(location.child(name, STATE_DIRECTORY, MANIFEST_NAME))
    ]
    if steps is None or not finished:
        raise InputError(
            f"{location}: has no .reshard/manifest.json: it is not a finished conversion, or was not made by reshard"
        )
    word, tracker = steps.tracker.word, steps.tracker.name
    tracked = steps.read_tracker() if len(finished) > 1 else finished[0]
    if tracked not in finished:
        raise InputError(
            f"{location}: has several {word}s that are finished conversions, and no {tracker} that names "
            f"one of them: name one, such as {location.child(directories[finished[-1]])}"
        )
    chosen = _find_finished(location.child(directories[tracked]))
    if len(directories) == 1:
        return chosen
    why = f"which {tracker} names" if len(finished) > 1 else "the only finished conversion there"
    others = listed([str(number) for number in directories if number != tracked], _MAX_LISTED)
    note = f"{location}: verifying {word} {tracked}, {why}, and not {others}; to verify another, name its directory"
    return replace(chosen, notes=(note,))

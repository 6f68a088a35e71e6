"""Checks what was written against what was to be written.

`structure` reads a file's headers and compares every name, dtype and shape, and the file's size. `checksum` also reads
every content back and compares it with the digest taken while it was written, and checks the CRC of a file that has
one. Both look at the file only: neither can see a wrong plan.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from reshard.core.checkpoint.digests import file_digests
from reshard.core.checkpoint.encryption.decrypted_source import DecryptedSource
from reshard.core.checkpoint.encryption.opening import open_checkpoint
from reshard.core.checkpoint.formats.any_format import read_index, stored_crc
from reshard.core.checkpoint.manifest import Manifest, RankSummary, ShardRecord, read_manifest, unseal_manifest
from reshard.core.checkpoint.model import FileIndex, OutputEntry
from reshard.core.errors import CheckpointError, InputError, StorageError, TargetError, is_transient
from reshard.core.request.conversion import (
    TargetLayout,
    VerifyLevel,
)
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.keys import KeyNames, named_keys, target_key
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import Progress, SilentProgress, advancing
from reshard.core.runtime.summary import FILE, RANK
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import utf8_text
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.listing import exists, has_no_file
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.publishing import other_files
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.index import index_problem, places_problem
from reshard.core.target.workspace import Workspace, record_digest
from reshard.core.tensor.fingerprint import fingerprint_text
from reshard.core.tensor.slices import Shape
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.shard_fingerprints import FileFingerprints
from reshard.core.verification.source_comparison import SourceComparison
from reshard.core.verification.state import UNDIGESTED, state_problems

_READ_BYTES = 2**20
_SUMMED_BYTES = 4 * 2**20
_WORKERS = 4


@contextmanager
def resources_to_verify(
    request: VerificationRequest, resolvers: Mapping[str, Resolver] | None = None
) -> Iterator[None]:
    """Inside the block the storages and the keys that a request names are known; where the source is, the target says.

    Raises:
        InputError: a name cannot be resolved, or there is no finished conversion.
        StorageError: the target cannot be read.
    """
    names = KeyNames(request.source_decrypt_key, request.source_decrypt_mode, request.decrypt_key, request.decrypt_mode)
    pairs = [(request.target, request.storage)]
    with named_keys(names, resolvers):
        if request.level is VerifyLevel.CONTENT:
            with named_storages(pairs, resolvers):
                source = _finished(parse_url(request.target)).source
            pairs.append((source, request.source_storage))
        with named_storages(pairs, resolvers):
            yield


@dataclass(frozen=True)
class RankVerification:
    """What the check of one rank's file found.

    Attributes:
        rank: target rank.
        level: how closely it was checked.
        read_bytes: contents that were read back.
        problems: what is wrong, in sentences; none if all is right.
        parts: what each of its record's parameters adds to the fingerprint of its whole tensor, if that was asked for.
    """

    rank: int
    level: VerifyLevel
    read_bytes: int
    problems: tuple[str, ...]
    parts: tuple[str, ...] = ()


def verify_rank(
    directory: Location,
    record: ShardRecord,
    level: VerifyLevel,
    *,
    expected: Sequence[OutputEntry] | None = None,
    advance: Callable[[int], None] = lambda _: None,
    starts: Mapping[str, Shape] | None = None,
) -> RankVerification:
    """Checks one rank's file against its record, and against what the plan expects if that is given.

    With `starts`, where its shards begin in their whole tensors, it also finds out what it adds to fingerprints.

    Raises:
        StorageError: it cannot be read; that it is not there is a problem in the result.
    """
    location = directory.child(*record.file.split("/"))
    if level is VerifyLevel.NONE:
        return RankVerification(record.rank, level, 0, ())
    try:
        file = open_checkpoint(location, target_key())
    except StorageError as error:
        if not has_no_file(error):
            raise
        return RankVerification(record.rank, level, 0, (str(error),))
    except CheckpointError as error:
        return RankVerification(record.rank, level, 0, (str(error),))
    try:
        found = _check_file(file, record, level, expected, advance, starts)
    except CheckpointError as error:
        found = _Found([str(error)])
    finally:
        file.close()
    told = tuple(f"{location}: {problem}" if f"{location}" not in problem else problem for problem in found.problems)
    return RankVerification(record.rank, level, found.read_bytes, told, found.parts)


def _verify_published(
    workspace: Workspace,
    manifest: Manifest,
    summary: RankSummary,
    level: VerifyLevel,
    advance: Callable[[int], None],
    comparison: SourceComparison | None,
) -> tuple[list[str], int]:
    """What is wrong with one rank of a finished conversion, and how many bytes of contents were read."""
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


@dataclass(frozen=True)
class _Found:
    """What the check of one file found; see `RankVerification`."""

    problems: list[str]
    read_bytes: int = 0
    parts: tuple[str, ...] = ()


def _check_file(
    file: SourceFile,
    record: ShardRecord,
    level: VerifyLevel,
    expected: Sequence[OutputEntry] | None,
    advance: Callable[[int], None],
    starts: Mapping[str, Shape] | None,
) -> _Found:
    index = read_index(file)
    recorded = {parameter.name: (parameter.dtype, parameter.shape) for parameter in record.parameters}
    problems = _differences(index, recorded, "its record says")
    if expected is not None:
        planned = {entry.name: (entry.dtype.name, entry.shape) for entry in expected}
        problems += _differences(index, planned, "the plan says")
    is_encrypted = isinstance(file, DecryptedSource)
    size_bytes = file.stored_bytes if isinstance(file, DecryptedSource) else index.size_bytes
    if size_bytes != record.size_bytes:
        problems.append(f"has {size_bytes} bytes, its record says {record.size_bytes}")
    if problems or level.is_below(VerifyLevel.CHECKSUM):
        return _Found(problems)
    parts: dict[str, str] = {}
    problems = _differing_bytes(file, index, record, advance, starts, parts, tell_digests=not is_encrypted)
    read_bytes = sum(index.entries[parameter.name].size_bytes for parameter in record.parameters)
    told = tuple(parts[parameter.name] for parameter in record.parameters) if parts and not problems else ()
    return _Found(problems, read_bytes, told)


def _differing_bytes(
    file: SourceFile,
    index: FileIndex,
    record: ShardRecord,
    advance: Callable[[int], None],
    starts: Mapping[str, Shape] | None,
    parts: dict[str, str],
    *,
    tell_digests: bool,
) -> list[str]:
    """What of all bytes is not as it was written; files that are read as one are looked at one by one.

    If there are `starts`, `parts` gets what each parameter adds to fingerprints.
    """
    problems: list[str] = []
    heads = []
    written = {parameter.name: parameter.digest for parameter in record.parameters}
    buffer = np.empty(_READ_BYTES if starts is None else _SUMMED_BYTES, np.uint8).data
    files = [(part, read_index(part)) for part in file.parts] if isinstance(file, JoinedFile) else [(file, index)]
    for each, held in files:
        if starts is None:
            digests = file_digests(each, held, buffer, advance)
        else:
            summed = FileFingerprints(held, starts)
            digests = file_digests(each, held, buffer, advance, summed.add)
            parts.update({name: fingerprint_text(summed.fingerprint(name)) for name in held.entries})
        if digests.crc is not None and digests.crc != (stored := stored_crc(each, held)):
            problems.append(f"wrong CRC-32: the file says {stored}, its contents give {digests.crc}")
        for name, found in digests.parameters.items():
            if found != written[name]:
                told = f" (digest {found}, written {written[name]})" if tell_digests else ""
                problems.append(f"parameter {name!r}: its bytes are not those that were written{told}")
        heads.append(digests.heads)
    if not problems and tuple(heads) != record.heads:
        problems.append("what stands around the parameters' contents is not what was written")
    return problems


def _differences(index: FileIndex, wanted: Mapping[str, tuple[str, tuple[int, ...]]], who: str) -> list[str]:
    problems = [f"parameter {name!r} is not in it, {who} that it is" for name in wanted if name not in index.entries]
    problems += [f"parameter {name!r} is in it, {who} that it is not" for name in index.entries if name not in wanted]
    for name, (dtype, shape) in wanted.items():
        entry = index.entries.get(name)
        if entry is not None and (entry.dtype.name, entry.shape) != (dtype, shape):
            found = f"{entry.dtype} {list(entry.shape)}"
            problems.append(f"parameter {name!r} is {found}, {who} {dtype} {list(shape)}")
    return problems


def verify_target(url: str, level: VerifyLevel, progress: Progress | None = None) -> VerificationReport:
    """Checks a finished conversion against its manifest and records; at `content` also against its source.

    Raises:
        InputError: there is no finished conversion at the URL, or it is encrypted, and its key is not in force; or it
            is to be compared with a source that is not there any more, or changed.
        StorageError: it cannot be read.
    """
    started = time.monotonic()
    progress = progress or SilentProgress()
    location = parse_url(url)
    manifest = _finished(location)
    unseal_manifest(manifest, target_key(), str(location))
    workspace = Workspace(location, manifest.identity)
    comparison = SourceComparison(workspace, manifest) if level is VerifyLevel.CONTENT else None
    to_compare = comparison.source_bytes if comparison else 0
    progress.begin(sum(rank.size_bytes for rank in manifest.ranks) + to_compare)

    stop = threading.Event()
    advance = advancing(progress, stop)
    if comparison:
        comparison.read_source(_WORKERS, advance, stop)

    def verify(summary: RankSummary) -> tuple[list[str], int]:
        return _verify_published(workspace, manifest, summary, level, advance, comparison)

    found = in_threads(verify, manifest.ranks, _WORKERS, stop)
    problems = [problem for told, _ in found for problem in told]
    if len({rank.rank for rank in manifest.ranks}) != manifest.target_world_size:
        problems.append(
            f"{location}: its manifest lists {len(manifest.ranks)} of {manifest.target_world_size} ranks: it was "
            "changed"
        )
    read_bytes = sum(count for _, count in found)
    if manifest.index and (problem := index_problem(location, manifest.index)):
        problems.append(problem)
    if manifest.index and not problems:
        records = (workspace.read_record(summary.rank) for summary in manifest.ranks)
        problems += filter(None, [places_problem(location, manifest.index, records)])
    problems += [
        f"{other}: does not belong to this checkpoint, but {_mistaken(other, location)}"
        for other in other_files(location, manifest.files)
    ]
    problems += state_problems(location, manifest)
    if comparison and not problems:  # or what is told would be told again, in other words
        problems += comparison.problems()
    return VerificationReport(
        target=str(location),
        level=level,
        ranks=len(manifest.ranks),
        read_bytes=read_bytes,
        compared=comparison.parameter_count if comparison else 0,
        compared_bytes=comparison.source_bytes if comparison else 0,
        seconds=round(time.monotonic() - started, 3),
        problems=tuple(map(utf8_text, problems)),
        notes=(f"{location}: {UNDIGESTED}",) if manifest.plan_digest is None else (),
        kind=FILE if manifest.layout is TargetLayout.UNIFIED else RANK,
    )


def _mistaken(other: Location, directory: Location) -> str:
    if other.parent == directory:
        return "loaders may take it for a part of one"
    return "MindSpore may take it for a rank's newest file"


def _finished(location: Location) -> Manifest:
    """The manifest of a finished conversion.

    Raises:
        InputError: there is none.
    """
    manifest = read_manifest(location)
    if manifest is None:
        if not exists(location):
            raise InputError(f"{location}: does not exist: name the directory of a finished conversion")
        raise InputError(
            f"{location}: has no .reshard/manifest.json: it is not a finished conversion, or was not made by reshard"
        )
    return manifest

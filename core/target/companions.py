"""Companions of a unified target: written beside its files before the manifest, and checked like the index."""

from collections.abc import Iterable, Iterator

import xxhash

from reshard.core.checkpoint.companions import MAX_COMPANION_BYTES, CompanionFile, Companions, companion_content
from reshard.core.checkpoint.manifest import IndexSummary, read_manifest
from reshard.core.errors import CheckpointError, StorageError, TargetError, VerificationError, is_transient
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes


def companion_summaries(plan: ConversionPlan) -> tuple[IndexSummary, ...]:
    """The manifest's entries of a plan's companions."""
    files = plan.inputs.companions.files if plan.inputs.companions else ()
    return tuple(map(_summary, files))


def write_companions(directory: Location, companions: Companions) -> None:
    """Write companions into a directory, and read them back.

    Raises:
        InputError: one has changed since the conversion was planned.
        VerificationError: one is not what was written.
        StorageError: it cannot be read or written.
    """
    for file in companions.files:
        write_bytes(directory.child(file.name), companion_content(companions, file))
    for problem in companion_problems(directory, map(_summary, companions.files)):
        raise VerificationError(problem)


def companion_problems(directory: Location, companions: Iterable[IndexSummary]) -> Iterator[str]:
    """Yield the companions in a directory that are not as they were written, in sentences."""
    for companion in companions:
        location = directory.child(companion.file)
        try:
            data = read_small_file(location, min(max(companion.size_bytes, 1), MAX_COMPANION_BYTES))
        except CheckpointError:
            yield f"{location}: is larger than what was written, which has {companion.size_bytes} bytes"
            continue
        except StorageError as error:
            if is_transient(error):
                raise
            yield str(error)
            continue
        if len(data) != companion.size_bytes or xxhash.xxh3_128_hexdigest(data) != companion.digest:
            yield f"{location}: is not the file that was written"


def recorded_companions(directory: Location) -> frozenset[str]:
    """Return the names of the companions that a conversion wrote into a directory; none without a readable manifest."""
    try:
        manifest = read_manifest(directory)
    except TargetError:
        return frozenset()
    return frozenset(each.file for each in manifest.companions) if manifest else frozenset()


def _summary(file: CompanionFile) -> IndexSummary:
    return IndexSummary(file=file.name, size_bytes=file.size_bytes, digest=file.digest)

"""Companions of a unified target: written beside its files before the manifest, and checked like the index."""

from reshard.core.checkpoint.manifest import IndexSummary, read_manifest
from reshard.core.errors import TargetError, VerificationError
from reshard.core.layouts.unified.companions import CompanionFile, Companions, companion_content
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.index import document_problem


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
        if problem := document_problem(directory, _summary(file)):
            raise VerificationError(problem)


def recorded_companions(directory: Location) -> frozenset[str]:
    """Return the names of the companions that a conversion wrote into a directory; none without a readable manifest."""
    try:
        manifest = read_manifest(directory)
    except TargetError:
        return frozenset()
    return frozenset(each.file for each in manifest.companions) if manifest else frozenset()


def _summary(file: CompanionFile) -> IndexSummary:
    return IndexSummary(file=file.name, size_bytes=file.size_bytes, digest=file.digest)

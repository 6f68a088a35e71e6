"""What lies beside a target's files of tensors: documents such as an index, and files copied from elsewhere.

The target's layout makes them; here they are written before the manifest, read back, and compared with what was
written.
"""

from collections.abc import Iterable

import xxhash

from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.errors import (
    CatalogError,
    CheckpointError,
    StorageError,
    StrategyError,
    VerificationError,
    is_transient,
)
from reshard.core.layouts.documents import Documents
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.targets import document_kind, side_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.planned_layout import CompanionFile
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes


def document_names(plan: ConversionPlan) -> tuple[str, ...]:
    """Return the names of the documents of a plan's target."""
    layout = plan.inputs.layout
    return side_of(layout).document_names(plan, layout)


def documents_of(plan: ConversionPlan) -> Documents:
    """Return the documents of a plan's target."""
    layout = plan.inputs.layout
    return side_of(layout).build_documents(plan, layout)


def document_problem(directory: Location, document: IndexSummary) -> str | None:
    """Return the problem with a document or companion in a directory, as a sentence; None if there is none."""
    location, kind = directory.child(document.file), document_kind(document.file)
    try:
        data = read_small_file(location, min(max(document.size_bytes, 1), kind.max_bytes))
    except CheckpointError:
        return f"{location}: is larger than what was written, which has {document.size_bytes} bytes"
    except StorageError as error:
        if is_transient(error):
            raise
        return str(error)
    if len(data) != document.size_bytes or xxhash.xxh3_128_hexdigest(data) != document.digest:
        return f"{location}: is not the {kind.title} that was written"
    return None


def places_problem(
    directory: Location,
    side: TargetSide,
    index: IndexSummary,
    records: Iterable[ShardRecord],
    plan: ConversionPlan | None = None,
) -> str | None:
    """Return the first wrong entry of the index in a directory, as a sentence; None if there is none.

    `side` are the answers of the target's layout. The index is compared with the `records` of all files, and with the
    `plan` where only that knows more.
    """
    location = directory.child(index.file)
    try:
        return side.places_problem(location, index, records, plan)
    except (CatalogError, StrategyError) as error:
        return str(error)


def companion_summaries(plan: ConversionPlan) -> tuple[IndexSummary, ...]:
    """Return the manifest's entries of a plan's companions."""
    return tuple(map(_summary, plan.inputs.layout.companion_files))


def write_companions(directory: Location, plan: ConversionPlan) -> None:
    """Write a plan's companions into a directory, and read them back.

    Raises:
        InputError: one has changed since the conversion was planned.
        VerificationError: one is not what was written.
        StorageError: it cannot be read or written.
    """
    layout = plan.inputs.layout
    for file in layout.companion_files:
        write_bytes(directory.child(file.name), side_of(layout).companion_content(layout, file))
        if problem := document_problem(directory, _summary(file)):
            raise VerificationError(problem)


def _summary(file: CompanionFile) -> IndexSummary:
    return IndexSummary(file=file.name, size_bytes=file.size_bytes, digest=file.digest)

"""What lies beside a target's files of tensors: documents such as an index, and files copied from elsewhere.

The target's layout makes them; here they are written before the manifest, read back, and compared with what was
written.
"""

import hashlib
from collections.abc import Iterable

import xxhash

from reshard.core.checkpoint.manifest import (
    ALL_STATEMENT_NAMES,
    MAX_STATEMENT_BYTES,
    IndexSummary,
    Manifest,
    ShardRecord,
)
from reshard.core.errors import (
    CatalogError,
    CheckpointError,
    StorageError,
    StrategyError,
    VerificationError,
    is_transient,
)
from reshard.core.layouts.documents import Document, DocumentKind, Documents
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.targets import document_kind, side_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.planned_layout import CompanionFile
from reshard.core.storage.listing import find_files
from reshard.core.storage.publishing import state_path
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.workspace import Workspace, read_records

_STATEMENT = DocumentKind("statement", MAX_STATEMENT_BYTES)


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
    return _problem(directory.child(document.file), document, document_kind(document.file))


def statement_problem(directory: Location, statement: IndexSummary) -> str | None:
    """Return the problem with a statement about the target in a directory, as a sentence; None if there is none."""
    return _problem(directory.child(*statement.file.split("/")), statement, _STATEMENT)


def _problem(location: Location, document: IndexSummary, kind: DocumentKind) -> str | None:
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
    if document.sha256 is not None and hashlib.sha256(data).hexdigest() != document.sha256:
        return f"{location}: is not the {kind.title} that was written: its SHA-256 is another one"
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


def companions_with_sha256(plan: ConversionPlan) -> tuple[IndexSummary, ...]:
    """Return the same with the SHA-256 of each, which is read for it.

    Raises:
        InputError: one has changed since the conversion was planned.
        StorageError: it cannot be read.
    """
    layout = plan.inputs.layout
    contents = (side_of(layout).companion_content(layout, file) for file in layout.companion_files)
    sums = [hashlib.sha256(content).hexdigest() for content in contents]
    return tuple(
        summary.model_copy(update={"sha256": sha256})
        for summary, sha256 in zip(companion_summaries(plan), sums, strict=True)
    )


def write_documents(workspace: Workspace, documents: Documents, plan: ConversionPlan) -> None:
    """Write the documents of a plan's target into its workspace, whose ranks are done, and read them back.

    Raises:
        VerificationError: one is not what was written, or the index does not match the files.
        StorageError: one cannot be written or read.
    """
    directory = workspace.directory
    for document in documents.each:
        write_bytes(directory.child(document.name), document.data)
        problem = document_problem(directory, document.summary)
        if problem is None and document is documents.index:
            records = read_records(workspace, plan.target_ranks)
            problem = places_problem(directory, side_of(plan.inputs.layout), document.summary, records, plan)
        if problem is not None:
            raise VerificationError(problem)


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


def write_statements(directory: Location, statements: Iterable[Document]) -> None:
    """Write statements about a target into its directory, and read them back.

    Raises:
        VerificationError: one is not what was written.
        StorageError: it cannot be read or written.
    """
    for statement in statements:
        write_bytes(directory.child(*statement.name.split("/")), statement.data)
        if problem := statement_problem(directory, statement.summary):
            raise VerificationError(problem)


def remove_other_statements(state: Location, manifest: Manifest) -> None:
    """Remove the statements in a state directory that a manifest does not list: they were about other files."""
    listed = {each.file for each in manifest.statements}
    own = {state.child(name).path: state_path(name) for name in ALL_STATEMENT_NAMES}
    for file in find_files(state):
        if own.get(file.path, "") not in {"", *listed}:
            remove_file(file)


def _summary(file: CompanionFile) -> IndexSummary:
    return IndexSummary(file=file.name, size_bytes=file.size_bytes, digest=file.digest)

"""The objects that an unfinished conversion wrote to an object store, as opposed to others at the same place.

Object stores have no working directory: files of an earlier checkpoint or of other programs may lie beside the run's
own. Its own are the files that it recorded, with the recorded size, and the documents and companions that its plan
leads to, byte for byte.
"""

from collections.abc import Iterator, Mapping

from reshard.core.checkpoint.manifest import IndexSummary
from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.layouts.targets import is_target_name
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import rebuild_plan
from reshard.core.runtime.records import Record
from reshard.core.storage.joined import parts_of
from reshard.core.storage.publishing import SIGNATURE_NAME, other_files
from reshard.core.storage.store import Entry
from reshard.core.storage.urls import Location
from reshard.core.target.documents import companion_summaries, document_names, document_problem, documents_of
from reshard.core.target.workspace import Workspace


class WrittenObjects(Record):
    """Objects at an unfinished target.

    Attributes:
        own: paths of what the conversion wrote: first documents and companions, then files of tensors.
        others: checkpoint files and documents that it did not write, or that were replaced since.
    """

    own: tuple[str, ...]
    others: tuple[Location, ...]


def written_objects(workspace: Workspace, plan: ConversionPlan | None, entries: Mapping[str, Entry]) -> WrittenObjects:
    """Find what an unfinished conversion wrote, among the `entries` of all objects at its place, by path.

    `plan` is None if it cannot be read: then documents count as others.

    Raises:
        TargetError: a record is damaged or of another conversion.
        StorageError: something cannot be read.
    """
    final = workspace.directory
    own: list[str] = []
    names: list[str] = []
    for document in _documents(final, plan, entries) if plan else ():
        own.append(final.child(document.file).path)
        names.append(document.file)
    own.append(final.child(SIGNATURE_NAME).path)  # without a manifest it signs nothing that is complete
    names.append(SIGNATURE_NAME)
    for rank in sorted(workspace.recorded_ranks()):
        record = workspace.read_record(rank)
        location = final.child(record.file)
        paths = [file.path for file in parts_of(location) or (location,)]
        # an object of another size was written by something else since
        if sum(entries[path].size_bytes for path in paths if path in entries) == record.size_bytes:
            own += paths
            names.append(record.file)
    return WrittenObjects(
        tuple(path for path in own if path in entries), tuple(other_files(final, names, is_target_name))
    )


def _documents(final: Location, plan: ConversionPlan, entries: Mapping[str, Entry]) -> Iterator[IndexSummary]:
    """The documents and companions that are at the target as the plan's commit writes them."""
    summaries = list(companion_summaries(plan))
    if any(final.child(name).path in entries for name in document_names(plan)):  # metadata can take seconds to build
        summaries += [document.summary for document in documents_of(plan).each]
    for summary in summaries:
        entry = entries.get(final.child(summary.file).path)
        if entry and entry.size_bytes == summary.size_bytes and document_problem(final, summary) is None:
            yield summary


def readable_plan(workspace: Workspace) -> ConversionPlan | None:
    """Return the plan of unfinished work; None without a plan, or if it is of another version or its key is not given.

    Raises:
        StorageError: a transient failure.
    """
    try:
        return rebuild_plan(workspace.plan_url)
    except (InputError, StorageError) as error:
        if is_transient(error):
            raise
        return None

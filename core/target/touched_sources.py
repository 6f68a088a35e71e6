"""Sources that were touched: files of the same size and modification time, but another change time.

Their mode, owner, name or links were changed; or they were rewritten and given their old time, which only their values
can tell. Earlier work of a plan that differs in nothing else may be kept, once it is compared with the source.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import InputError, StorageError, is_transient
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import load_plan, load_sources, plan_identity
from reshard.core.runtime.records import Record
from reshard.core.storage.file_versions import TOUCHED, is_only_touched, is_same_version
from reshard.core.storage.urls import Location
from reshard.core.target.workspace import Workspace, read_identity
from reshard.core.text.options import option


class EarlierWork(Record):
    """Ranks that were finished before source files were touched.

    Attributes:
        identity: of the plan of then, which the ranks' records name.
        file: a source file that was touched; None if a run was killed after it had compared all ranks.
    """

    identity: str
    file: str | None


def find_earlier_work(workspace: Workspace, identity: str, plan: ConversionPlan) -> EarlierWork | None:
    """Return the work of the plan of `identity` in a workspace; None if it is not `plan` but for touched sources.

    Raises:
        StorageError: a transient failure: the work might be this plan's.
    """
    theirs = _sources_of(workspace, identity)
    if theirs is None:
        return None
    file = _touched_file(plan.inputs.catalog.records, theirs)
    if file is not None:
        return EarlierWork(identity, file) if plan_identity(_made_from(theirs, plan)) == identity else None
    return EarlierWork(identity, None) if _holds(workspace, plan_identity(plan)) else None


def touched_text(final: Location, other: Workspace, plan: ConversionPlan) -> str:
    """Addition to a message about another plan's work if it was made from the same source, touched since."""
    theirs = _sources_of(other, read_identity(other.state) or "")
    file = None if theirs is None else _touched_file(plan.inputs.catalog.records, theirs)
    if file is None:
        return ""
    is_final = other.directory.path == final.path
    advice = f"; 'reshard verify' of {final} with {option('level', 'content')} compares the values" if is_final else ""
    return f" (it was made from the same source, of which {file} is {TOUCHED}{advice})"


def _touched_file(mine: Mapping[int, CatalogRecord], theirs: Mapping[int, CatalogRecord]) -> str | None:
    """Return a source file whose change time differs; None if no file differs, or one differs in more than that."""
    touched = None
    if mine.keys() != theirs.keys():
        return None
    for rank, record in mine.items():
        known, found = theirs[rank].version, record.version
        if is_only_touched(known, found):
            touched = record.location
        elif not is_same_version(known, found):
            return None
        if theirs[rank].location != record.location:
            return None
    return touched


def _sources_of(workspace: Workspace, identity: str) -> Mapping[int, CatalogRecord] | None:
    try:
        return load_sources(workspace.plan_url, identity).records
    except (InputError, StorageError) as error:
        if is_transient(error):
            raise
        return None  # even unreadable, the other work is in the way


def _made_from(sources: Mapping[int, CatalogRecord], plan: ConversionPlan) -> ConversionPlan:
    """Return the plan with the source files' versions of then."""
    catalog = plan.inputs.catalog
    records = {rank: replace(record, version=sources[rank].version) for rank, record in catalog.records.items()}
    return ConversionPlan(replace(plan.inputs, catalog=replace(catalog, records=records)), plan.match)


def _holds(workspace: Workspace, identity: str) -> bool:
    """True if this very plan was written to the workspace, whose identity should have followed."""
    try:
        load_plan(workspace.plan_url, identity)
    except (InputError, StorageError) as error:
        if is_transient(error):
            raise
        return False
    return True

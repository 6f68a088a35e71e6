"""The check of the files in a finished conversion's `.reshard`, other than the manifest and the ranks' records.

These are the plan, its identity and the statements, which the manifest has digests of.

Manifest and records end in digests of themselves, which are checked on reading.
"""

from collections.abc import Iterable

import xxhash

from reshard.core.checkpoint.manifest import ALL_STATEMENT_NAMES, PLAN_NAME, RECORDS_DIRECTORY, Manifest
from reshard.core.errors import CheckpointError, StorageError, TargetError, is_transient
from reshard.core.records.plan_file import MAX_PLAN_BYTES
from reshard.core.storage.atomic_rename import is_leftover
from reshard.core.storage.listing import find_files
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY, WITHDRAWN_NAME
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.target.documents import statement_problem
from reshard.core.target.workspace import IDENTITY_NAME, LEASES_DIRECTORY, read_identity, record_name

UNDIGESTED = (
    "written by an earlier version of reshard, without digests of the manifest, the records and the plan: not all of "
    "their bytes can be checked"
)


def state_problems(directory: Location, manifest: Manifest) -> list[str]:
    """A wrong identity, plan or statement, and foreign files, in sentences."""
    state = directory.child(STATE_DIRECTORY)
    problems = []
    identity = read_identity(state)
    if identity != manifest.identity and (identity is not None or manifest.plan_digest is not None):
        problem = "is missing" if identity is None else f"is not {manifest.identity}, as the manifest says"
        problems.append(f"{state.child(IDENTITY_NAME)}: {problem}")
    if manifest.plan_digest is None:
        return problems
    if manifest.plan_digest:
        problems += _plan_problems(state.child(PLAN_NAME), manifest.plan_digest)
    problems += filter(None, [statement_problem(directory, each) for each in manifest.statements])
    ranks = [summary.rank for summary in manifest.ranks]
    statements = [each.file.removeprefix(f"{STATE_DIRECTORY}/") for each in manifest.statements]
    others = other_state_files(directory, ranks, has_plan=bool(manifest.plan_digest), statements=statements)
    return problems + [f"{other}: does not belong to this checkpoint's records" for other in others]


def check_no_other_state(directory: Location, ranks: Iterable[int]) -> None:
    """Check that `.reshard` holds only records of this conversion.

    Raises:
        TargetError: it holds other files.
        StorageError: the files cannot be listed.
    """
    others = other_state_files(directory, ranks, has_plan=True, statements=ALL_STATEMENT_NAMES)
    if others:
        raise TargetError(f"{others[0]}: does not belong to this checkpoint's records. Move it away")


def other_state_files(
    directory: Location, ranks: Iterable[int], *, has_plan: bool, statements: Iterable[str]
) -> list[Location]:
    """Files in `.reshard` that do not belong to a finished conversion of `ranks`, except leases and unfinished files.

    Raises:
        StorageError: the files cannot be listed.
    """
    state = directory.child(STATE_DIRECTORY)
    # a run that was killed just after it wrote the manifest leaves the mark that it was withdrawn
    names = (MANIFEST_NAME, IDENTITY_NAME, WITHDRAWN_NAME, *([PLAN_NAME] if has_plan else []), *statements)
    own = {state.child(name).path for name in names}
    own |= {state.child(RECORDS_DIRECTORY, record_name(rank)).path for rank in ranks}
    leases = state.child(LEASES_DIRECTORY).path
    return [
        file
        for file in find_files(state)
        if file.path not in own
        and file.parent.path != leases
        and not (directory.store.has_paths and is_leftover(file.name))
    ]


def _plan_problems(location: Location, digest: str) -> list[str]:
    try:
        data = read_small_file(location, MAX_PLAN_BYTES)
    except CheckpointError as error:
        return [str(error)]
    except StorageError as error:
        if is_transient(error):
            raise
        return [str(error)]
    return [] if xxhash.xxh3_128_hexdigest(data) == digest else [f"{location}: is not the plan that was written"]

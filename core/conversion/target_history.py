"""The conversions into a target, or into the targets in a directory, from what they wrote beside their files.

Nothing is changed, and no lease is taken. A target takes two or three small requests: its manifest, and where there is
none, a listing of its state. Manifests are written by others: their texts are bounded, and a number that no
conversion has counts as unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from reshard.core.checkpoint.manifest import RECORDS_DIRECTORY, Manifest, RunRecord
from reshard.core.conversion.history import (
    ALL_ENTRIES,
    ConversionState,
    HistoryEntry,
    HistoryFilter,
    MemoryBasis,
)
from reshard.core.errors import ConversionError, InputError, StorageError, is_transient
from reshard.core.layouts.manifests import read_manifest
from reshard.core.runtime.moments import parse_moment
from reshard.core.runtime.wording import counted
from reshard.core.storage.leases.lease_holder import LeaseHolder
from reshard.core.storage.leases.lease_monitor import seen_holders
from reshard.core.storage.listing import find_entries, is_missing, list_folder
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.publishing import (
    PARTIAL_SUFFIX,
    REPLACED_SUFFIX,
    STATE_DIRECTORY,
    is_built_beside,
    working_location,
)
from reshard.core.storage.store import DIRECTORY, Entry
from reshard.core.storage.transfers import each_at
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.claim import leases_of
from reshard.core.target.workspace import IDENTITY_NAME
from reshard.core.text.foreign import shown_text

MAX_TARGETS = 10_000
"""Each takes a request or three."""
_MAX_COUNT = 2**63
"""No storage holds as many bytes."""


def target_history(place: str, wanted: HistoryFilter = ALL_ENTRIES, *, limit: int | None = None) -> list[HistoryEntry]:
    """Read the conversions into `place` itself and into the targets in it, those that began last first.

    Raises:
        InputError: nothing is there, or too many directories.
        StorageError: the storage does not answer.
    """
    directory = parse_url(place)
    found = (entry for some in each_at(directory.store, _entries_of, _places_in(directory)) for entry in some)
    return [entry for entry in found if wanted.matches(entry)]


def _places_in(directory: Location) -> list[Location]:
    """Return the places that may be targets: the directory itself, and the directories in it."""
    names = {directory.child(entry.name).name for entry in _listed(directory) if entry.kind == DIRECTORY}
    if STATE_DIRECTORY in names:  # the folders of ranks, and the like, are not targets
        return [directory]
    targets = sorted({name.removesuffix(PARTIAL_SUFFIX).removesuffix(REPLACED_SUFFIX) for name in names})
    if len(targets) > MAX_TARGETS:
        raise InputError(
            f"{directory}: has {len(targets):,} directories, more than the limit of {MAX_TARGETS:,}: name some of them"
        )
    return [directory, *(directory.child(name) for name in targets)]


def _listed(directory: Location) -> Sequence[Entry]:
    try:
        found = list_folder(directory)
    except StorageError as error:
        if not is_missing(error):
            raise
        if not find_entries(working_location(directory)):  # of a conversion that is not finished
            raise InputError(f"{directory}: does not exist{did_you_mean(directory)}") from None
        return []
    if [entry.path for entry in found] == [directory.path]:
        raise InputError(f"{directory}: is a file; name a target, or a directory of targets")
    return found


def _entries_of(target: Location) -> list[HistoryEntry]:
    """Return the conversions into a place: a finished one, and one in progress or interrupted; often there is none."""
    try:
        manifest = read_manifest(target)
        finished = [] if manifest is None else [_finished(target, manifest)]
        if finished and not is_built_beside(target):
            return finished
        return [*finished, *_unfinished(target)]
    except (InputError, ConversionError) as error:
        if is_transient(error):
            raise
        return [HistoryEntry(state=ConversionState.UNREADABLE, reason=shown_text(str(error)), target=_shown(target))]


def _finished(target: Location, manifest: Manifest) -> HistoryEntry:
    ended, run = parse_moment(manifest.created), manifest.run
    entry = HistoryEntry(
        state=ConversionState.COMMITTED,
        ended=ended,
        source=shown_text(manifest.source),
        step=shown_text(manifest.step) if manifest.step else None,
        target=_shown(target),
        source_world_size=_count(manifest.source_world_size),
        target_world_size=_count(manifest.target_world_size),
        size_bytes=_count(sum(rank.size_bytes for rank in manifest.ranks)),
        verified=manifest.verified,
        fingerprint=shown_text(manifest.fingerprint) if manifest.fingerprint else None,
        identity=shown_text(manifest.identity),
    )
    return entry if run is None else entry.model_copy(update=_of_run(run))


def _of_run(run: RunRecord) -> dict[str, object]:
    who = shown_text(f"{run.user}@{run.host}")
    memory_bytes = _count(run.peak_memory_bytes)
    return {
        "begun": parse_moment(run.begun),
        "seconds": run.seconds if 0 <= run.seconds < _MAX_COUNT else None,
        "read_bytes": _count(run.read_bytes),
        "written_bytes": _count(run.written_bytes),
        "resumed_ranks": _count(run.resumed_ranks),
        "retried_requests": _count(run.retried_requests),
        "memory_bytes": memory_bytes,
        "memory_basis": None if memory_bytes is None else MemoryBasis.PEAK,
        "ran_as": who,
    }


def _unfinished(target: Location) -> Iterator[HistoryEntry]:
    """Yield the conversion that is in progress, or was interrupted, if there is one."""
    working = working_location(target)
    state = working.child(STATE_DIRECTORY)
    entries = find_entries(state)
    if state.child(IDENTITY_NAME).path not in entries:
        return
    records = state.child(RECORDS_DIRECTORY).path
    done = counted(sum(path.startswith(f"{records}/") for path in entries), "rank")
    holders = seen_holders(leases_of(target)) if is_built_beside(target) else []
    yield HistoryEntry(
        state=ConversionState.RUNNING if holders else ConversionState.UNFINISHED,
        reason=f"{done} done",
        begun=min((begun for each in holders if (begun := parse_moment(each.started))), default=None),
        ended=None if holders else _last_change(entries.values()),
        target=_shown(target),
        ran_as=_names(holders) if holders else None,
    )


def _names(holders: Sequence[LeaseHolder]) -> str:
    return shown_text(", ".join(sorted({f"{each.user}@{each.host}" for each in holders})))


def _last_change(entries: Iterable[Entry]) -> datetime | None:
    times = [entry.changed for entry in entries if entry.changed is not None]
    return datetime.fromtimestamp(max(times), UTC) if times else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < _MAX_COUNT else None


def _shown(target: Location) -> str:
    return shown_text(str(target))

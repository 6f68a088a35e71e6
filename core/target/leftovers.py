"""What unfinished work looks like in a report: its kind, place, files and age."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum

from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.summary import Summary
from reshard.core.storage.store import AbandonedUpload, Entry
from reshard.core.storage.urls import Location
from reshard.core.target.workspace import Workspace


class LeftoverKind(StrEnum):
    """Kind of unfinished work."""

    UNFINISHED = "unfinished conversion"
    REPLACED = "replaced checkpoint"
    TEMPORARY = "unfinished file"
    UPLOAD = "unfinished upload"
    LEASE = "stale lease"


class Leftover(Summary):
    """Unfinished work at one place.

    Attributes:
        kind: what it is.
        url: where it is.
        files: number of files; of an upload, 1.
        size_bytes: their size.
        changed: time of the latest change, ISO 8601, UTC; None if unknown.
        ranks_done: number of ranks of an unfinished conversion that are recorded as done; otherwise None.
        ranks: number of its ranks; None if its plan cannot be read.
    """

    kind: LeftoverKind
    url: str
    files: int
    size_bytes: int
    changed: str | None
    ranks_done: int | None = None
    ranks: int | None = None


class CleanReport(Summary):
    """Unfinished work at a target.

    Attributes:
        target: URL of the target.
        found: the unfinished work.
        removed: True if it was removed.
        kept: what is there besides, and is not removed, in sentences.
    """

    target: str
    found: tuple[Leftover, ...]
    removed: bool
    kept: tuple[str, ...]


def describe_unfinished(workspace: Workspace, plan: ConversionPlan | None, entries: Mapping[str, Entry]) -> Leftover:
    """Describe an unfinished conversion, and how much of it is done: other machines may be still to come."""
    unfinished = describe_leftover(LeftoverKind.UNFINISHED, workspace.directory, entries)
    ranks = len(plan.target_ranks) if plan else None
    return unfinished.model_copy(update={"ranks_done": len(workspace.recorded_ranks()), "ranks": ranks})


def describe_leftover(kind: LeftoverKind, location: Location, entries: Mapping[str, Entry]) -> Leftover:
    """Describe what is left at a place, by a storage's entries of its files."""
    times = [entry.changed for entry in entries.values() if entry.changed is not None]
    return Leftover(
        kind=kind,
        url=str(location),
        files=len(entries),
        size_bytes=sum(entry.size_bytes for entry in entries.values()),
        changed=_text_of(datetime.fromtimestamp(max(times), UTC)) if times else None,
    )


def describe_upload(location: Location, upload: AbandonedUpload) -> Leftover:
    """Describe an upload of a file that was begun and never completed."""
    begun = _text_of(upload.begun.astimezone(UTC)) if upload.begun else None
    return Leftover(kind=LeftoverKind.UPLOAD, url=str(location), files=1, size_bytes=upload.size_bytes, changed=begun)


def _text_of(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")

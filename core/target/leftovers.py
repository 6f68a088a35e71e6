"""What unfinished work looks like in a report: its kind, place, files and age."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from reshard.core.plan.plan import ConversionPlan
from reshard.core.reports.blocks import Block, Facts, Line, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, seconds_text, size_text
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


class CleanReport(Report):
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

    def blocks(self) -> Iterator[Block]:
        """Yield its content: what was found, and what became of it."""
        if not self.found:
            yield Line(f"{self.target}: no unfinished work")
        else:
            yield Table(
                ("unfinished work", "where", "done", "files", "size", "last change"),
                [
                    (each.kind, each.url, _done_text(each), each.files, size_text(each.size_bytes), _age_text(each))
                    for each in self.found
                ],
                right=("files", "size", "last change"),
                optional=("files",),
            )
        if self.removed:
            yield from self.removal_blocks()
        elif self.kept:
            yield Facts([("kept", text) for text in self.kept])

    def removal_blocks(self) -> Iterator[Block]:
        """Yield what was removed, and what was not."""
        yield Line(f"{self.target}: removed {counted(len(self.found), 'leftover')}")
        for text in self.kept:
            yield Line(f"not removed: {text}")


def _done_text(leftover: Leftover) -> str:
    if leftover.ranks_done is None:
        return ""
    if leftover.ranks is None:
        return f"{counted(leftover.ranks_done, 'rank')} done"
    return f"{leftover.ranks_done} of {counted(leftover.ranks, 'rank')} done"


def _age_text(leftover: Leftover) -> str:
    if leftover.changed is None:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(leftover.changed)
    return f"{seconds_text(max(0.0, age.total_seconds()))} ago"


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

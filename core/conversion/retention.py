"""Retention: which conversions stay in a directory of conversions, and the removal of the others, and only of them.

The two rules are those of MindSpore's CheckpointConfig (2.10.0, train/callback/_checkpoint.py). Before it saves a
checkpoint, `ModelCheckpoint._save_ckpt` removes others of the same prefix, whose time is their modification time:

- `keep_checkpoint_max` (n > 0): if n or more are there, the oldest (`remove_oldest_ckpoint_file`); so n stay.
- else `keep_checkpoint_per_n_minutes` (n > 0): of those less than n minutes old all but the oldest
  (`keep_one_ckpoint_per_minutes`; its docstring says the latest, its code keeps the oldest). What is about to be saved
  is not among them: the newest always stays, until the next is saved.
- `CheckpointConfig.__init__`: a maximum switches the other rule off; with neither, the maximum becomes 1.

Here, on purpose, neither means that everything is kept. With a smaller maximum than before, all surplus conversions
are removed at once, and not one with each new conversion.

A conversion's time is that of its manifest. A reader loses a conversion that is removed while it reads: readers leave
no trace, neither on a disk nor on an object store.
"""

import logging
import os
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from reshard.core.checkpoint.manifest import MAX_RECORD_BYTES, IndexSummary, Manifest, RankSummary, dump_record
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import InputError, StorageError, TargetError
from reshard.core.files.file_names import Step
from reshard.core.layouts.any_layout import step_of_directory
from reshard.core.layouts.manifests import parse_manifest, read_manifest
from reshard.core.runtime.log import log
from reshard.core.runtime.moments import parse_moment
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import utf8_text
from reshard.core.storage.file_versions import Stamp, read_stamp, read_stamps
from reshard.core.storage.listing import exists, find_files, is_missing, list_folder, unless_missing
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    REMOVING_NAME,
    SIGNATURE_NAME,
    STATE_DIRECTORY,
    list_names,
    places_beside,
    remove_empty_folders,
    remove_tree,
    working_location,
)
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import claimed_alone
from reshard.core.target.documents import document_problem
from reshard.core.target.workspace import LEASES_DIRECTORY, Workspace, record_digest
from reshard.core.verification.files import verify_rank


class KeepRules(Record):
    """Limits on the number of conversions that stay; 0 means no limit. A maximum wins over minutes."""

    most: int = 0
    minutes: int = 0


class DatedStep(Record, order=True):
    """A conversion, ordered by time, then by step."""

    created: datetime
    step: Step


def steps_kept(conversions: Collection[DatedStep], rules: KeepRules) -> frozenset[Step]:
    """Return the steps that MindSpore would have kept if it had saved a checkpoint at the time of each conversion.

    A kept step stays kept when newer conversions are added, so nothing has to be remembered.
    """
    ordered = sorted(conversions)
    if rules.most:
        ordered = ordered[-rules.most :]
    elif rules.minutes:
        ordered = _one_per_window(ordered, timedelta(minutes=rules.minutes))
    return frozenset(conversion.step for conversion in ordered)


def _one_per_window(ordered: Sequence[DatedStep], window: timedelta) -> list[DatedStep]:
    kept: list[DatedStep] = []
    for conversion in ordered:
        recent = [other for other in kept if conversion.created - other.created < window]
        kept = [*(other for other in kept if other not in recent[1:]), conversion]
    return kept


class Retention(Record):
    """The result, or expected result, for the conversions of one source: steps, ascending, and notes in sentences."""

    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Conversion(Record):
    """A conversion that may be removed; `halfway`: an earlier run has begun to remove it."""

    directory: Location
    dated: DatedStep
    manifest: Manifest
    halfway: bool

    @property
    def record(self) -> Location:
        """The file that the manifest was read from."""
        return self.directory.child(STATE_DIRECTORY, REMOVING_NAME if self.halfway else MANIFEST_NAME)


class _LeftAloneError(Exception):
    """A conversion is not removed, for the reason in the message."""


def apply_retention(
    target: Location,
    source: str,
    rules: KeepRules,
    *,
    current: Step | None,
    coming: bool = False,
    dry_run: bool = False,
) -> Retention:
    """Remove the conversions of a source that the rules do not keep from `target`, the directory of its conversions.

    `current` is the source's newest step: it and the newest converted step always stay. With `coming` the current step
    is not converted yet, and counts as if it was made now. Failures become notes, because the conversion itself
    succeeded; the next run tries again.
    """
    if not rules.most and not rules.minutes:
        return Retention()
    try:
        return _apply(target, source, rules, current, coming, dry_run)
    except StorageError as error:
        return Retention(notes=(_noted(f"nothing was removed from {target}: {error}"),))


def _apply(
    target: Location, source: str, rules: KeepRules, current: Step | None, coming: bool, dry_run: bool
) -> Retention:
    found, notes = _conversions_in(target, source)
    there = [conversion.dated for conversion in found if not conversion.halfway]
    now = [DatedStep(datetime.now(UTC), current)] if current and coming else []
    # if the highest step was removed, the next run would convert it again
    highest = max((dated.step for dated in there), default=None)
    kept = steps_kept([*there, *now], rules) | {current, highest}
    unwanted = [each for each in found if each.dated.step not in kept]
    removed = []
    for conversion in unwanted:
        try:
            left = _would_remove(conversion) if dry_run else _remove(conversion)
        except _LeftAloneError as reason:
            notes.append(_noted(f"{conversion.directory}: left as it is: {reason}"))
            continue
        except StorageError as error:
            notes.append(_noted(f"{conversion.directory}: could not be removed, the next run tries again: {error}"))
            continue
        removed.append(str(conversion.dated.step))
        current_progress().note(
            f"{conversion.directory}: {'would be ' if dry_run else ''}removed, it is not to be kept"
        )
        if left:
            notes.append(_noted(left))
    staying = [str(dated.step) for dated in there if str(dated.step) not in removed]
    return Retention(tuple(removed), tuple(staying), tuple(notes))


def _noted(note: str) -> str:
    note = utf8_text(note)
    log(logging.INFO, note)  # the report shows it
    return note


def _conversions_in(target: Location, source: str) -> tuple[list[_Conversion], list[str]]:
    """Return the finished conversions of a source, ascending by step, and notes on unreadable ones."""
    found: list[_Conversion] = []
    notes: list[str] = []
    for entry in unless_missing(lambda: list_folder(target)) or []:
        directory = target.child(entry.name)
        step = step_of_directory(directory.name)
        # checkpoints that were saved on an exception are not converted on a schedule
        if step is None or step.breakpoint or entry.kind != "directory":
            continue
        try:
            conversion = _read_conversion(directory, step)
        except InputError as error:
            notes.append(_noted(f"{directory}: left as it is: {error}"))
            continue
        if conversion and (conversion.manifest.source, conversion.manifest.step) == (source, str(step)):
            found.append(conversion)
    return sorted(found, key=lambda conversion: conversion.dated.step), notes


def _read_conversion(directory: Location, step: Step) -> _Conversion | None:
    """Read the conversion in a directory; None if it is neither finished nor halfway removed."""
    manifest, halfway = read_manifest(directory), False
    if manifest is None:
        record = directory.child(STATE_DIRECTORY, REMOVING_NAME)
        content = unless_missing(lambda: read_own_file(record, MAX_RECORD_BYTES))
        if content is None:
            return None
        manifest, halfway = parse_manifest(content, str(record)), True
    created = parse_moment(manifest.created)
    if created is None:
        raise TargetError(f"its manifest says that it was created {manifest.created!r}, which is not a time")
    return _Conversion(directory, DatedStep(created, step), manifest, halfway)


def _remove(conversion: _Conversion) -> str:
    """Remove exactly the files of a conversion: manifest, listed files, state. Return a note on other files, if any."""
    directory, state = conversion.directory, conversion.directory.child(STATE_DIRECTORY)
    _check_removable(conversion)
    try:
        with claimed_alone(directory, [rank.rank for rank in conversion.manifest.ranks]):
            # it may have been replaced, mended or changed before the lease was taken
            if _read_conversion(directory, conversion.dated.step) != conversion:
                raise _LeftAloneError("another run has just changed it")
            _check_removable(conversion)
            if not conversion.halfway:
                write_bytes(state.child(REMOVING_NAME), dump_record(conversion.manifest))
            _remove_claimed([state.child(MANIFEST_NAME)])
            _remove_claimed([*_listed_files(conversion), directory.child(SIGNATURE_NAME)])
            check_claim()
            remove_tree(state)
    except InputError as error:
        raise _LeftAloneError(str(error)) from error
    _remove_empty_folders(conversion)
    rest = find_files(directory)
    return f"{directory}: holds what no conversion wrote, and stays: {rest[0]} and the like" if rest else ""


def _remove_claimed(files: Sequence[Location]) -> None:
    """Remove files while the lease lasts: a run considered dead might remove files that another run has written."""

    def remove(file: Location) -> None:
        check_claim()
        remove_file(file)

    for _ in at_once(remove, files):
        pass


def _would_remove(conversion: _Conversion) -> str:
    _check_removable(conversion)
    return ""


def _listed_files(conversion: _Conversion) -> list[Location]:
    return [conversion.directory.child(*file.split("/")) for file in conversion.manifest.files]


def _check_removable(conversion: _Conversion) -> None:
    """Check that a conversion is as it was written, and that no run is about to replace it."""
    directory = conversion.directory
    for beside in places_beside(directory):
        # a killed removal leaves the directory of its lease
        if exists(beside) and not (beside == working_location(directory) and _has_only_leases(beside)):
            raise _LeftAloneError(f"it is being replaced, or was when a run was killed: see {beside}")
    if _is_elsewhere(conversion.record):
        raise _LeftAloneError(f"a link leads to its {STATE_DIRECTORY}")
    record = read_stamp(conversion.record)
    if record is None:
        raise _LeftAloneError("another run is removing it")
    files = _listed_files(conversion)
    written: list[RankSummary | IndexSummary] = [*conversion.manifest.ranks, *conversion.manifest.beside]
    for file, stamp, summary in zip(files, read_stamps(files), written, strict=True):
        if stamp is not None and (
            _is_elsewhere(file)
            or _differs(stamp, record, summary.size_bytes)
            or (_is_moved(stamp, record) and not _is_as_written(conversion, summary))
        ):
            raise _LeftAloneError(f"{file} was changed after it was written")


def _is_elsewhere(file: Location) -> bool:
    return file.store.has_paths and os.path.realpath(file.path) != file.path


def _differs(stamp: Stamp, record: Stamp, size_bytes: int) -> bool:
    # the manifest was written last, with the same clock
    newer = stamp.changed is not None and record.changed is not None and stamp.changed > record.changed
    return newer or stamp.size_bytes != size_bytes


def _is_moved(stamp: Stamp, record: Stamp) -> bool:
    """True if a file was changed without changing its time: its mode was set, or it was replaced."""
    return stamp.touched is not None and record.touched is not None and stamp.touched > record.touched


def _is_as_written(conversion: _Conversion, summary: RankSummary | IndexSummary) -> bool:
    """Compare a whole file with its record; this costs as much as writing it."""
    if isinstance(summary, IndexSummary):
        return document_problem(conversion.directory, summary) is None
    try:
        workspace = Workspace(conversion.directory, conversion.manifest.identity)
        record = workspace.read_record(summary.rank, needs_digest=conversion.manifest.plan_digest is not None)
    except TargetError:
        return False
    except StorageError as error:
        if is_missing(error):
            return False
        raise
    if record_digest(record) != summary.record_digest or record.file != summary.file:
        return False
    return not verify_rank(conversion.directory, record, VerifyLevel.CHECKSUM).problems


def _has_only_leases(working: Location) -> bool:
    return list_names(working) == [STATE_DIRECTORY] and list_names(working.child(STATE_DIRECTORY)) == [LEASES_DIRECTORY]


def _remove_empty_folders(conversion: _Conversion) -> None:
    """Remove the folders of a conversion, and its directory."""
    folders = {file.parent.path: file.parent for file in _listed_files(conversion)}
    in_order = [folders[path] for path in sorted(folders)]
    remove_empty_folders(conversion.directory, [*in_order, conversion.directory])

"""The steps that a training job has saved completely, found by looking repeatedly at a growing checkpoint.

The layout says what makes a step complete: `reshard.core.layouts.seen_steps`.
"""

import math
from collections.abc import Mapping

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.manifest import PLAN_NAME
from reshard.core.errors import StoppedError, TargetError
from reshard.core.files.file_names import Step
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.seen_steps import Files, SeenStep, StepObserver, WatchOptions
from reshard.core.layouts.survey import find_steps
from reshard.core.records.plan_file import load_sources
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import sleep_unless_stopped
from reshard.core.runtime.wording import seconds_text
from reshard.core.storage.file_versions import TOUCHED, is_only_touched, is_same_version
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.reading import read_version
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.options import option
from reshard.core.text.printing import printable

LOOK_AGAIN_SECONDS = 5.0


class FoundSteps(Record):
    """The steps found in a source, whose URL is as manifests of its conversions record it.

    `awaited` are newer steps that are being written and worth waiting for; `notes` say which are passed over, and why.
    """

    source: str
    newest: SeenStep | None
    awaited: tuple[SeenStep, ...]
    notes: tuple[str, ...]


class StepWatch:
    """Looks at a source repeatedly, and remembers since when each file is unchanged.

    A complete step has files of all `ranks`; None: of all ranks up to the highest folder's.
    """

    def __init__(self, request: LatestConversionRequest, ranks: range | None) -> None:
        self._request = request
        self._observer = StepObserver(
            WatchOptions(
                ranks=ranks,
                source_prefix=request.source_prefix or None,
                settle_seconds=request.settle_seconds,
                patience_seconds=request.patience_seconds,
                workers=request.worker_count,
                is_converted=lambda step, source, files: is_converted(self._target_of(step), source, files),
            )
        )

    def find(self, *, waits: bool) -> FoundSteps:
        """Find the newest complete step; with `waits`, wait for steps that are being written at the first look.

        Steps that appear later are left to the next run: a job that saves often would never be done.
        """
        source, seen = self.look()
        at_first = {each.step for each in seen}
        announced: set[Step] = set()
        while True:
            patience_seconds = self._request.patience_seconds
            writing = [each for each in seen if not each.is_complete and each.quiet_seconds < patience_seconds]
            awaited = [each for each in writing if each.step in at_first]
            if not awaited or not waits:
                newest = next((each for each in seen if each.is_complete), None)
                notes = tuple(_left_note(each) for each in seen if not each.is_complete and each not in awaited)
                return FoundSteps(source, newest, tuple(awaited), notes)
            for each in awaited:
                if each.step not in announced:
                    current_progress().note(f"waiting for step {each.step}, which is being written: {each.incomplete}")
            announced |= {each.step for each in awaited}
            if not sleep_unless_stopped(LOOK_AGAIN_SECONDS):
                raise StoppedError("stopped while waiting for a checkpoint that is being written")
            source, seen = self.look()

    def look(self) -> tuple[str, list[SeenStep]]:
        """The source's URL and its steps, newest first, down to the newest complete one."""
        steps = find_steps(self._request.source)
        seen: list[SeenStep] = []
        for each in steps.look(self._observer):
            seen.append(each)
            if each.is_complete:
                break
        return steps.source, seen

    def _target_of(self, step: Step) -> Location:
        return parse_url(self._request.directory_of(str(step)))


def is_converted(target: Location, source: str, files: Files) -> bool:
    """True if a finished conversion exists of a source's files as they are now.

    A job that was reset saves a step again, and a restarted one may save the same step numbers under another prefix.
    """
    manifest = read_manifest(target)
    if manifest is None:
        return False
    if manifest.source != source:
        raise TargetError(
            f"{target}: was converted from another source, {printable(manifest.source)}, not from {printable(source)}. "
            "Name another target for each training job"
        )
    plan_url = str(target.child(STATE_DIRECTORY, PLAN_NAME))
    others = _other_files(files, load_sources(plan_url, manifest.identity, manifest.plan_digest).records)
    if others:
        raise TargetError(
            f"{target}: was converted from other files: {others[0]}. Convert step {target.name} with "
            f"{option('overwrite', True)}, or move its conversion away, or name another target"
        )
    return True


def _other_files(files: Files, converted: Mapping[int, CatalogRecord]) -> list[str]:
    """Files that differ from the converted ones, with reasons; files removed since then do not count."""
    known = {rank: location for rank, location in files.items() if rank in converted}
    versions = at_once(lambda location: unless_missing(lambda: read_version(location)), known.values())
    return [
        f"{location} {_other_text(str(location), version, converted[rank])}"
        for (rank, location), version in zip(known.items(), versions, strict=True)
        if version is not None
        and not (str(location) == converted[rank].location and is_same_version(converted[rank].version, version))
    ]


def _other_text(location: str, version: str, converted: CatalogRecord) -> str:
    if location == converted.location and is_only_touched(converted.version, version):
        return f"is {TOUCHED}"
    return "was saved after that, or is another job's"


def _left_note(seen: SeenStep) -> str:
    if seen.quiet_seconds == math.inf:
        return f"step {seen.step} is skipped: {seen.incomplete}"
    ago = f"{seconds_text(seen.quiet_seconds)} ago"
    return f"step {seen.step} is skipped: {seen.incomplete}; its last change was {ago}"

"""The steps that a training job has saved completely, found by looking repeatedly at a growing checkpoint.

A step is complete when every rank has its file, no file has changed for the settling time, and each can be read to its
end. Time without change is measured by the storage's clock or by this process's observation, whichever is longer: with
a clock that runs ahead, files look as if they were just written. Where MindFormers' meta.json names the step or a later
one, nothing is left to settle; where it names an earlier one, the step is complete only without a change for the
patience. An iteration of a Checkpoint 2.0 is complete when the tracker names it, a step of DCP when it has `.metadata`.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.manifest import PLAN_NAME, read_manifest
from reshard.core.checkpoint.selection import select_files
from reshard.core.errors import CatalogError, ConversionError, InputError, StrategyError, TargetError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.cipher_blocks import KeyMistakeError
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.files.remote_index.indexing import read_indexes, workers_on
from reshard.core.layouts.checkpoint2.iterations import (
    find_iteration,
    holds_iterations,
    joint_files,
    list_iterations,
)
from reshard.core.layouts.checkpoint2.names import TRACKER_NAME, iteration_name
from reshard.core.layouts.checkpoint2.tracker import read_tracker
from reshard.core.layouts.dcp.checkpoint import find_dcp
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.dcp.steps import list_dcp_steps
from reshard.core.layouts.output_directory import (
    SAVED_STEP_NAME,
    find_output_checkpoint,
    read_saved_step,
)
from reshard.core.layouts.survey import CheckpointShape, CheckpointSurvey, survey
from reshard.core.records.plan_file import load_sources
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import sleep_unless_stopped
from reshard.core.runtime.wording import listed, printable, rank_names, seconds_text
from reshard.core.storage.file_versions import TOUCHED, Stamp, is_only_touched, is_same_version, read_stamps
from reshard.core.storage.listing import names_in, unless_missing
from reshard.core.storage.patterns import RANK_FIELD, spelled_for
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.reading import SourceFile, read_version
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location, parse_url

LOOK_AGAIN_SECONDS = 5.0
_MAX_LISTED = 10

Files = Mapping[int, Location]
"""Rank -> its file of a step."""


@frozen
class SeenStep:
    """A step's state at one look: the needed ranks' files, and why it is incomplete, if it is.

    For `quiet_seconds`, at least, none of its files has changed; `converted`: a finished conversion of it exists.
    """

    step: Step
    files: Files
    incomplete: str = ""
    quiet_seconds: float = math.inf
    converted: bool = False

    @property
    def is_complete(self) -> bool:
        """True if it can be converted, or was."""
        return not self.incomplete


@frozen
class FoundSteps:
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
        self._ranks = ranks
        self._seen: dict[str, tuple[Stamp, float]] = {}
        self._indexed: dict[Step, tuple[Sequence[Stamp | None], Mapping[int, InputError]]] = {}

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
                raise ConversionError("stopped while waiting for a checkpoint that is being written")
            source, seen = self.look()

    def look(self) -> tuple[str, list[SeenStep]]:
        """The source's URL and its steps, newest first, down to the newest complete one."""
        root = parse_url(self._request.source)
        names = unless_missing(lambda: names_in(root)) if RANK_FIELD not in root.path else None
        output = find_output_checkpoint(root, names) if names else None
        if output is not None:
            root, names = output, names_in(output)
        if names and holds_iterations(names):
            return str(root), self._see_iterations(root, list_iterations(names))
        if names and (numbers := list_dcp_steps(root, names)):
            return str(root), self._see_dcp(root, numbers)
        found = survey(str(root))
        if found.shape is CheckpointShape.ITERATION:
            raise CatalogError(f"{found.url}: is one iteration. Name the directory that training saves all into")
        if found.shape is CheckpointShape.DCP:
            raise CatalogError(
                f"{found.url}: is one DCP checkpoint, and has no steps: convert it with `reshard convert`"
            )
        if found.shape is CheckpointShape.FILE:
            raise CatalogError(f"{found.url}: is one file. Name the directory that training saves into")
        if found.shape is CheckpointShape.UNIFIED:
            raise CatalogError(f"{found.url}: is a unified checkpoint. Name the directory that training saves into")
        needed = self._ranks or range(max(found.files) + 1)
        saved = _saved_steps(found)
        steps = _files_by_step(found, self._request.source_prefix or None)
        seen: list[SeenStep] = []
        for step in sorted(steps, reverse=True):
            seen.append(self._see(found.url, step, steps[step], needed, saved))
            if seen[-1].is_complete:
                break
        return found.url, seen

    def _target_of(self, step: Step) -> Location:
        return parse_url(self._request.directory_of(str(step)))

    def _see_iterations(self, root: Location, numbers: Sequence[int]) -> list[SeenStep]:
        """The iterations of a Checkpoint 2.0: its tracker names the newest complete one."""
        tracked = read_tracker(root)
        seen: list[SeenStep] = []
        for number in reversed(numbers):
            step = Step(NO_EPOCH, number)
            if tracked is None or number > tracked:
                directory = root.child(iteration_name(number))
                seen.append(self._see_growing(directory, step, f"{TRACKER_NAME} does not name it yet"))
                continue
            try:
                iteration = find_iteration(str(root), str(number))
            except (CatalogError, StrategyError) as error:
                seen.append(SeenStep(step, {}, str(error)))
                continue
            assert iteration is not None
            files = joint_files(iteration)
            missing = [name for rank in iteration.files for name in iteration.missing_from(rank)]
            if not missing:
                converted = is_converted(self._target_of(step), str(root), files)
                return [*seen, SeenStep(step, files, converted=converted)]
            seen.append(SeenStep(step, files, f"files are missing: {listed(missing, _MAX_LISTED)}"))
        return seen

    def _see_dcp(self, root: Location, steps: Mapping[int, str]) -> list[SeenStep]:
        """The steps of a training with PyTorch: `.metadata` is written last."""
        seen: list[SeenStep] = []
        for number in sorted(steps, reverse=True):
            step, directory = Step(NO_EPOCH, number), root.child(steps[number])
            names = names_in(directory)
            if DCP_METADATA_NAME not in names:
                seen.append(self._see_growing(directory, step, f"{DCP_METADATA_NAME} is not there yet"))
                continue
            try:
                checkpoint = find_dcp(str(root), str(number))
            except (CatalogError, StrategyError) as error:
                seen.append(SeenStep(step, {}, str(error)))
                continue
            assert checkpoint is not None
            files = {rank: directory.child(part.path) for rank, part in enumerate(checkpoint.parts)}
            missing = [path for path in checkpoint.paths if "/" not in path and path not in names]
            if not missing:
                converted = is_converted(self._target_of(step), str(root), files)
                return [*seen, SeenStep(step, files, converted=converted)]
            seen.append(SeenStep(step, files, f"files are missing: {listed(missing, _MAX_LISTED)}"))
        return seen

    def _see_growing(self, directory: Location, step: Step, incomplete: str) -> SeenStep:
        files = [directory.child(name) for name in names_in(directory)]
        stamps = zip(files, read_stamps(files), strict=True)
        quiet = [self._quiet_seconds(location, stamp) for location, stamp in stamps if stamp]
        return SeenStep(step, {}, incomplete, min(quiet, default=0.0))

    def _see(self, source: str, step: Step, there: Files, needed: Iterable[int], saved: Mapping[int, Step]) -> SeenStep:
        """A step of rank folders; `saved`: the last step that each rank has saved, of those that record it."""
        files = {rank: there[rank] for rank in needed if rank in there}
        if is_converted(self._target_of(step), source, files):
            return SeenStep(step, files, converted=True)
        settle_seconds = self._request.settle_seconds
        key_is_wrong = False
        # files may vanish after listing
        stamps = dict(zip(files, read_stamps(files.values()), strict=True))
        quiet = {rank: self._quiet_seconds(files[rank], stamp) for rank, stamp in stamps.items() if stamp}
        missing = [rank for rank in needed if rank not in quiet]
        marked = {rank for rank, last in saved.items() if last >= step}
        unsettled = [rank for rank, seconds in quiet.items() if seconds < settle_seconds and rank not in marked]
        # of a job that saves asynchronously, the last checkpoint is never recorded
        patience_seconds = self._request.patience_seconds
        behind = saved.keys() - marked
        unmarked = [rank for rank, seconds in quiet.items() if seconds < patience_seconds and rank in behind]
        if missing:
            incomplete = f"no file of {rank_names(missing, _MAX_LISTED)}"
        elif unmarked:
            incomplete = f"{SAVED_STEP_NAME} of {rank_names(unmarked, _MAX_LISTED)} does not name it yet"
        elif unsettled:
            incomplete = f"{rank_names(unsettled, _MAX_LISTED)} changed less than {settle_seconds} s ago"
        else:
            damaged = self._damaged(step, files, tuple(stamps.values()))
            reasons = [f"rank_{rank}: {error}" for rank, error in damaged.items()]
            incomplete = f"cannot be read to the end: {listed(reasons)}" if damaged else ""
            key_is_wrong = any(isinstance(error, KeyMistakeError) for error in damaged.values())
        # waiting does not supply a missing key
        return SeenStep(step, files, incomplete, math.inf if key_is_wrong else min(quiet.values(), default=math.inf))

    def _quiet_seconds(self, location: Location, stamp: Stamp) -> float:
        """For how long, at least, a file is unchanged: by the storage's clock, or as observed by this process."""
        now = time.monotonic()
        known, since = self._seen.get(location.path, (None, now))
        if known != stamp:
            since = now
            self._seen[location.path] = (stamp, since)
        # negative, and so ignored, if the storage's clock runs ahead
        by_storage = -1.0 if stamp.changed is None else time.time() - stamp.changed
        return max(now - since, by_storage)

    def _damaged(self, step: Step, files: Files, stamps: Sequence[Stamp | None]) -> Mapping[int, InputError]:
        """The ranks with damaged files; remembered while no file changes."""
        known = self._indexed.get(step)
        if known is None or known[0] != stamps:
            known = self._indexed[step] = (stamps, _unreadable(files, self._request.worker_count))
        return known[1]


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
            f"{target}: was converted from other files: {others[0]}. Convert step {target.name} with --overwrite, or "
            "move its conversion away, or name another target"
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
        return f"step {seen.step} is passed over: {seen.incomplete}"
    ago = f"{seconds_text(seen.quiet_seconds)} ago"
    return f"step {seen.step} is passed over: {seen.incomplete}; its last change was {ago}"


def _files_by_step(found: CheckpointSurvey, source_prefix: str | None) -> dict[Step, dict[int, Location]]:
    """Each step's files, of one prefix; breakpoints saved on an exception are not steps."""
    usable = {rank: [file for file in found.files[rank] if _has_step(file.name.step)] for rank in found.ranks}
    usable = {rank: files for rank, files in usable.items() if files}
    if not usable:
        return {}
    spelling = _spelling(found, [*usable], source_prefix)
    steps: dict[Step, dict[int, Location]] = {}
    for rank, files in usable.items():
        for file in files:
            if file.name.step and file.name.prefix == spelled_for(spelling, rank):
                steps.setdefault(file.name.step, {})[rank] = file.location
    return steps


def _saved_steps(found: CheckpointSurvey) -> dict[int, Step]:
    """The last step that each rank has saved, of the ranks that record it."""
    if not any(path.endswith(f"/{SAVED_STEP_NAME}") for path in found.ignored):
        return {}
    folders = {rank: found.files[rank][0].location.parent for rank in found.ranks}
    steps = dict(zip(folders, at_once(read_saved_step, folders.values()), strict=True))
    return {rank: step for rank, step in steps.items() if step is not None}


def _has_step(step: Step | None) -> bool:
    return step is not None and not step.breakpoint


def _spelling(found: CheckpointSurvey, ranks: Sequence[int], asked: str | None) -> str:
    """The chosen prefix, with `{rank}` in place of a rank."""
    groups = {
        spelling: {rank for step, holders in steps.items() if _has_step(step) for rank in holders}
        for spelling, steps in found.steps.items()
    }
    if asked is None:
        meant = [spelling for spelling, holders in groups.items() if len(holders) == len(ranks)]
    else:
        meant = [each for each in groups if asked in (each, *(spelled_for(each, rank) for rank in groups[each]))]
    if len(meant) != 1:
        # raises with the choices and the option
        names = {rank: [file.name for file in found.files[rank]] for rank in ranks}
        select_files(found.url, names, source_prefix=asked)
        raise CatalogError(f"{found.url}: prefixes {listed(meant)}: --source-prefix chooses one")
    return meant[0]


def _unreadable(files: Files, workers: int) -> dict[int, InputError]:
    """The ranks whose files cannot be read to the end, and why."""
    with workers_on(files.values(), workers) as threads:
        if any(location.is_local for location in files.values()):
            outcomes = threads.outcomes(_check_local, files.values())
            return {rank: why for rank, why in zip(files, outcomes, strict=True) if isinstance(why, InputError)}
        opened = dict(zip(files, threads.outcomes(_opened, files.values()), strict=True))
        readable: dict[int, SourceFile] = {
            rank: file for rank, file in opened.items() if not isinstance(file, InputError)
        }
        try:
            indexes = read_indexes(readable, threads, assume_alike=True)
        finally:
            for file in readable.values():
                file.close()
    found = opened | indexes
    return {rank: why for rank in files if isinstance(why := found[rank], InputError)}


def _opened(location: Location) -> SourceFile:
    return open_checkpoint(location, source_key())


def _check_local(location: Location) -> None:
    file = _opened(location)
    try:
        read_index(file)
    finally:
        file.close()

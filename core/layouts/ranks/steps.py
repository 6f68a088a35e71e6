"""The steps of a training that saves files of ranks: which are complete.

A step is complete when every rank has its file, no file has changed for the settling time, and each can be read to its
end. Where MindFormers' meta.json names the step or a later one, nothing is left to settle; where it names an earlier
one, the step is complete only without a change for the patience.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from reshard.core.checkpoint.selection import select_files
from reshard.core.errors import CatalogError, InputError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.cipher_blocks import KeyMistakeError
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.file_names import Step
from reshard.core.files.remote_index.indexing import read_indexes, workers_on
from reshard.core.layouts.ranks.mindformers import SAVED_STEP_NAME, read_saved_step
from reshard.core.layouts.ranks.rank_files import RankFiles
from reshard.core.layouts.seen_steps import Files, SeenStep, StepObserver
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.storage.file_versions import read_stamps
from reshard.core.storage.patterns import spelled_for
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location
from reshard.core.text.options import option

_MAX_LISTED = 10


class RankSteps(Record):
    """The steps in the names of ranks' files."""

    found: RankFiles

    @property
    def source(self) -> str:
        """The checkpoint's URL."""
        return self.found.url

    def look(self, observer: StepObserver) -> Iterator[SeenStep]:
        """Yield the steps, newest first."""
        needed = observer.options.ranks or range(max(self.found.files) + 1)
        saved = _saved_steps(self.found)
        steps = _files_by_step(self.found, observer.options.source_prefix)
        for step in sorted(steps, reverse=True):
            files = {rank: steps[step][rank] for rank in needed if rank in steps[step]}
            yield self._see(observer, step, files, needed, saved)

    def _see(
        self, observer: StepObserver, step: Step, files: Files, needed: Iterable[int], saved: Mapping[int, Step]
    ) -> SeenStep:
        """One step; `saved`: the last step that each rank has saved, of those that record it."""
        options = observer.options
        if options.is_converted(step, self.source, files):
            return SeenStep(step, files, converted=True)
        # files may vanish after listing
        stamps = dict(zip(files, read_stamps(files.values()), strict=True))
        quiet = {rank: observer.quiet_seconds(files[rank], stamp) for rank, stamp in stamps.items() if stamp}
        unready = _unready(observer, step, quiet, needed, saved)
        if unready:
            return SeenStep(step, files, unready, min(quiet.values(), default=math.inf))
        damaged = observer.damaged(step, tuple(stamps.values()), partial(_unreadable, files, options.workers))
        if not damaged:
            return SeenStep(step, files, "", min(quiet.values(), default=math.inf))
        reasons = [f"rank_{rank}: {error}" for rank, error in damaged.items()]
        # waiting does not supply a missing key
        key_is_wrong = any(isinstance(error, KeyMistakeError) for error in damaged.values())
        quiet_seconds = math.inf if key_is_wrong else min(quiet.values(), default=math.inf)
        return SeenStep(step, files, f"cannot be read to the end: {listed(reasons)}", quiet_seconds)


def _unready(
    observer: StepObserver,
    step: Step,
    quiet: Mapping[int, float],
    needed: Iterable[int],
    saved: Mapping[int, Step],
) -> str:
    """Why the files of a step are not to be read yet; `quiet`: rank -> for how long its file has not changed."""
    settle_seconds, patience_seconds = observer.options.settle_seconds, observer.options.patience_seconds
    missing = [rank for rank in needed if rank not in quiet]
    if missing:
        return f"no file of {rank_names(missing, _MAX_LISTED)}"
    marked = {rank for rank, last in saved.items() if last >= step}
    # a job that saves asynchronously never records its last checkpoint
    behind = saved.keys() - marked
    unmarked = [rank for rank, seconds in quiet.items() if seconds < patience_seconds and rank in behind]
    if unmarked:
        return f"{SAVED_STEP_NAME} of {rank_names(unmarked, _MAX_LISTED)} does not name it yet"
    unsettled = [rank for rank, seconds in quiet.items() if seconds < settle_seconds and rank not in marked]
    if unsettled:
        return f"{rank_names(unsettled, _MAX_LISTED)} changed less than {settle_seconds} s ago"
    return ""


def _files_by_step(found: RankFiles, source_prefix: str | None) -> dict[Step, dict[int, Location]]:
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


def _saved_steps(found: RankFiles) -> dict[int, Step]:
    """The last step that each rank has saved, of the ranks that record it."""
    if not any(path.endswith(f"/{SAVED_STEP_NAME}") for path in found.ignored):
        return {}
    folders = {rank: found.files[rank][0].location.parent for rank in found.ranks}
    steps = dict(zip(folders, at_once(read_saved_step, folders.values()), strict=True))
    return {rank: step for rank, step in steps.items() if step is not None}


def _has_step(step: Step | None) -> bool:
    return step is not None and not step.breakpoint


def _spelling(found: RankFiles, ranks: Sequence[int], asked: str | None) -> str:
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
        raise CatalogError(f"{found.url}: prefixes {listed(meant)}: {option('source_prefix')} chooses one")
    return meant[0]


def _unreadable(files: Files, workers: int) -> dict[int, InputError]:
    """The ranks whose files cannot be read to the end, and why."""
    with workers_on(files.values(), workers) as threads:
        if threads.are_near:
            outcomes = threads.outcomes(_check_near, files.values())
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


def _check_near(location: Location) -> None:
    file = _opened(location)
    try:
        read_index(file)
    finally:
        file.close()

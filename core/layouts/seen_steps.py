"""The steps of a training as they look at one moment: complete, growing or torn, and why.

Each layout knows what makes a step of its own complete. What they share is here: time without change is measured by the
storage's clock or by this process's observation, whichever is longer: with a clock that runs ahead, files look as if
they were just written.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from reshard.core.errors import InputError
from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts.tracker import Tracker, read_tracker
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.file_versions import Stamp, read_stamps
from reshard.core.storage.listing import find_files
from reshard.core.storage.urls import Location

_MAX_LISTED = 10

Files = Mapping[int, Location]
"""Rank -> its file of a step."""
Stamps = Sequence[Stamp | None]


class SeenStep(Record):
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


class WatchOptions(Record):
    """How steps are looked at.

    Attributes:
        ranks: a complete step has files of all of these; None: of all ranks up to the highest folder's.
        source_prefix: the prefix of the files, if there are several.
        settle_seconds: files that have not changed for so long are complete, if nothing else tells.
        patience_seconds: what has not changed for so long is not being written any more.
        workers: files read at a time.
        is_converted: True if a finished conversion exists of a step's files in a source.
    """

    ranks: range | None
    source_prefix: str | None
    settle_seconds: float
    patience_seconds: float
    workers: int
    is_converted: Callable[[Step, str, Files], bool]


class StepObserver:
    """Remembers over several looks since when each file is unchanged, and which files are damaged."""

    def __init__(self, options: WatchOptions) -> None:
        self.options = options
        self._seen: dict[str, tuple[Stamp, float]] = {}
        self._damaged: dict[Step, tuple[Stamps, Mapping[int, InputError]]] = {}

    def finished(self, step: Step, source: str, files: Files, missing: Sequence[str]) -> SeenStep:
        """A step that is not written to any more: complete, unless files are `missing`."""
        if missing:
            return SeenStep(step, files, f"files are missing: {listed(missing, _MAX_LISTED)}")
        return SeenStep(step, files, converted=self.options.is_converted(step, source, files))

    def growing(self, directory: Location, step: Step, incomplete: str) -> SeenStep:
        """A step that is being written into a directory, or was left incomplete."""
        files = find_files(directory)
        stamps = zip(files, read_stamps(files), strict=True)
        quiet = [self.quiet_seconds(location, stamp) for location, stamp in stamps if stamp]
        return SeenStep(step, {}, incomplete, min(quiet, default=0.0))

    def quiet_seconds(self, location: Location, stamp: Stamp) -> float:
        """Return the least time since a file changed: by the storage's clock, or as observed by this process."""
        now = time.monotonic()
        known, since = self._seen.get(location.path, (None, now))
        if known != stamp:
            since = now
            self._seen[location.path] = (stamp, since)
        # negative, and so ignored, if the storage's clock runs ahead
        by_storage = -1.0 if stamp.changed is None else time.time() - stamp.changed
        return max(now - since, by_storage)

    def damaged(
        self, step: Step, stamps: Stamps, find: Callable[[], Mapping[int, InputError]]
    ) -> Mapping[int, InputError]:
        """The ranks whose files of a step are damaged, as `find` says; remembered while no file changes."""
        known = self._damaged.get(step)
        if known is None or known[0] != stamps:
            known = self._damaged[step] = (stamps, find())
        return known[1]


class TrainingSteps(Protocol):
    """The steps that a training saves into one directory."""

    @property
    def source(self) -> str:
        """The directory's URL, as manifests of conversions of its steps record it."""

    def look(self, observer: StepObserver) -> Iterator[SeenStep]:
        """Yield the steps, newest first; only those that are asked for are looked at."""


class DirectorySteps(Record):
    """Steps with a directory each, one of which a tracker beside them may name.

    Attributes:
        root: the directory of all.
        directories: number of a step -> the name of its directory.
    """

    root: Location
    directories: Mapping[int, str]

    tracker: ClassVar[Tracker | None] = None

    @property
    def tracker_name(self) -> str:
        """The name of the tracker; empty without one."""
        return self.tracker.name if self.tracker else ""

    @property
    def source(self) -> str:
        """The directory's URL."""
        return str(self.root)

    def named(self) -> int | None:
        """Return the number of the step that the tracker names; None if it names none, or there is none."""
        return read_tracker(self.root, self.tracker) if self.tracker else None

    def see(self, observer: StepObserver, step: Step, directory: Location, named: int | None) -> SeenStep:
        """Return a step at one look; `named`: the number of the one that the tracker names."""
        raise NotImplementedError

    def look(self, observer: StepObserver) -> Iterator[SeenStep]:
        """Yield the steps, newest first, and in its place the one that the tracker names although it is not there."""
        named = self.named()
        for number in sorted({*self.directories, *([] if named is None else [named])}, reverse=True):
            step = Step(NO_EPOCH, number)
            if number in self.directories:
                yield self.see(observer, step, self.root.child(self.directories[number]), named)
            else:
                yield SeenStep(step, {}, f"{self.tracker_name} names it, and it is not there")

    def unnamed(self, observer: StepObserver, step: Step, directory: Location) -> SeenStep:
        """Return a step that the tracker has still to name: it is being written, or was left incomplete."""
        return observer.growing(directory, step, f"{self.tracker_name} does not name it yet")

"""Whether the files that a target was made from are still what its provenance says of them.

Only files whose SHA-256 was taken are read. A statement may come from a stranger: besides local files, only what is in
the source that the manifest names, or in the directory that the target is in, is looked at.
"""

import hashlib
from collections.abc import Callable, Sequence
from enum import Enum
from threading import Event

from reshard.core.changes.preset import preset_names, preset_text
from reshard.core.checkpoint.manifest import Manifest
from reshard.core.custody.digests import read_sha256
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.statements import Dependency, url_of
from reshard.core.errors import CheckpointError, InputError, StorageError, is_transient
from reshard.core.runtime.progress import Progress, advancing, current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted
from reshard.core.storage.file_versions import difference_text, is_only_touched, is_same_version
from reshard.core.storage.listing import stat, unless_missing
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.printing import printable

PHASE = "checking provenance"
_SOURCE = "source"
_WORKERS = 4


class Findings(Record):
    """What was found of a target, in sentences: problems, and notes on what could not be checked."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _State(Enum):
    """What became of a file."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "gone, and not checked"
    ELSEWHERE = "neither in the source nor beside the target, and not checked"
    VAGUE = "named without version or SHA-256, and not checked"
    TOUCHED = "of the same size and modification time, but touched since; SHA-256 was not taken"


_NOTED = (_State.MISSING, _State.ELSEWHERE, _State.VAGUE, _State.TOUCHED)


class _Look(Record):
    """A file that was looked at; `problem` says what is wrong with it."""

    dependency: Dependency
    state: _State
    problem: str = ""

    @property
    def is_of_source(self) -> bool:
        return self.dependency.annotations.role == _SOURCE


def check_dependencies(
    statement: ProvenanceStatement, directory: Location, manifest: Manifest, progress: Progress
) -> Findings:
    """Compare the files that the statement about the target in a directory names with what it says of them.

    Raises:
        StorageError: a storage does not answer.
    """
    dependencies = statement.predicate.build_definition.resolved_dependencies
    stop = Event()
    check = _Check(directory, manifest, advancing(progress, stop))
    progress.begin(PHASE, sum(each.annotations.size_bytes or 0 for each in dependencies if each.digest))
    return _findings(in_threads(check.look_at, dependencies, _WORKERS, stop))


def _findings(looks: Sequence[_Look]) -> Findings:
    problems = [look.problem for look in looks if look.state is _State.WRONG]
    if any(look.is_of_source and look.state is not _State.MISSING for look in looks):
        lost = [look.dependency for look in looks if look.is_of_source and look.state is _State.MISSING]
        problems += [f"{dependency.uri}: is missing, and others of the source are there" for dependency in lost]
        looks = [look for look in looks if not (look.is_of_source and look.state is _State.MISSING)]
    notes = (_note(state, [look.dependency for look in looks if look.state is state]) for state in _NOTED)
    return Findings(tuple(problems), tuple(filter(None, notes)))


def _note(state: _State, dependencies: Sequence[Dependency]) -> str:
    if not dependencies:
        return ""
    first = dependencies[0]
    return f"{counted(len(dependencies), 'file')} that it was made from: {state.value} ({first.uri or first.name})"


class _Check(Record):
    """Checks files that a target was made from; `advance` is called with the bytes read."""

    directory: Location
    manifest: Manifest
    advance: Callable[[int], None]

    def look_at(self, dependency: Dependency) -> _Look:
        """Look at one file; a StorageError if its storage does not answer."""
        if dependency.uri is None:
            return _look_at_preset(dependency)
        url = url_of(dependency.uri)
        try:
            location = self._place_of(url)
        except InputError as error:
            return _Look(dependency, _State.WRONG, f"{dependency.name}: cannot be looked at: {error}")
        if location is None:
            return _Look(dependency, _State.ELSEWHERE)
        if dependency.digest is None and dependency.annotations.version is None:
            return _Look(dependency, _State.VAGUE)
        try:
            return with_retries(lambda: self._compared(dependency, location), current_progress().note)
        except (StorageError, CheckpointError) as error:
            if is_transient(error):
                raise
            return _Look(dependency, _State.WRONG, str(error))

    def _place_of(self, url: str) -> Location | None:
        """Return where a file is; None where nothing is looked at: to open some storages is to connect to them."""
        if url.startswith("/") or self._is_in_source(url):
            return parse_url(url)
        around = self.directory.parent  # on the target's storage, which is open; parts that are joined are often there
        if around.path and url.startswith(f"{around}/"):
            return around.child(*url.removeprefix(f"{around}/").split("/"))
        return None

    def _is_in_source(self, url: str) -> bool:
        source, brace, _ = self.manifest.source.partition("{")  # the rest is a pattern
        place = (source.rpartition("/")[0] if brace else source).rstrip("/")
        return url == place or url.startswith(f"{place}/")

    def _compared(self, dependency: Dependency, location: Location) -> _Look:
        facts, then = dependency.annotations, "when it was converted"
        entry = unless_missing(lambda: stat(location))
        if entry is None:
            return _Look(dependency, _State.MISSING)
        if facts.size_bytes is not None and entry.size_bytes != facts.size_bytes:
            problem = f"{location}: has {entry.size_bytes} bytes, and had {facts.size_bytes} {then}"
            return _Look(dependency, _State.WRONG, problem)
        if dependency.digest is not None:
            sha256 = read_sha256(location, self.advance)
            if sha256 == dependency.digest.sha256:
                return _Look(dependency, _State.RIGHT)
            problem = f"{location}: its SHA-256 is {sha256}, and was {dependency.digest.sha256} {then}"
            return _Look(dependency, _State.WRONG, problem)
        known, found = facts.version or "", entry.file_version
        if is_same_version(known, found):
            return _Look(dependency, _State.RIGHT)
        if is_only_touched(known, found):
            return _Look(dependency, _State.TOUCHED)
        difference = difference_text(printable(known), found)
        problem = f"{location}: was changed since it was converted, or copied: {difference}. Its SHA-256 was not taken"
        return _Look(dependency, _State.WRONG, problem)


def _look_at_preset(dependency: Dependency) -> _Look:
    name, digest = dependency.name.removesuffix(".yaml"), dependency.digest
    if name not in preset_names() or digest is None:
        return _Look(dependency, _State.VAGUE)
    if hashlib.sha256(preset_text(name).encode()).hexdigest() == digest.sha256:
        return _Look(dependency, _State.RIGHT)
    problem = f"preset {name}: is another one in this version of reshard than in the one that converted"
    return _Look(dependency, _State.WRONG, problem)

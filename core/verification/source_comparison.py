"""The comparison of a finished conversion's values with its source's, which is read again."""

import threading
from collections.abc import Callable
from contextlib import closing

from msgspec.structs import replace

from reshard import __version__
from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.manifest import Manifest, ShardRecord
from reshard.core.errors import CatalogError, CheckpointError, InputError, StorageError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.file_names import parse_name
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import load_plan, rebuild_plan
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.file_versions import is_only_touched, is_same_version
from reshard.core.storage.listing import has_no_file, is_missing
from reshard.core.storage.reading import read_version
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.workspace import Workspace
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option
from reshard.core.verification.values import ContentCheck, target_starts


class SourceComparison:
    """A finished conversion and its source.

    Attributes:
        source_bytes: bytes to read from the source.
        parameter_count: number of parameters compared.
    """

    def __init__(self, workspace: Workspace, manifest: Manifest) -> None:
        self._target = str(workspace.directory)
        self._plan = _with_current_versions(_plan_of(workspace, manifest))
        self._content = ContentCheck(self._plan)
        self._lock = threading.Lock()
        self.source_bytes = self._content.source_bytes()
        self.parameter_count = self._content.parameter_count

    def starts(self, rank: int) -> dict[str, Shape] | None:
        """Where a target rank's shards begin in their whole tensors; None if the plan has no such rank."""
        return target_starts(self._plan, rank) if rank in self._plan.target_ranks else None

    def read_source(self, workers: int, advance: Callable[[int], None], stop: threading.Event) -> None:
        """Read the source and add its contributions."""
        source = f"{self._target}: its values are to be compared with those of {self._plan.inputs.catalog.url}"
        advice = f"restore it, or use `{option('level', 'checksum')}`, which needs only the checkpoint itself"
        ranks = self._content.source_ranks
        try:
            self._check_readable(source)
            found = in_threads(lambda rank: self._content.source_parts(rank, advance), ranks, workers, stop)
        except StorageError as error:
            if not has_no_file(error):
                raise
            raise InputError(f"{source}, which no longer exists: {advice}\n  {error.marked}") from error
        except CatalogError as error:
            raise InputError(f"{source}, which has changed: {advice}\n  {error.marked}") from error
        for rank, parts in zip(ranks, found, strict=True):
            self._content.add_source(rank, parts)

    def _check_readable(self, source: str) -> None:
        """Check that a file's headers are unchanged: an encrypted file read without its key would yield garbage."""
        strategy = self._plan.inputs.source_strategy
        record = next(iter(self._plan.inputs.catalog.records.values()))
        is_foreign = parse_name(parse_url(record.location).name) is None
        if is_foreign or (strategy is not None and strategy.lists_boxes):  # these are never encrypted
            return
        try:
            with closing(open_checkpoint(parse_url(record.location), source_key())) as file:
                is_same = file.version != record.version or read_index(file).entries == record.index.entries
        except CheckpointError:
            is_same = False
        if not is_same:
            raise InputError(
                f"{source}, but {record.location} cannot be read as it was for the conversion. If it is encrypted, "
                f"name its key with {option('source_decrypt_key')}, and the mode with {option('source_decrypt_mode')}; "
                "if not, name no key"
            )

    def add(self, record: ShardRecord) -> None:
        """Add a target rank's contributions; thread-safe."""
        with self._lock:
            self._content.add_target(record)

    def problems(self, workers: int) -> list[str]:
        """The differences, in sentences."""
        return [f"{self._target}: {problem.message}" for problem in self._content.problems(workers)]


def _plan_of(workspace: Workspace, manifest: Manifest) -> ConversionPlan:
    try:
        if manifest.writer == f"reshard {__version__}":
            return load_plan(workspace.plan_url, manifest.identity, manifest.plan_digest)
        # the identities of other versions cannot be reproduced
        return rebuild_plan(workspace.plan_url, manifest.plan_digest)
    except StorageError as error:
        if not is_missing(error):
            raise
        raise InputError(
            f"{workspace.directory}: has no plan beside it, which would name the values to compare with; "
            f"`{option('level', 'checksum')}` needs none"
        ) from error


def _with_current_versions(plan: ConversionPlan) -> ConversionPlan:
    """The plan with the source files' current versions, where only the change time differs.

    Values are compared, so touched files do no harm. Earlier versions of reshard recorded no change time.
    """
    catalog = plan.inputs.catalog
    records = {rank: _with_current_version(record) for rank, record in catalog.records.items()}
    return ConversionPlan(replace(plan.inputs, catalog=replace(catalog, records=records)), plan.match)


def _with_current_version(record: CatalogRecord) -> CatalogRecord:
    location = parse_url(record.location)
    found = _current_version(location) if location.store.has_paths else None
    if found is None or not (is_only_touched(record.version, found) or is_same_version(record.version, found)):
        return record
    return replace(record, version=found)


def _current_version(location: Location) -> str | None:
    try:
        return read_version(location)
    except StorageError as error:
        if has_no_file(error):  # reading the file raises the error
            return None
        raise

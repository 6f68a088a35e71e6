"""The strategy of a source that reshard wrote, read from the source's own records: no option has to name it.

`.reshard/plan.json.gz` holds the strategy that the source was converted to. It is used if the manifest was written for
this plan, and if the manifest's files are present with the recorded sizes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import PLAN_NAME, Manifest, unseal_manifest
from reshard.core.errors import InputError, LayoutError, StorageError, StrategyError, UnusableStorageError
from reshard.core.files.encryption.encrypted_output import encrypted_bytes
from reshard.core.files.file_names import parse_name
from reshard.core.layouts.any_layout import is_document
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.targets import side_named
from reshard.core.records.plan_file import load_target_strategy
from reshard.core.runtime.keys import Keys, keys_in_force, source_key
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.joined import parts_of
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.patterns import RANK_FIELD
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.text.options import source_option

_MAX_LISTED = 4


class OwnStrategy(Record):
    """The strategy in a source's records, and the manifest that its files have to match."""

    strategy: Strategy
    manifest: Manifest

    @property
    def note(self) -> str:
        """A sentence for the plan's notes: this strategy is used."""
        return f"the source was converted by reshard: its strategy is its own, of {self.strategy.origin}"


def read_own_strategy(source: str) -> OwnStrategy | None:
    """The strategy in the records beside a source; None without records, or if the source is not cut."""
    location = parse_url(source)
    if RANK_FIELD in location.path or parse_name(location.name) or is_document(location.name):
        return None
    with _refused_by_name(location):
        manifest = read_manifest(location)
    if manifest is None or side_named(manifest.layout).record.ranks_are_files:
        return None
    origin = str(location.child(STATE_DIRECTORY, MANIFEST_NAME))
    if bool(manifest.encryption) != (source_key() is not None):
        unseal_manifest(manifest, source_key(), origin)  # its error says what to do about the key
    with _refused_by_name(location):
        return _read(location, unseal_manifest(manifest, source_key(), origin))


def file_mismatch(catalog: CheckpointCatalog, manifest: Manifest) -> str | None:
    """The first difference between the files in use and the manifest; None without one. Lost ranks are skipped."""
    directory = parse_url(catalog.url)
    summaries = {summary.rank: summary for summary in manifest.ranks}
    for rank, record in catalog.records.items():
        summary = summaries.get(rank)
        if summary is None:
            return f"{record.location} is of a rank that {MANIFEST_NAME} does not have"
        if _paths(parse_url(record.location)) != _paths(directory.child(*summary.file.split("/"))):
            return f"{record.location} is not the file that {MANIFEST_NAME} has for the rank, {summary.file}"
        size_bytes = encrypted_bytes(record.size_bytes, manifest.encryption)
        if size_bytes != summary.size_bytes:
            return f"{record.location} has {size_bytes} bytes, {MANIFEST_NAME} says {summary.size_bytes}"
    return None


def check_own_files(catalog: CheckpointCatalog, own: OwnStrategy) -> CheckpointCatalog:
    """The catalog of a source read by its own strategy, with a note that says so."""
    # the files were found after the strategy was read
    now = read_manifest(parse_url(catalog.url))
    if now is None or (now.identity, now.created) != (own.manifest.identity, own.manifest.created):
        raise StrategyError(f"{catalog.url}: its records were replaced meanwhile; run the command again")
    mismatch = file_mismatch(catalog, own.manifest)
    if mismatch is not None:
        raise StrategyError(
            f"{catalog.url}: was converted by reshard, but changed since ({mismatch}): its own strategy may not be its "
            f"files'. Name their strategy with {source_option('source_strategy')}"
        )
    return replace(catalog, notes=(own.note, *catalog.notes))


def check_named(catalog: CheckpointCatalog, named: Strategy, *, trusted: bool) -> CheckpointCatalog:
    """The catalog of a source with a `named` strategy; noted if the source's own records contradict a `trusted` one."""
    try:
        own = read_own_strategy(catalog.url)
    except InputError as error:
        note = f"the source's own records were not checked: {error.__cause__ or error}"
        return replace(catalog, notes=(*catalog.notes, note))
    if own is None or file_mismatch(catalog, own.manifest) is not None:
        return catalog
    differing = list(_differing(catalog, named, own.strategy))
    if not differing:
        return catalog
    difference = (
        f"{named.origin}: cuts {listed(differing, _MAX_LISTED)} differently from the strategy that {catalog.url} was "
        f"converted by ({own.strategy.origin})"
    )
    if not trusted:
        raise StrategyError(
            f"{difference}. Leave out {source_option('source_strategy')}, and the source's own is used; or, if its "
            f"files are of the named one, pass {source_option('trust_strategy', True)}"
        )
    return replace(catalog, notes=(difference, *catalog.notes))


@contextmanager
def _refused_by_name(location: Location) -> Iterator[None]:
    """Turn errors of reading a source's records into StrategyErrors with advice; transient ones pass unchanged."""
    try:
        yield
    except (InputError, StorageError) as error:
        if isinstance(error, UnusableStorageError) or (isinstance(error, StorageError) and error.transient):
            raise
        raise StrategyError(
            f"{location}: its records hold its strategy, but cannot be used: {error.marked}. Name the strategy with "
            f"{source_option('source_strategy')}, or, if it needs none, move {STATE_DIRECTORY} away"
        ) from error


def _read(location: Location, manifest: Manifest) -> OwnStrategy | None:
    url = str(location.child(STATE_DIRECTORY, PLAN_NAME))
    # the plan was sealed with the target's key, which is this source's key now
    with keys_in_force(Keys(target=source_key())):
        # joined parts have no common plan
        strategy = unless_missing(
            lambda: load_target_strategy(
                url, manifest.identity, manifest.plan_digest, encrypted=bool(manifest.encryption)
            )
        )
    if strategy is None:
        return None
    ranks = [summary.rank for summary in manifest.ranks]
    if len(ranks) != len(strategy.ranks) or ranks != list(strategy.ranks):
        raise StrategyError(
            f"{url}: its strategy has {len(strategy.ranks)} ranks, {MANIFEST_NAME} has {len(ranks)}, or others"
        )
    return OwnStrategy(strategy, manifest)


def _paths(location: Location) -> list[str]:
    return [file.path for file in parts_of(location) or (location,)]


def _differing(catalog: CheckpointCatalog, named: Strategy, own: Strategy) -> Iterator[str]:
    """Names of parameters that two strategies of the same ranks cut differently."""
    if named.ranks != own.ranks or len(named.stages) != len(own.stages):
        return
    same: dict[tuple[ParameterLayout, ParameterLayout, int], bool] = {}
    for stage, other in zip(named.stages, own.stages, strict=True):
        indexes = catalog.indexes(named.stage_ranks(stage))
        for name, layout in stage.layouts.items():
            entry = next((index.entries[name] for index in indexes if name in index.entries), None)
            if entry is None or name not in other.layouts or entry.dtype in (TEXT, MAP_TENSOR):
                continue
            key = layout, other.layouts[name], len(entry.shape)
            if key not in same:
                same[key] = _cut_alike(*key)
            if not same[key]:
                yield name


def _cut_alike(layout: ParameterLayout, other: ParameterLayout, axis_count: int) -> bool:
    try:
        one, two = layout.shard_grid(axis_count), other.shard_grid(axis_count)
    except LayoutError:
        return True  # planning reports it, with the parameter's name
    return one == two

"""Opens a source: finds its strategy, catalogs the file of each rank, and checks that they fit each other."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.shared_bytes import check_bytes_apart
from reshard.core.errors import CatalogError
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.source_layout import CatalogOptions, FoundCheckpoint
from reshard.core.layouts.survey import find_self_described, survey
from reshard.core.plan.adapter import Adapter
from reshard.core.plan.stage_shards import SourceShards
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.log import detail, timed
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed, size_text
from reshard.core.source.damage import damage_policy
from reshard.core.source.exchanged import naming_exchanged
from reshard.core.source.own_stage import of_own_stage
from reshard.core.source.own_strategy import OwnStrategy, check_named, check_own_files, read_own_strategy
from reshard.core.source.strategy_beside import read_strategy_beside
from reshard.core.source.unheld import with_unheld_noted
from reshard.core.storage.joined import parts_of
from reshard.core.storage.placement import check_apart
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import source_option

if TYPE_CHECKING:
    from reshard.core.plan.preset_route import CompiledPreset

_SMALL_CONTENT_BYTES = 2**20

GivenStrategy = Strategy | OwnStrategy | FoundCheckpoint | None
"""The strategy of a source: named by the caller, read from its own records, its metadata or beside it, or none."""


class TargetOutline(Record):
    """The target that a source is opened for, as far as it decides what is checked.

    Attributes:
        url: where it is written; empty if nothing is.
        strategy: how it is cut; None: whole tensors.
        once: True if parameters outside the strategies are written once, for all ranks.
        preset: the preset whose steps are among the changes.
        adapter: what is merged into the source's weights.
        crc_later: CRCs of single tensors are checked when these are read for it.
    """

    url: str = ""
    strategy: Strategy | None = None
    changes: Changes = NO_CHANGES
    once: bool = False
    preset: "CompiledPreset | None" = None
    adapter: Adapter | None = None
    crc_later: bool = False

    @property
    def needs_equal_ranks(self) -> bool:
        """True if parameters outside the source's strategy have to be the same on all ranks.

        A target may have them once; and with new names or shapes, source names do not tell what the target cuts.
        """
        changes = self.changes
        return self.once or bool(changes.steps or changes.rename or changes.split or changes.join or changes.transpose)


NO_TARGET = TargetOutline()


class Source(Record):
    """A checkpoint opened for reading.

    Attributes:
        request: the options it was opened with.
        catalog: the file of each rank and its parameters.
        strategy: how parameters are cut; None: not at all, one rank. Where tensors are whole, each file is a stage.
        shards: the strategy's shards in these files, grouped on first use.
        other_ranks: ranks that have files but are not the strategy's.
    """

    request: SourceRequest
    catalog: CheckpointCatalog
    strategy: Strategy | None
    shards: SourceShards
    other_ranks: tuple[int, ...]

    @property
    def integrated_save(self) -> IntegratedSave:
        """What is assumed of its ranks: whole tensors, slices, or whatever shapes show."""
        return self.request.assumed_integrated_save

    @property
    def is_trusted(self) -> bool:
        """True if its strategy stays, whatever contents say: the request trusts it, or it is the source's own."""
        return self.request.trust_strategy or not self.request.source_strategy

    @property
    def is_integrated(self) -> bool:
        """True if every rank holds whole tensors, judged without a target's strategy."""
        return self.shards.are_whole(self.integrated_save)


def find_strategy(request: SourceRequest) -> GivenStrategy:
    """The strategy that a request names; if it names none, the one in the source's own metadata, its records or beside.

    Raises:
        InputError: the strategy cannot be used, or a key is missing or not needed.
        StorageError: a transient failure.
    """
    if request.source_strategy:
        return read_any_strategy(request.source_strategy)
    given = find_self_described(request.source, request.step) or read_own_strategy(request.source)
    return given or read_strategy_beside(request)


def open_source(request: SourceRequest, target: TargetOutline = NO_TARGET) -> Source:
    """Find the strategy of a checkpoint and catalog its files.

    Raises:
        InputError: the strategy or the checkpoint cannot be used.
        StorageError: a transient failure.
    """
    return open_by_strategy(request, find_strategy(request), target)


def open_by_strategy(request: SourceRequest, given: GivenStrategy, target: TargetOutline = NO_TARGET) -> Source:
    """Catalog the files of a checkpoint whose strategy is known; see `_opened` for the errors.

    An error says so if the strategies of source and target seem to be exchanged. A strategy that was found beside the
    source counts as named.
    """
    if isinstance(given, Strategy) and not request.source_strategy:
        request = request.model_copy(update={"source_strategy": given.origin})
    with naming_exchanged(request, target.strategy):
        return _opened(request, given, target)


def _opened(request: SourceRequest, given: GivenStrategy, target: TargetOutline) -> Source:
    """Catalog the files of a checkpoint whose strategy is known.

    Raises:
        CatalogError: the files do not make one checkpoint of the strategy's ranks, or replicas of a slice differ.
        CheckpointError: a file cannot be used.
        StrategyError: the source's own records contradict its files, or the named strategy.
        TargetError: source and target are inside each other.
        StorageError: a transient failure.
    """
    if target.url:
        check_apart(parse_url(request.source), parse_url(target.url))
    current_progress().begin("reading headers")
    with timed(f"{request.source}: files listed and headers read"):
        found = _found(request, given)
        strategy = given if given is None or isinstance(given, Strategy) else given.strategy
        catalog = catalog_of(found, _options(request, strategy, target))
    for record in catalog.records.values():
        detail(f"source rank {record.rank}: {record.location}, {size_text(record.size_bytes)}")
    catalog = _with_records_checked(catalog, found, given, trusted=request.trust_strategy)
    listed_parameters = found.listed_parameters(catalog)
    if listed_parameters is not None:
        whole = target is not NO_TARGET and target.strategy is None
        catalog = with_unheld_noted(catalog, listed_parameters, target.changes, request.allow_missing, whole=whole)
    if strategy is None:
        catalog = _checked_without_strategy(catalog, target)
    is_guess = strategy is None and request.integrated_save is not IntegratedSave.YES
    catalog = found.as_source(catalog, refuses_parts=is_guess and bool(target.url))
    if target.url:
        _check_links(catalog, parse_url(target.url))
    if found.is_self_described:
        strategy = found.sharding_of(catalog)
    elif strategy is not None and not strategy.merged and catalog.records:
        catalog = of_own_stage(strategy, catalog, found)
    others = tuple(rank for rank in found.ranks if strategy is not None and rank not in strategy.ranks)
    source = Source(request, catalog, strategy, SourceShards(catalog, strategy), others)
    if not found.is_self_described:  # else checked with what it says itself
        check_bytes_apart(catalog, None if source.is_integrated else strategy)
    return _with_replicas_compared(source) if request.check_replicas else source


def _found(request: SourceRequest, given: GivenStrategy) -> FoundCheckpoint:
    if isinstance(given, FoundCheckpoint):
        return given
    found = survey(request.source, request.step)
    if found.is_self_described:
        raise CatalogError(found.strategy_refusal)
    return found


def _options(request: SourceRequest, strategy: Strategy | None, target: TargetOutline) -> CatalogOptions:
    about_ranks = {
        source_option("integrated_save"): request.integrated_save is not IntegratedSave.AUTO,
        source_option("decrypt_key"): source_key() is not None,
    }
    return CatalogOptions(
        ranks=strategy.ranks if strategy else None,
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        root=request.root,
        digest=wants_digest(strategy, target.strategy, everything=target.needs_equal_ranks),
        check_crc=request.check_crc,
        crc_later=target.crc_later,
        workers=request.worker_count,
        allow_extra_ranks=strategy is not None and not strategy.merged,
        damage=damage_policy(
            strategy,
            target.strategy,
            recovers=request.recover,
            faulty=request.faulty,
            allow_missing=request.allow_missing,
            integrated_save=request.assumed_integrated_save,
            changes=target.changes,
        ),
        about_ranks=tuple(option for option, is_given in about_ranks.items() if is_given),
    )


def wants_digest(
    source: Strategy | None, target: Strategy | None, *, everything: bool = False
) -> Callable[[int, TensorEntry], bool]:
    """Select contents to compare between ranks, because no source layout tells which ranks hold the same.

    These are small contents, to find target ranks of equal content; all that the target cuts, to make sure that they
    are whole; or `everything`.
    """
    wanted = target.parameters if target else frozenset()

    def wants(rank: int, entry: TensorEntry) -> bool:
        if source is None or entry.name in source.parameters or entry.text is not None:
            return False
        return everything or entry.name in wanted or entry.size_bytes <= _SMALL_CONTENT_BYTES

    return wants


def _with_records_checked(
    catalog: CheckpointCatalog, found: FoundCheckpoint, given: GivenStrategy, *, trusted: bool
) -> CheckpointCatalog:
    """The catalog, its files and a named strategy compared with the source's own records; with the strategy's notes."""
    if isinstance(given, OwnStrategy):
        return check_own_files(catalog, given)
    if not isinstance(given, Strategy):
        return catalog
    if found.has_records:
        catalog = check_named(catalog, given, trusted=trusted)
    return replace(catalog, notes=(*given.notes, *catalog.notes))


def _checked_without_strategy(catalog: CheckpointCatalog, target: TargetOutline) -> CheckpointCatalog:
    _check_not_scattered(catalog)
    return _with_known_stages(catalog) if target.strategy is None and catalog.stage_numbers else catalog


def _check_not_scattered(catalog: CheckpointCatalog) -> None:
    """Refuse a file taken for a whole checkpoint if its redundancy was removed."""
    for record in catalog.records.values():
        if record.index.redundancy_removed:
            raise CatalogError(
                f"{record.location}: was saved with remove_redundancy=True: slices that several ranks share are in one "
                "rank's file only. Name the checkpoint of all ranks, and its strategy with "
                f"{source_option('source_strategy')}"
            )


def _with_known_stages(catalog: CheckpointCatalog) -> CheckpointCatalog:
    """The catalog of some stages' parts, with a note: without a strategy, later stages may be missing unnoticed."""
    found = f"its files have the parts of stages {', '.join(map(str, catalog.stage_numbers))} only"
    missing = sorted({*range(catalog.stage_numbers[-1])} - {*catalog.stage_numbers})
    if missing:
        raise CatalogError(
            f"{catalog.url}: {found}, not of {listed(list(map(str, missing)), 6)}. Add them, or name the checkpoint's "
            f"strategy with {source_option('source_strategy')}: it tells whether parameters are missing"
        )
    note = f"{found}: whether parts of others are missing cannot be known without the checkpoint's strategy"
    return replace(catalog, notes=(note, *catalog.notes))


def _with_replicas_compared(source: Source) -> Source:
    if source.strategy is None or source.catalog.has_whole_tensors:
        return source
    from reshard.core.source.replicas import check_replicas

    request, is_whole = source.request, source.is_integrated
    checked = check_replicas(source.catalog, source.strategy, integrated=is_whole, workers=request.worker_count)
    return replace(source, catalog=checked)


def _check_links(catalog: CheckpointCatalog, final: Location) -> None:
    """Refuse links that lead from the source into the target, which would be replaced."""
    for record in catalog.records.values():
        location = parse_url(record.location)
        for file in [parse_url(str(part)) for part in parts_of(location)] or [location]:
            check_apart(file, final)

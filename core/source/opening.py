"""Opens a source: finds its strategy, catalogs the file of each rank, and checks that they fit each other."""

import dataclasses
from collections.abc import Callable, Collection
from contextlib import closing
from typing import TYPE_CHECKING

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.manifest import read_manifest
from reshard.core.checkpoint.shared_bytes import check_bytes_apart
from reshard.core.errors import CatalogError
from reshard.core.files.any_format import read_index
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.builder import build_catalog
from reshard.core.layouts.checkpoint2.iterations import Iteration, find_iteration
from reshard.core.layouts.checkpoint2.names import METADATA_NAME
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint, find_dcp
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.survey import (
    CheckpointShape,
    CheckpointSurvey,
    survey,
    survey_dcp,
    survey_iteration,
)
from reshard.core.layouts.unified.strategy import unified_strategy
from reshard.core.plan.stage_shards import SourceShards
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.log import detail, timed
from reshard.core.runtime.option_names import source_option
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import listed, rank_names, size_text
from reshard.core.source.damage import damage_policy
from reshard.core.source.exchanged import naming_exchanged
from reshard.core.source.own_strategy import OwnStrategy, check_named, check_own_files, read_own_strategy
from reshard.core.source.parts_beside import with_parts_beside_noted
from reshard.core.storage.joined import parts_of
from reshard.core.storage.placement import check_apart
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.files import read_strategy
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import Strategy

if TYPE_CHECKING:
    from reshard.core.plan.preset_steps import CompiledPreset

_SMALL_CONTENT_BYTES = 2**20

GivenStrategy = Strategy | OwnStrategy | Iteration | DcpCheckpoint | None
"""The strategy of a source: named by the caller, read from its own records or its metadata, or none."""


@frozen
class TargetOutline:
    """The target that a source is opened for, as far as it decides what is checked.

    Attributes:
        url: where it is written; empty if nothing is.
        strategy: how it is cut; None: whole tensors.
        once: True if parameters outside the strategies are written once, for all ranks.
        preset: the preset whose steps are among the changes.
        crc_later: CRCs of single tensors are checked when these are read for it.
    """

    url: str = ""
    strategy: Strategy | None = None
    changes: Changes = NO_CHANGES
    once: bool = False
    preset: "CompiledPreset | None" = None
    crc_later: bool = False

    @property
    def needs_equal_ranks(self) -> bool:
        """True if parameters outside the source's strategy have to be the same on all ranks.

        A target may have them once; and with new names or shapes, source names do not tell what the target cuts.
        """
        changes = self.changes
        return self.once or bool(changes.steps or changes.rename or changes.split or changes.join or changes.transpose)


NO_TARGET = TargetOutline()


@frozen
class Source:
    """A checkpoint opened for reading.

    Attributes:
        request: the options it was opened with.
        catalog: the file of each rank and its parameters.
        strategy: how parameters are cut; None: not at all, one rank. Each file of a unified checkpoint is a stage.
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
    """The strategy that a request names; if it names none, the one in the source's own records or its metadata.

    Raises:
        InputError: the strategy cannot be used, or a key is missing or not needed.
        StorageError: a transient failure.
    """
    if request.source_strategy:
        return read_strategy(request.source_strategy)
    url, step = request.source, request.step
    return find_dcp(url, step) or read_own_strategy(url) or find_iteration(url, step)


def open_source(request: SourceRequest, target: TargetOutline = NO_TARGET) -> Source:
    """Find the strategy of a checkpoint and catalog its files.

    Raises:
        InputError: the strategy or the checkpoint cannot be used.
        StorageError: a transient failure.
    """
    return open_by_strategy(request, find_strategy(request), target)


def open_by_strategy(request: SourceRequest, given: GivenStrategy, target: TargetOutline = NO_TARGET) -> Source:
    """Catalog the files of a checkpoint whose strategy is known; see `_opened` for the errors.

    An error says so if the strategies of source and target seem to be exchanged.
    """
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
    strategy = given.strategy if isinstance(given, OwnStrategy | Iteration | DcpCheckpoint) else given
    current_progress().begin("reading headers")
    with timed(f"{request.source}: files listed and headers read"):
        found = _surveyed(request, given)
        if is_self_described(found) and not isinstance(given, Iteration | DcpCheckpoint):
            raise CatalogError(has_own_metadata(found))
        if isinstance(given, DcpCheckpoint):
            _check_dcp_options(request, found)
        catalog = _catalog(request, found, strategy, target)
    for record in catalog.records.values():
        detail(f"source rank {record.rank}: {record.location}, {size_text(record.size_bytes)}")
    if found.shape is CheckpointShape.RANK_FOLDERS:
        if isinstance(given, OwnStrategy):
            catalog = check_own_files(catalog, given)
        elif isinstance(given, Strategy) and found.has_records:
            catalog = check_named(catalog, given, trusted=request.trust_strategy)
    if isinstance(given, Strategy):
        catalog = dataclasses.replace(catalog, notes=(*given.notes, *catalog.notes))
    if isinstance(given, Iteration) and given.metadata is not None:
        from reshard.core.source.unheld import with_unheld_noted

        whole = target is not NO_TARGET and target.strategy is None
        catalog = with_unheld_noted(catalog, given.metadata, target.changes, request.allow_missing, whole=whole)
    if strategy is None:
        _check_not_scattered(catalog)
        if target.strategy is None and catalog.stage_numbers:
            catalog = _with_known_stages(catalog)
    is_guess = strategy is None and request.integrated_save is not IntegratedSave.YES
    catalog = with_parts_beside_noted(catalog, found, refuses_others=is_guess and bool(target.url))
    if target.url:
        _check_links(catalog, parse_url(target.url))
    if catalog.unified:
        catalog = _with_outside_of_manifest(catalog)
        strategy = unified_strategy(catalog) if catalog.records else None
    elif strategy is not None and not strategy.merged and catalog.records:
        catalog = of_own_stage(strategy, catalog, found)
    others = tuple(rank for rank in found.ranks if strategy is not None and rank not in strategy.ranks)
    source = Source(request, catalog, strategy, SourceShards(catalog, strategy), others)
    if not (catalog.unified or is_self_described(found)):  # else the catalog's builder has checked it
        check_bytes_apart(catalog, None if source.is_integrated else strategy)
    if not request.check_replicas or strategy is None or catalog.unified:
        return source
    from reshard.core.source.replicas import check_replicas

    checked = check_replicas(catalog, strategy, integrated=source.is_integrated, workers=request.worker_count)
    return dataclasses.replace(source, catalog=checked)


def _catalog(
    request: SourceRequest, found: CheckpointSurvey, strategy: Strategy | None, target: TargetOutline
) -> CheckpointCatalog:
    return build_catalog(
        request.source,
        strategy.ranks if strategy else None,
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        digest=wants_digest(strategy, target.strategy, everything=target.needs_equal_ranks),
        check_crc=request.check_crc,
        crc_later=target.crc_later,
        workers=request.worker_count,
        allow_extra_ranks=strategy is not None and not strategy.merged,
        found=found,
        damage=damage_policy(
            strategy,
            target.strategy,
            recovers=request.recover,
            faulty=request.faulty,
            allow_missing=request.allow_missing,
            integrated_save=request.assumed_integrated_save,
            changes=target.changes,
        ),
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


def _check_not_scattered(catalog: CheckpointCatalog) -> None:
    """Refuse a file taken for a whole checkpoint if its redundancy was removed."""
    for record in catalog.records.values():
        if record.index.redundancy_removed:
            raise CatalogError(
                f"{record.location}: was saved with remove_redundancy=True: slices that several ranks share are in one "
                "rank's file only. Name the checkpoint of all ranks, and its strategy with "
                f"{source_option('source-strategy')}"
            )


def _with_known_stages(catalog: CheckpointCatalog) -> CheckpointCatalog:
    """The catalog of some stages' parts, with a note: without a strategy, later stages may be missing unnoticed."""
    found = f"its files have the parts of stages {', '.join(map(str, catalog.stage_numbers))} only"
    missing = sorted({*range(catalog.stage_numbers[-1])} - {*catalog.stage_numbers})
    if missing:
        raise CatalogError(
            f"{catalog.url}: {found}, not of {listed(list(map(str, missing)), 6)}. Add them, or name the checkpoint's "
            f"strategy with {source_option('source-strategy')}: it tells whether parameters are missing"
        )
    note = f"{found}: whether parts of others are missing cannot be known without the checkpoint's strategy"
    return dataclasses.replace(catalog, notes=(note, *catalog.notes))


def _with_outside_of_manifest(catalog: CheckpointCatalog) -> CheckpointCatalog:
    """The catalog of a unified checkpoint, with the parameters outside of it that its manifest records."""
    manifest = read_manifest(parse_url(catalog.url))
    if manifest is None:
        return catalog
    return dataclasses.replace(catalog, outside=tuple(dict.fromkeys([*catalog.outside, *manifest.carried])))


def _check_links(catalog: CheckpointCatalog, final: Location) -> None:
    """Refuse links that lead from the source into the target, which would be replaced."""
    for record in catalog.records.values():
        location = parse_url(record.location)
        for file in [parse_url(str(part)) for part in parts_of(location)] or [location]:
            check_apart(file, final)


def is_self_described(found: CheckpointSurvey) -> bool:
    """True for a checkpoint whose own metadata says how it is sharded."""
    return found.iteration is not None or found.dcp is not None


def has_own_metadata(found: CheckpointSurvey) -> str:
    """The refusal of a strategy named for a checkpoint that describes itself."""
    name = METADATA_NAME if found.iteration else DCP_METADATA_NAME
    kind = found.shape if found.iteration else "DCP checkpoint"
    return f"{found.url}: is a {kind}: {name} says how it is sharded, so leave out {source_option('source-strategy')}"


def _surveyed(request: SourceRequest, given: GivenStrategy) -> CheckpointSurvey:
    if isinstance(given, Iteration):
        return survey_iteration(given)
    return survey_dcp(given) if isinstance(given, DcpCheckpoint) else survey(request.source, request.step)


def _check_dcp_options(request: SourceRequest, found: CheckpointSurvey) -> None:
    """Refuse options about files of MindSpore."""
    wrong = [
        option
        for option, given in (
            (source_option("integrated-save"), request.integrated_save is not IntegratedSave.AUTO),
            (source_option("decrypt-key"), source_key() is not None),
        )
        if given
    ]
    if wrong:
        raise CatalogError(
            f"{found.url}: is a DCP checkpoint, which says itself what each file holds, and is never encrypted: leave "
            f"out {' and '.join(wrong)}"
        )


def _names_in(location: Location) -> Collection[str]:
    with closing(open_checkpoint(location, source_key())) as file:
        return read_index(file).entries.keys()


def of_own_stage(source: Strategy, catalog: CheckpointCatalog, found: CheckpointSurvey) -> CheckpointCatalog:
    """The catalog under one stage's own strategy; further ranks are other stages', if they lack its parameters.

    Raises:
        CatalogError: further ranks hold all of them: the strategy is of another world size.
    """
    extra = [rank for rank in found.ranks if rank not in source.ranks]
    indexes = catalog.indexes()
    known = {name for index in indexes for name in index.entries} & source.parameters
    scattered = any(not known <= index.entries.keys() for index in indexes)
    contradicts = len({*found.ranks, *catalog.lost}) % source.devices_per_stage != 0
    stages: dict[int, list[int]] = {}
    for rank in extra:
        stages.setdefault(rank // source.devices_per_stage, []).append(rank)
    for ranks in stages.values():
        # the ranks of a stage hold the same names, so its first one is enough, unless redundancy was removed
        files = [found.files[rank][0].location for rank in (ranks if scattered else ranks[:1])]
        contradicts = contradicts or known <= {name for location in files for name in _names_in(location)}
    if contradicts:
        raise CatalogError(
            f"{catalog.url}: has {len(found.ranks)} ranks, but the source strategy {source.origin} has "
            f"{source.devices_per_stage}: it is another checkpoint's, or one pipeline stage's of several"
        )
    if not extra:
        return catalog
    here, there = rank_names(list(source.ranks), 3), rank_names(extra, 3)
    warning = (
        f"the source strategy is stage {source.stages[0].stage}'s own: only {here} are converted, and the parameters "
        f"of {there} are NOT in the result. Name the directory of all ranks' strategies to convert everything"
    )
    return dataclasses.replace(catalog, notes=(warning, *catalog.notes))

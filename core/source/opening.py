"""Opens a source: its strategy, the file of each rank, and what these files hold."""

import dataclasses
from collections.abc import Callable, Collection

from reshard.core.checkpoint.catalog.builder import build_catalog
from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.checkpoint.catalog.survey import CheckpointShape, CheckpointSurvey, survey
from reshard.core.checkpoint.encryption.opening import open_checkpoint
from reshard.core.checkpoint.formats.any_format import read_index
from reshard.core.checkpoint.manifest import read_manifest
from reshard.core.checkpoint.model import TensorEntry
from reshard.core.errors import CatalogError
from reshard.core.plan.stage_shards import integrated_by_shapes, names_in_order, shards_by_stage
from reshard.core.request.changes import Changes
from reshard.core.request.changes_file import declared_changes
from reshard.core.request.conversion import (
    ConversionRequest,
    IntegratedSave,
    TargetLayout,
    parse_ranks,
)
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.source.damage import damage_policy
from reshard.core.source.own_strategy import check_named, check_own_files, read_own_strategy
from reshard.core.source.replicas import check_replicas
from reshard.core.source.strategy_warnings import asked_integrated_save
from reshard.core.storage.joined import parts_of
from reshard.core.storage.placement import check_apart
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.files import read_strategy
from reshard.core.strategy.model import Strategy

_SMALL_CONTENT_BYTES = 2**20


def load_strategy(url: str, source: str = "") -> Strategy | None:
    """The strategy at a URL; for an empty URL the one in the records of `source`, or None without any.

    Raises:
        StrategyError: the strategy cannot be used.
        StorageError: a transient failure.
    """
    if url:
        return read_strategy(url)
    own = read_own_strategy(source) if source else None
    return own.strategy if own else None


def catalog_source(request: ConversionRequest, source: Strategy | None, target: Strategy | None) -> CheckpointCatalog:
    """Which file is which source rank's, and what is in it.

    Raises:
        InputError: the changes that are declared are not understood.
        CatalogError: the files do not make one checkpoint of the strategy's ranks, or copies of a slice differ.
        CheckpointError: a file cannot be used.
        TargetError: source and target are inside each other.
    """
    check_apart(parse_url(request.source), parse_url(request.target))
    changes = declared_changes(request)
    own_stage = source is not None and not source.merged
    found = survey(request.source)
    catalog = build_catalog(
        request.source,
        source.ranks if source else None,
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        digest=wants_digest(source, target, everything=_is_all_compared(request, changes)),
        check_crc=request.check_crc,
        workers=request.worker_count,
        allow_extra_ranks=own_stage,
        found=found,
        damage=damage_policy(
            source,
            target,
            recovers=request.recover,
            faulty=parse_ranks(request.fault_ranks) if request.recover else (),
            allow_missing=request.allow_missing,
            integrated_save=asked_integrated_save(request),
            changes=changes,
        ),
    )
    if source is not None and found.shape is CheckpointShape.RANK_FOLDERS:
        if request.source_strategy:
            catalog = check_named(catalog, source, trusted=request.trust_strategy)
        else:
            catalog = check_own_files(catalog)
    if source is None:
        _check_not_scattered(catalog)
        if target is None and catalog.stage_numbers:
            catalog = _of_parts_alone(catalog)
    _check_links(request, catalog)
    if catalog.unified:
        return _with_carried_outside(catalog)
    if own_stage and source is not None and catalog.records:
        catalog = of_own_stage(source, catalog, found)
    if request.check_replicas and source is not None:
        integrated = _is_integrated(request, catalog, source)
        return check_replicas(catalog, source, integrated=integrated, workers=request.worker_count)
    return catalog


def _is_integrated(request: ConversionRequest, catalog: CheckpointCatalog, source: Strategy) -> bool:
    """Whether every rank holds whole tensors, decided without the target's strategy."""
    asked = asked_integrated_save(request)
    if asked is not IntegratedSave.AUTO:
        return asked is IntegratedSave.YES
    return bool(integrated_by_shapes(shards_by_stage(catalog, source, names_in_order(catalog), []), None, {}))


def _is_all_compared(request: ConversionRequest, changes: Changes) -> bool:
    """Whether all that the source's strategy does not know has to be alike on all ranks.

    A unified target has it once; and if names or shapes change, what the target cuts is not known by its name.
    """
    others = changes.rename or changes.split or changes.join or changes.transpose
    return bool(others) or request.layout is TargetLayout.UNIFIED


def wants_digest(
    source: Strategy | None, target: Strategy | None, *, everything: bool = False
) -> Callable[[int, TensorEntry], bool]:
    """Says whose contents have to be compared, because no source layout tells which ranks hold the same.

    Small ones, to find target ranks with equal content; all that the target cuts, to be sure that they are whole; or
    `everything`.
    """
    wanted = target.parameters if target else frozenset()

    def wants(rank: int, entry: TensorEntry) -> bool:
        if source is None or entry.name in source.parameters or entry.text is not None:
            return False
        return everything or entry.name in wanted or entry.size_bytes <= _SMALL_CONTENT_BYTES

    return wants


def _check_not_scattered(catalog: CheckpointCatalog) -> None:
    """Makes sure that a file taken for a whole checkpoint is none of a redundancy-removed one."""
    for record in catalog.records.values():
        if record.index.redundancy_removed:
            raise CatalogError(
                f"{record.location}: was saved with remove_redundancy=True: slices that several ranks share are in one "
                "rank's file only. Name the checkpoint of all ranks, and its strategy with --source-strategy"
            )


def _of_parts_alone(catalog: CheckpointCatalog) -> CheckpointCatalog:
    """The catalog of stages' parts where no strategy tells what there should be, which is said.

    Raises:
        CatalogError: the parts of stages between them are missing.
    """
    there = f"its files have the parts of stages {', '.join(map(str, catalog.stage_numbers))} only"
    absent = sorted({*range(catalog.stage_numbers[-1])} - {*catalog.stage_numbers})
    if absent:
        raise CatalogError(
            f"{catalog.url}: {there}, not of {listed(list(map(str, absent)), 6)}. Add them, or name the checkpoint's "
            "strategy with --source-strategy: it tells whether parameters are missing"
        )
    note = f"{there}: whether parts of others are missing cannot be known without the checkpoint's strategy"
    return dataclasses.replace(catalog, notes=(note, *catalog.notes))


def _with_carried_outside(catalog: CheckpointCatalog) -> CheckpointCatalog:
    """The catalog of a unified checkpoint; if a conversion made it, that knew what no strategy knows."""
    manifest = read_manifest(parse_url(catalog.url))
    if manifest is None:
        return catalog
    return dataclasses.replace(catalog, outside=tuple(dict.fromkeys([*catalog.outside, *manifest.carried])))


def _check_links(request: ConversionRequest, catalog: CheckpointCatalog) -> None:
    """Links may lead from the source into the target, which would be replaced."""
    final = parse_url(request.target)
    for record in catalog.records.values():
        location = parse_url(record.location)
        for file in [parse_url(str(part)) for part in parts_of(location)] or [location]:
            check_apart(file, final)


def _names_in(location: Location) -> Collection[str]:
    file = open_checkpoint(location, source_key())
    try:
        return read_index(file).entries.keys()
    finally:
        file.close()


def of_own_stage(source: Strategy, catalog: CheckpointCatalog, found: CheckpointSurvey) -> CheckpointCatalog:
    """The catalog under one stage's own strategy; ranks beyond it are other stages', if they lack its parameters.

    Raises:
        CatalogError: they hold all of them: then it is the strategy of another world size.
    """
    extra = [rank for rank in found.ranks if rank not in source.ranks]
    indexes = {id(record.index): record.index for record in catalog.records.values()}.values()
    held = {name for index in indexes for name in index.entries} & source.parameters
    scattered = any(not held <= index.entries.keys() for index in indexes)
    misfit = len({*found.ranks, *catalog.lost}) % source.devices_per_stage != 0
    stages: dict[int, list[int]] = {}
    for rank in extra:
        stages.setdefault(rank // source.devices_per_stage, []).append(rank)
    for ranks in stages.values():
        # the ranks of a stage hold the same names, and its first one tells for all, unless redundancy was removed
        files = [found.files[rank][0].location for rank in (ranks if scattered else ranks[:1])]
        misfit = misfit or held <= {name for location in files for name in _names_in(location)}
    if misfit:
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

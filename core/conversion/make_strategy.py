"""Makes a strategy file for other numbers of devices, from one that the network was compiled to."""

from collections import Counter
from collections.abc import Iterator

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, InputError, StrategyError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.layouts.survey import survey
from reshard.core.plan.matching import match_parameters
from reshard.core.plan.model import PlanInputs
from reshard.core.reports.blocks import GAP, Block, Facts, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted
from reshard.core.source.strategy_warnings import integrated_save_warnings
from reshard.core.storage.listing import kind_of
from reshard.core.storage.placement import check_new_file
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.derivation import (
    DerivedStrategy,
    TargetJob,
    TensorFacts,
    derive_strategy,
    facts_from_strategy,
)
from reshard.core.strategy.files import stages_beside, write_strategy
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.optimizer_shards import has_optimizer_shard, without_optimizer_shard
from reshard.core.tensor.layout import whole_layout


class MadeStage(Summary):
    """One stage of the strategy; `layers` in words: `0-11`."""

    stage: int
    first_rank: int
    last_rank: int
    layers: str
    parameters: int


class MadeCut(Summary):
    """Parameters cut alike, each stage's copy counted; `axes` are (tensor axis, pieces), empty if they are whole.

    Optimizer parallel cuts `optimizer_shards` of them further.
    """

    axes: tuple[tuple[int, int], ...]
    parameters: int
    optimizer_shards: int


class MakeReport(Report):
    """The strategy that was made, and that of the source as its layouts say it.

    Of `unchecked` parameters the shape is not known, so that it could not be checked whether they divide; `notes` say
    what was assumed.
    """

    url: str
    data_parallel: int
    model_parallel: int
    pipeline: int
    ranks: int
    source_data_parallel: int
    source_model_parallel: int
    source_pipeline: int
    parameters: int
    stages: tuple[MadeStage, ...]
    cuts: tuple[MadeCut, ...]
    unchecked: int
    notes: tuple[str, ...]

    def blocks(self) -> Iterator[Block]:
        """Yield its content: both jobs, and tables of the stages and of how parameters are cut."""
        source = (
            f"data {self.source_data_parallel} x model {self.source_model_parallel} x "
            f"{counted(self.source_pipeline, 'stage')}"
        )
        made = f"data {self.data_parallel} x model {self.model_parallel} x {counted(self.pipeline, 'stage')}"
        yield Facts(
            [
                ("strategy", f"{self.url}: {counted(self.ranks, 'rank')}, {counted(self.parameters, 'parameter')}"),
                ("parallel", made),
                ("made from", source),
                *(("note", note) for note in self.notes),
            ]
        )
        yield GAP
        yield Table(
            ("stage", "ranks", "layers", "parameters"),
            [(each.stage, f"{each.first_rank}-{each.last_rank}", each.layers, each.parameters) for each in self.stages],
            right=("stage", "parameters"),
        )
        yield GAP
        yield Table(
            ("cut", "parameters", "with an optimizer shard"),
            [(_cut_text(each), each.parameters, each.optimizer_shards or "") for each in self.cuts],
            right=("parameters", "with an optimizer shard"),
        )


def _cut_text(cut: MadeCut) -> str:
    return ", ".join(f"axis {axis} into {pieces}" for axis, pieces in cut.axes) or "whole"


def make_strategy_file(
    like: str,
    target: str,
    wish: TargetJob,
    *,
    checkpoint: str = "",
    integrated_save: IntegratedSave = IntegratedSave.AUTO,
    overwrite: bool = False,
) -> MakeReport:
    """Derives a strategy from the one at `like` and writes it to `target`, JSON if that ends in .json, else protobuf.

    `like` may also be a checkpoint of whole tensors: a network of one device, that cuts nothing. `checkpoint` is one of
    the strategy `like`, or the network's whole tensors: its headers tell shapes and dtypes. `integrated_save`: whether
    every rank of it holds whole tensors.

    Raises:
        InputError: the target is there already, a checkpoint cannot be used.
        StrategyError: the source's strategy cannot be used, or does not tell what is asked for.
    """
    location = parse_url(target)
    check_new_file(location, parse_url(like), overwrite)
    tensors = _whole_tensors(like)
    if tensors:
        layouts = {name: whole_layout(len(fact.shape)) for name, fact in tensors.items()}
        source = Strategy((StageStrategy(0, layouts),), str(parse_url(like)))
    else:
        source = read_any_strategy(like)
        _check_all_stages(source, like)
    facts = tensors or facts_from_strategy(source)
    if checkpoint:
        facts |= _checkpoint_facts(checkpoint, source, integrated_save)
    derived = derive_strategy(source, wish, facts)
    write_strategy(derived.strategy, target)
    return _report(str(location), source, wish, derived)


def _check_all_stages(source: Strategy, url: str) -> None:
    if source.merged:
        return
    own = source.stages[0].stage
    others = sorted(set(stages_beside(url)) - {own}) if own == 0 and kind_of(parse_url(url)) == "file" else []
    if own != 0 or others:
        raise StrategyError(
            f"{source.origin}: is the strategy of stage {own} alone, and there are other stages. Name the directory of "
            "all ranks' strategy files, or the file that 'reshard merge-strategy' makes of them"
        )


def _whole_tensors(url: str) -> dict[str, TensorFacts]:
    """The tensors of a checkpoint that has them whole; none if there is no such thing."""
    try:
        found = survey(url)
    except CatalogError:  # a strategy is not a checkpoint
        return {}
    return _tensors_of(catalog_of(found, CatalogOptions(check_crc=False))) if found.has_whole_tensors else {}


def _tensors_of(catalog: CheckpointCatalog) -> dict[str, TensorFacts]:
    return {
        entry.name: TensorFacts(entry.shape, entry.dtype)
        for record in catalog.records.values()
        for entry in record.index.entries.values()
    }


def _checkpoint_facts(url: str, source: Strategy, integrated_save: IntegratedSave) -> dict[str, TensorFacts]:
    found = survey(url)
    ranks = None if found.has_whole_tensors else source.ranks
    catalog = catalog_of(found, CatalogOptions(ranks=ranks, check_crc=False))
    if found.has_whole_tensors:
        tensors = _tensors_of(catalog)
        facts = {name: fact for name, fact in tensors.items() if name in source.parameters}
        if not facts:
            raise InputError(
                f"{catalog.url}: has none of the parameters of {source.origin}, so it tells no shapes: it has "
                f"{min(tensors, default='nothing')!r}, say, the strategy {min(source.parameters)!r}. Name a checkpoint "
                "whose parameters are called as in the strategy"
            )
        return facts
    match = match_parameters(PlanInputs(catalog, source, None, catalog.format, integrated_save=integrated_save))
    integrated_save_warnings(catalog, source, match, integrated_save)
    return {each.name: TensorFacts(each.shape, each.dtype) for each in match.resharded}


def _report(url: str, source: Strategy, wish: TargetJob, derived: DerivedStrategy) -> MakeReport:
    strategy = derived.strategy
    counts: Counter[tuple[tuple[int, int], ...]] = Counter()
    shards: Counter[tuple[tuple[int, int], ...]] = Counter()
    for stage in strategy.stages:
        for layout in stage.layouts.values():
            axis_count = len(layout.tensor_map) if layout.tensor_shape is None else len(layout.tensor_shape)
            pieces = without_optimizer_shard(layout).shard_grid(axis_count).pieces
            axes = tuple((axis, count) for axis, count in enumerate(pieces) if count > 1)
            counts[axes] += 1
            shards[axes] += has_optimizer_shard(layout)
    return MakeReport(
        url=url,
        data_parallel=wish.data_parallel,
        model_parallel=wish.model_parallel,
        pipeline=wish.pipeline,
        ranks=len(strategy.ranks),
        source_data_parallel=derived.roles.data_parallel,
        source_model_parallel=derived.roles.model_parallel,
        source_pipeline=len(source.stages),
        parameters=len(strategy.parameters),
        stages=tuple(
            MadeStage(
                stage=stage.stage,
                first_rank=strategy.stage_ranks(stage).start,
                last_rank=strategy.stage_ranks(stage).stop - 1,
                layers=layers,
                parameters=len(stage.layouts),
            )
            for stage, layers in zip(strategy.stages, derived.staging.layers, strict=True)
        ),
        cuts=tuple(
            MadeCut(axes=axes, parameters=counts[axes], optimizer_shards=shards[axes]) for axes in sorted(counts)
        ),
        unchecked=derived.unchecked,
        notes=derived.notes,
    )

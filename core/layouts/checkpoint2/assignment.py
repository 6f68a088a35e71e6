"""Targets in the form of MindFormers' Checkpoint 2.0: for each rank a file of the network and one of the optimizer.

The files count as the target's ranks. Those of one kind and pipeline stage are a stage of the plan, sharded as the
target's strategy shards that stage; so they are planned, deduplicated, written, verified and resumed as other ranks.

Parameters that no strategy knows are on every rank, and have no layout: all source ranks must hold the same values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.changes.training_state import state_kind
from reshard.core.errors import PlanError, raise_problems
from reshard.core.layouts.checkpoint2.names import COMMON_KEYS, MODEL, OPTIMIZER, tensor_file_name
from reshard.core.plan.model import (
    FileStage,
    ParameterMatch,
    PassedThroughParameter,
    PlanInputs,
    ReshardedParameter,
    TargetFiles,
)
from reshard.core.plan.target_files import in_source_order, refuse_single_stage, written_once
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.text.options import option

GLOBAL_STEP = "global_step"
"""MindFormers saves it in every optimizer file, and in none if redundancy is removed; it loads that of common.json."""
_ONCE = "and a Checkpoint 2.0 has one value of it for all ranks"
_KIND_TEXTS = {MODEL: "network", OPTIMIZER: "optimizer"}
_SINGLE_CARD = StageStrategy(0, {}, devices=1)


def iteration_match(inputs: PlanInputs, match: ParameterMatch) -> ParameterMatch:
    """Turn the match of a target of rank folders into that of an iteration, whose ranks are its files.

    Raises:
        PlanError: a parameter has no place in a Checkpoint 2.0, is sharded unevenly, or differs between source ranks.
    """
    catalog, strategy = inputs.catalog, inputs.target_strategy
    refuse_single_stage(strategy, match, "Checkpoint 2.0")
    problems: list[str] = []
    outside = [written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through]
    problems += _misfits(match.passed_through)
    problems += _uneven(match.resharded, strategy)
    in_common = _in_common(match, inputs)
    outside = [each for each in outside if each.name not in in_common]
    parameters = [*match.resharded, *outside]
    if not parameters and not problems:
        raise PlanError(f"{catalog.url}: cannot become a Checkpoint 2.0: no parameter is left of it")
    names = {each.name for each in parameters}
    kinds = {name: _file_kind(name, names) for name in names}
    stages = _file_stages(strategy, [kind for kind in (MODEL, OPTIMIZER) if kind in kinds.values()])
    outside_names = frozenset(each.name for each in outside)
    placed = [
        replace(
            each,
            target_layouts=dict(
                _layouts_without_strategy(each, kinds, stages)
                if each.name in outside_names
                else _layouts(each, kinds, stages)
            ),
        )
        for each in parameters
    ]
    problems += _empty_stages(placed, stages)
    raise_problems(PlanError, f"{catalog.url}: cannot become a Checkpoint 2.0", problems)
    if inputs.replicas:
        placed = _in_lowest_stages(placed, stages)
    return replace(
        match,
        resharded=tuple(in_source_order(catalog, placed)),
        passed_through=(),
        files=TargetFiles(
            names=tuple(_file_names(stages)),
            stages=tuple(stages),
            outside=tuple(each.name for each in outside),
            in_documents=in_common,
        ),
    )


def _file_kind(name: str, names: Collection[str]) -> str:
    """The kind of file that holds a parameter: MindFormers saves all that the network owns in the network's."""
    kind = state_kind(name, names)
    return MODEL if kind is None or kind.is_of_network else OPTIMIZER


def _in_common(match: ParameterMatch, inputs: PlanInputs) -> tuple[str, ...]:
    """The parameters that common.json holds, and no file."""
    names = [passed.name for passed in match.passed_through if passed.name in COMMON_KEYS]
    others = {each.name for each in match.resharded} | {each.name for each in match.passed_through} - set(names)
    keeps_step = inputs.replicas == 0 and any(_file_kind(name, others) == OPTIMIZER for name in others)
    return tuple(name for name in names if not (keeps_step and name == GLOBAL_STEP))


def _misfits(passed_through: Sequence[PassedThroughParameter]) -> Iterator[str]:
    for each in passed_through:
        if each.dtype is MAP_TENSOR or (each.dtype is TEXT and each.name not in COMMON_KEYS):
            kind = "text" if each.dtype is TEXT else str(each.dtype)
            yield (
                f"parameter {each.name!r} is a {kind}, for which it has no place; if the model does without it, leave "
                f"it out: {option('exclude', [each.name])}"
            )


def _uneven(resharded: Sequence[ReshardedParameter], strategy: Strategy | None) -> Iterator[str]:
    origin = strategy.origin if strategy else ""
    for each in resharded:
        if any(layout.param_split_shape for layout in each.target_layouts.values()):
            yield (
                f"parameter {each.name!r} is sharded unevenly by {origin} (param_split_shape), which the layouts of a "
                "Checkpoint 2.0 cannot describe"
            )


def _file_stages(strategy: Strategy | None, kinds: Sequence[str]) -> list[FileStage]:
    stages: list[FileStage] = []
    for kind in kinds:
        for stage in strategy.stages if strategy else (_SINGLE_CARD,):
            ranks = strategy.stage_ranks(stage) if strategy else range(1)
            first = stages[-1].files.stop if stages else 0
            stages.append(FileStage(len(stages), kind, stage.stage, ranks, range(first, first + len(ranks))))
    return stages


def _layouts(
    parameter: ReshardedParameter, kinds: Mapping[str, str], stages: Sequence[FileStage]
) -> Iterator[tuple[int, ParameterLayout]]:
    """The layouts of a parameter by stage."""
    for stage in stages:
        if stage.kind == kinds[parameter.name] and stage.stage in parameter.target_layouts:
            yield stage.number, parameter.target_layouts[stage.stage]


def _layouts_without_strategy(
    parameter: ReshardedParameter, kinds: Mapping[str, str], stages: Sequence[FileStage]
) -> Iterator[tuple[int, ParameterLayout]]:
    """A layout of whole tensors on every stage."""
    for stage in stages:
        if stage.kind == kinds[parameter.name]:
            yield stage.number, whole_layout(len(parameter.shape), len(stage.ranks))


def _empty_stages(parameters: Sequence[ReshardedParameter], stages: Sequence[FileStage]) -> Iterator[str]:
    for stage in _unfilled(parameters, stages):
        yield (
            f"the target's stage {stage.stage} gets no parameter of the {_KIND_TEXTS[stage.kind]}, but every rank has "
            "a file of it"
        )


def _in_lowest_stages(
    parameters: Sequence[ReshardedParameter], stages: Sequence[FileStage]
) -> list[ReshardedParameter]:
    """Keep each parameter in its lowest stage only, which the metadata describes, to remove redundancy.

    Shards of stages that shard it differently have the same keys: without all of them in files, MindFormers would take
    one stage's for another's. Parameters without a strategy are looked for on the first stage.

    Raises:
        PlanError: a stage is left without any.
    """
    lowest = [replace(each, target_layouts=dict([*each.target_layouts.items()][:1])) for each in parameters]
    if empty := _unfilled(lowest, stages):
        raise PlanError(
            f"redundancy cannot be removed: the target's stage {empty[0].stage} shares all its parameters of the "
            f"{_KIND_TEXTS[empty[0].kind]} with lower stages, so that its files would be empty. Leave out "
            f"{option('remove_redundancy', True)}"
        )
    return lowest


def _unfilled(parameters: Sequence[ReshardedParameter], stages: Sequence[FileStage]) -> list[FileStage]:
    filled = {number for each in parameters for number in each.target_layouts}
    return [stage for stage in stages if stage.number not in filled]


def _file_names(stages: Sequence[FileStage]) -> Iterator[str]:
    count = max(stage.ranks.stop for stage in stages)
    for stage in stages:
        for rank in stage.ranks:
            yield tensor_file_name(stage.kind, rank, count)

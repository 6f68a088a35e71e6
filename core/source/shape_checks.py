"""Compares the shapes of shards with the layouts of a strategy, with one another and with those of other layers."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.errors import LayoutError
from reshard.core.plan.stage_shards import StageShards, entry_text, joined_shape
from reshard.core.source.findings import (
    OPTIMIZER_PARALLEL_OFF,
    OWN_STRATEGY,
    WITH_OPTIMIZER_SHARDS,
    WITHOUT_OPTIMIZER_SHARDS,
    Cause,
    Finding,
    findings_by_cause,
    optimizer_shard_cause,
)
from reshard.core.strategy.staging import owner_of
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.slices import Shape

NUMBER = re.compile(r"[0-9]+")
"""In a name; names that differ in numbers alone are of different layers."""
_MAJORITY = 3
"""So many layers must be alike for each one that differs."""
_LAYERS_OF_STAGE = 2
"""Stages with fewer layers show no rule of their own."""

_SOME_INTEGRATED = Cause(
    "ranks hold the whole of what the strategy cuts, though they hold slices of others",
    "another layout of these parameters when the checkpoint was saved",
    OWN_STRATEGY,
)
_STAGES_DIFFER = Cause(
    "shards of several stages make wholes of different shapes",
    "the strategy's stages are of different jobs, or it was saved whole",
    "use the strategy files of one job",
)
_LAYOUT_DOES_NOT_FIT = Cause("shards that their layouts do not fit", "another network's strategy", OWN_STRATEGY)
_OTHER_SHAPES = Cause(
    "shards of other shapes than the strategy's",
    "another size of the network, or another number of devices",
    OWN_STRATEGY,
)
_NOT_CUT_BY_OPTIMIZER = Cause(
    "shards that the optimizer shard does not cut, though the strategy says so",
    OPTIMIZER_PARALLEL_OFF,
    WITHOUT_OPTIMIZER_SHARDS,
)
_CUT_BY_OPTIMIZER = Cause(
    "shards that are cut by optimizer parallel, unlike the strategy's",
    "optimizer parallel was on when the checkpoint was saved",
    WITH_OPTIMIZER_SHARDS,
)


def shape_findings(shards: Mapping[str, Sequence[StageShards]], integrated: bool) -> list[Finding]:
    """Shards that do not fit their layouts, the shapes in a JSON strategy, or another stage's shards.

    `integrated`: contents show that ranks hold whole tensors.
    """
    details: dict[Cause, list[str]] = {}
    wholes = {name: of_stage for name, stages in shards.items() for of_stage in stages if _is_whole(of_stage)}
    if wholes and any(_is_slice(of_stage) for stages in shards.values() for of_stage in stages):
        details[_SOME_INTEGRATED] = [f"{name!r} is {list(whole.entry.shape)}" for name, whole in wholes.items()]
    for name, stages in shards.items():
        for cause, detail in filter(None, map(_shape_problem, stages)):
            details.setdefault(cause, []).append(f"{name!r} {detail}")
        shapes = {whole for of_stage in stages if (whole := _joined_shape(of_stage)) is not None}
        if len(shapes) > 1 and not integrated:
            text = " and ".join(str(list(shape)) for shape in sorted(shapes))
            details.setdefault(_STAGES_DIFFER, []).append(f"{name!r}: {text}")
    return findings_by_cause("shapes", details)


def similarity_findings(shards: Mapping[str, Sequence[StageShards]]) -> list[Finding]:
    """Wholes that differ in shape although their shards are alike: the strategy cuts one along a wrong axis.

    Compares a parameter with its counterparts in most other layers or in other stages, and the states of an optimizer
    with their parameter. No shard shows along which axis it was cut, and protobuf strategies hold no shapes.
    """
    joined: dict[object, Shape | None] = {}  # layers repeat: most parameters are of a few kinds
    for first, *_ in shards.values():
        if first.kind not in joined:
            joined[first.kind] = _joined_shape(first)
    wholes = {
        name: (stages[0].entry.shape, whole)
        for name, stages in shards.items()
        if (whole := joined[stages[0].kind]) is not None
    }
    stage_of = {name: shards[name][0].stage.stage for name in wholes}
    pairs = set(wholes.values())
    if len({shard for shard, _ in pairs}) == len(pairs):  # no shards that are alike make different wholes
        return []
    details = [
        f"{name!r} {list(wholes[name][1])} but {other!r} {list(wholes[other][1])}, of shards {list(wholes[name][0])}"
        for name, other in (*_unlike_owner(wholes), *_unlike_layers(wholes, stage_of))
    ]
    if not details:
        return []
    cause = Cause(
        "by the strategy, parameters that should be alike make wholes of other shapes",
        "the strategy cuts one of them along another axis, or into other pieces, than the saving job did",
        OWN_STRATEGY,
    )
    return findings_by_cause("shapes", {cause: details})


def _unlike_owner(wholes: Mapping[str, tuple[Shape, Shape]]) -> Iterable[tuple[str, str]]:
    """(optimizer state, its parameter) with equal shards and different wholes; `wholes`: name -> (shard, whole)."""
    names = frozenset(wholes)
    for name, (shard, whole) in wholes.items():
        owner = owner_of(name, names)
        if owner in wholes and wholes[owner][0] == shard and wholes[owner][1] != whole:
            yield name, owner


def _unlike_layers(wholes: Mapping[str, tuple[Shape, Shape]], stage_of: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    """(parameter, its counterpart in most layers, or in another stage) with equal shards and different wholes."""
    layers: dict[tuple[str, Shape], list[str]] = {}
    for name, (shard, _) in wholes.items():
        layers.setdefault((NUMBER.sub("", name), shard), []).append(name)
    for alike in layers.values():
        [(usual, count), *_] = Counter(wholes[name][1] for name in alike).most_common(1)
        stages = {stage_of[name] for name in alike}
        one_in_each = len({(stage_of[name], wholes[name][1]) for name in alike}) == len(stages)
        by_stage = one_in_each and len(alike) >= _LAYERS_OF_STAGE * len(stages)
        if by_stage or count >= _MAJORITY * (len(alike) - count):
            usual_name = next(name for name in alike if wholes[name][1] == usual)
            yield from ((name, usual_name) for name in alike if wholes[name][1] != usual)


def _shape_problem(shards: StageShards) -> tuple[Cause, str] | None:
    entry, layout = shards.entry, shards.layout
    if entry.dtype in (TEXT, MAP_TENSOR):
        return None
    try:
        whole = layout.shard_grid(len(entry.shape)).whole_shape(shards.shards[0][0], entry.shape)
    except LayoutError as error:
        return _LAYOUT_DOES_NOT_FIT, f"{entry_text(entry)}: {error}"
    expected = layout.tensor_shape
    if expected is None or expected in (whole, entry.shape) or 0 in entry.shape:
        return None  # those saved whole are one finding for all parameters
    cause = optimizer_shard_cause(
        layout,
        lambda other: joined_shape(replace(shards, layout=other, kind=())) == expected,
        was_off=_NOT_CUT_BY_OPTIMIZER,
        was_on=_CUT_BY_OPTIMIZER,
    )
    rank = shards.first_rank + shards.shards[0][0]
    detail = f"is {list(entry.shape)} on rank_{rank}, of {list(expected)} in the strategy"
    return (cause, detail) if cause else (_OTHER_SHAPES, f"{detail}: it would make {list(whole)}")


def _is_whole(shards: StageShards) -> bool:
    """True if ranks hold the whole tensor of a parameter that the strategy, by its shapes, cuts."""
    shape = shards.layout.tensor_shape
    return shape == shards.entry.shape and 0 not in shape and joined_shape(shards) not in (None, shape)


def _is_slice(shards: StageShards) -> bool:
    shape = shards.layout.tensor_shape
    return shape not in (None, shards.entry.shape) and joined_shape(shards) == shape


def _joined_shape(shards: StageShards) -> Shape | None:
    """The whole shape that only the layout gives; None if the strategy holds shapes, or for texts and map tensors."""
    if shards.entry.dtype in (TEXT, MAP_TENSOR) or shards.layout.tensor_shape is not None:
        return None
    return joined_shape(shards)

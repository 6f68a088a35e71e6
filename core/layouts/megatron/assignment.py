"""Targets in the form of Megatron-Core's files of ranks: which rank has which slice of every parameter.

The files count as the target's ranks; those of a pipeline stage are a stage of the plan. A parameter is planned in the
shape of which a rank's bytes are one box: of a gated matrix, cut along `F`, a rank has a slice of the gate and one of
the up matrix.

    mlp.linear_fc1.weight     [2 F, H]      planned as [2, F, H]       cut along axis 1
    mlp.experts.weight1       [E, H, 2 F]   planned as [E, H, 2, F]    cut along axes 0 and 3
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.errors import LayoutError, PlanError, raise_problems
from reshard.core.layouts.dcp.assignment import misfits
from reshard.core.layouts.megatron.args_writing import Args, model_args
from reshard.core.layouts.megatron.cuts import Cut, Traits, cut_of
from reshard.core.layouts.megatron.optimizer_places import check_states, masters_of_full_weights
from reshard.core.layouts.megatron.shapes import is_gated
from reshard.core.layouts.megatron.sizes import ParallelSizes
from reshard.core.layouts.megatron.spots import ModelName, ModelPlacing, has_place, parse_name, placing_of
from reshard.core.layouts.megatron.target import MegatronTarget
from reshard.core.layouts.megatron.tensor_names import EMBEDDING, OUTPUT_LAYER
from reshard.core.layouts.torch_dist.common import source_args
from reshard.core.plan.model import FileStage, ParameterMatch, PlanInputs, ReshardedParameter, TargetFiles
from reshard.core.plan.operations import Composed, DividedAxis, Padded
from reshard.core.plan.target_files import in_source_order, written_once
from reshard.core.runtime.wording import listed
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.layout import ParameterLayout, boxes_layout
from reshard.core.tensor.segments import Pieces
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.text.options import option

_ONCE = "and a Megatron checkpoint has one value of it for all ranks"
_HALVES = "the halves of a gated matrix"
_NEEDLESS = "a float32 copy of a weight that is float32"
_OF_VOCABULARY = (EMBEDDING, OUTPUT_LAYER)
_MAX_LISTED = 4
_MEGATRON_MULTIPLE = 128
"""Megatron's own --make-vocab-size-divisible-by, times the size of tensor parallelism."""


def megatron_match(inputs: PlanInputs, match: ParameterMatch, target: MegatronTarget) -> ParameterMatch:
    """Turn the match of one whole rank into that of Megatron's files.

    Raises:
        PlanError: a parameter has no place in such files or cannot be divided so, or none is left.
    """
    catalog, sizes = inputs.catalog, target.sizes
    problems: list[str] = []
    outside = [written_once(catalog, passed, _ONCE, problems) for passed in match.passed_through]
    needless = masters_of_full_weights(match.resharded)
    kept = [each for each in match.resharded if each.name not in needless]
    parameters = in_source_order(catalog, [*kept, *outside])
    problems += misfits(parameters)
    parameters = [_padded(each, target.vocabulary, problems) for each in parameters]
    if not parameters and not problems:
        raise PlanError(f"{catalog.url}: cannot become a Megatron checkpoint: no parameter is left of it")
    shapes = {each.name: each.shape for each in parameters}
    cuts = dict(_cuts(shapes, problems))
    raise_problems(PlanError, f"{catalog.url}: cannot become a Megatron checkpoint", problems)
    try:
        placing = placing_of(shapes, sizes, *target.ends)
        dtypes = {each.name: each.dtype for each in parameters}
        _check_heads(model_args(shapes, dtypes, target.heads, source_args(target.common)), sizes)
    except LayoutError as error:
        raise PlanError(f"{catalog.url}: cannot become a Megatron checkpoint: {error.marked}") from None
    problems += check_states(parameters, placing, target)
    slicer = _Slicer(placing)
    placed = []
    for each in parameters:
        try:
            placed.append(slicer.placed(each, cuts[each.name]))
        except LayoutError as error:
            problems.append(f"parameter {each.name!r}: {error.marked}")
    raise_problems(PlanError, f"{catalog.url}: cannot become a Megatron checkpoint", problems)
    left_out = replace(match.left_out, sources={**match.left_out.sources, **dict.fromkeys(needless, _NEEDLESS)})
    return replace(
        match, resharded=tuple(placed), passed_through=(), files=_files(sizes, outside, inputs), left_out=left_out
    )


def _files(sizes: ParallelSizes, outside: Sequence[ReshardedParameter], inputs: PlanInputs) -> TargetFiles:
    count = sizes.ranks_per_stage
    stages = [range(stage * count, (stage + 1) * count) for stage in range(sizes.pipeline)]
    return TargetFiles(
        names=tuple(sizes.path(stage, rank) for stage in range(sizes.pipeline) for rank in range(count)),
        stages=tuple(FileStage(stage, "", stage, ranks, ranks) for stage, ranks in enumerate(stages)),
        outside=tuple(each.name for each in outside) if inputs.source_strategy else (),
    )


def _padded(parameter: ReshardedParameter, rows: int, problems: list[str]) -> ReshardedParameter:
    """An embedding or output layer with so many rows, if they are given; any other parameter as it is."""
    if not rows or parse_name(parameter.name).weight not in _OF_VOCABULARY or parameter.shape[:1] == (rows,):
        return parameter
    composed = Composed(parameter.name, parameter.pieces, parameter.shape)
    try:
        pieces, shape = Padded(option("pad_vocab_to", rows), 0, rows).apply([composed])
    except LayoutError as error:
        problems.append(error.marked)
        return parameter
    return replace(parameter, pieces=pieces, shape=shape, steps=(*parameter.steps, Padded.verb))


def _check_heads(args: Args, sizes: ParallelSizes) -> None:
    """Refuse to divide heads, whose rows would be on several ranks."""
    counts = {"attention heads": args["num_attention_heads"]}
    if not args.get("multi_latent_attention"):
        counts["groups of queries"] = args["num_query_groups"]
    for what, number in counts.items():
        if isinstance(number, int) and number % sizes.tensor:
            raise LayoutError(f"{number} {what} cannot be divided evenly among {sizes.tensor} tensor-parallel ranks")


def _cuts(shapes: Mapping[str, Shape], problems: list[str]) -> Iterator[tuple[str, Cut]]:
    """How each parameter is cut, by its name; a problem for those that Megatron does not know."""
    unknown: list[str] = []
    for name, shape in shapes.items():
        weight = parse_name(name).weight
        if shapes.get(weight) != shape:
            problems.append(
                f"parameter {name!r} is optimizer state of shape {list(shape)}, but {weight!r} "
                f"{f'has {list(shapes[weight])}' if weight in shapes else 'is not there'}: leave all optimizer state "
                f"out, {option('select', 'weights-only')}"
            )
            continue
        try:
            cut = cut_of(weight, _traits(weight, shapes)) if has_place(weight) else None
        except LayoutError as error:
            problems.append(f"parameter {name!r}: {error.marked}")
            continue
        # an expert's own, or all experts' in one
        if cut is not None and (not cut.of_experts or cut.stacked or parse_name(name).expert is not None):
            yield name, cut
        else:
            unknown.append(name)
    if unknown:
        are = "is not a parameter" if len(unknown) == 1 else "are not parameters"
        problems.append(
            f"{listed(list(map(repr, unknown)), _MAX_LISTED)} {are} of Megatron-Core: name them as Megatron does, "
            f"{option('preset')} or {option('rename')}, or leave them out, {option('exclude')}"
        )


def _traits(weight: str, shapes: Mapping[str, Shape]) -> Traits:
    """What the name of a weight does not say, but what is beside it in its layer."""
    layer, attention, _ = weight.partition("self_attention.")
    of_attention = f"{layer}{attention}"
    norm, out = (shapes.get(f"{of_attention}{name}.weight", ()) for name in ("q_layernorm", "linear_proj"))
    is_latent = bool(attention) and f"{of_attention}linear_kv_up_proj.weight" in shapes
    return Traits(
        gated=is_gated(weight, shapes),
        latent=is_latent,
        # Transformer Engine's, which do not cut these, have the norm inside of the next projection
        cuts_down=bool(attention) and f"{of_attention}kv_layernorm.weight" in shapes,
        joint_norms=bool(norm) and not is_latent and norm == out[1:],
    )


class _Slicer:
    """Gives parameters their layouts; those that are made alike keep sharing their pieces, and so their classes."""

    def __init__(self, placing: ModelPlacing) -> None:
        self._placing = placing
        self._sizes = placing.sizes
        self._divided: dict[tuple[int, Shape, int], tuple[Pieces, Pieces, Shape]] = {}
        self._layouts: dict[object, ParameterLayout] = {}

    def placed(self, parameter: ReshardedParameter, cut: Cut) -> ReshardedParameter:
        """Return a parameter in the shape in which ranks have boxes of it, with its layout in each stage."""
        name = parse_name(parameter.name)
        size = self._sizes.expert_tensor if cut.of_experts else self._sizes.tensor
        self._check(parameter, cut, size)
        pieces, shape, axis = parameter.pieces, parameter.shape, cut.axis
        if cut.halves and axis is not None and size > 1:
            pieces, shape = self._in_halves(parameter, axis)
            axis += 1
        layout = self._layout(name, cut, shape, axis)
        layouts = {spot.stage: layout for spot in self._placing.spots(name)}
        return replace(parameter, pieces=pieces, shape=shape, target_layouts=layouts)

    def _check(self, parameter: ReshardedParameter, cut: Cut, size: int) -> None:
        shape, axis = parameter.shape, cut.axis
        if len(shape) <= (axis or 0) or (cut.stacked and len(shape) != 3):
            raise LayoutError(f"its shape {list(shape)} is not that of a Megatron model")
        if axis is not None and shape[axis] % (size * (2 if cut.halves else 1)):
            kind = "expert-tensor-parallel" if cut.of_experts else "tensor-parallel"
            advice = ", being two halves" if cut.halves else ""
            if parse_name(parameter.name).weight in _OF_VOCABULARY:
                multiple = size * _MEGATRON_MULTIPLE
                advice = f": fill up its rows with {option('pad_vocab_to', -(-shape[0] // multiple) * multiple)}"
            raise LayoutError(
                f"axis {axis} of its shape {list(shape)} cannot be divided evenly among {size} {kind} ranks{advice}"
            )
        if cut.stacked and shape[0] % self._sizes.expert:
            raise LayoutError(
                f"its {shape[0]} experts cannot be divided evenly among {self._sizes.expert} expert-parallel ranks"
            )

    def _in_halves(self, parameter: ReshardedParameter, axis: int) -> tuple[Pieces, Shape]:
        key = id(parameter.pieces), parameter.shape, axis
        if key not in self._divided:
            composed = Composed(parameter.name, parameter.pieces, parameter.shape)
            self._divided[key] = parameter.pieces, *DividedAxis(_HALVES, 2, axis).apply([composed])
        _, pieces, shape = self._divided[key]
        return pieces, shape

    def _layout(self, name: ModelName, cut: Cut, shape: Shape, axis: int | None) -> ParameterLayout:
        expert = name.expert if cut.of_experts else None
        expert_rank = None if expert is None else expert // self._placing.experts_per_rank
        boxes_of = shape if expert_rank is not None else len(shape)
        key = boxes_of, axis, cut.of_experts, cut.stacked, expert_rank
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._grid(cut, len(shape), axis) if expert_rank is None else self._boxes(shape, axis, expert_rank)
            self._layouts[key] = layout
        return layout

    def _grid(self, cut: Cut, axis_count: int, axis: int | None) -> ParameterLayout:
        """The layout of a parameter that every rank of a stage has a slice of."""
        sizes, count = self._sizes, self._sizes.ranks_per_stage
        matrix: Shape = (count // sizes.tensor, sizes.tensor)
        if cut.of_experts:
            matrix = (count // (sizes.expert * sizes.expert_tensor), sizes.expert, sizes.expert_tensor)
        tensor_map: list[Shape] = [()] * axis_count
        if cut.stacked:
            tensor_map[0] = (1,)
        if axis is not None:
            tensor_map[axis] = (0,)
        return ParameterLayout(matrix, tuple(tensor_map), nested=True)

    def _boxes(self, shape: Shape, axis: int | None, expert_rank: int) -> ParameterLayout:
        """The layout of a parameter of one expert, of which only the ranks of that expert have slices."""
        sizes, owned = self._sizes, []
        for rank in range(sizes.ranks_per_stage):
            if sizes.expert_rank(rank) != expert_rank:
                continue
            start, stop = [0] * len(shape), list(shape)
            if axis is not None:
                length = shape[axis] // sizes.expert_tensor
                start[axis] = rank % sizes.expert_tensor * length
                stop[axis] = start[axis] + length
            owned.append((rank, TensorSlice(tuple(start), tuple(stop))))
        return boxes_layout(ShardBoxes(shape, tuple(owned)), sizes.ranks_per_stage)

"""Builds the resharded parameters: the whole tensors that source shards make, and their layouts in the target."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.changes.changes import FLOAT_NAMES
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import LayoutError
from reshard.core.plan.model import ReshardedParameter, SourceTensor
from reshard.core.plan.operations import unpacked_shape
from reshard.core.plan.ownership import LostBox, SourceCopy, lacks_shards, lost_boxes
from reshard.core.plan.quantizing import quantized_as, written_as
from reshard.core.plan.recipes import Composer, Recipe
from reshard.core.plan.stage_shards import (
    KnownShapes,
    StageShards,
    check_opaque,
    check_same_whole,
    joined_shape,
    owners_of,
    shards_kind,
    source_copy,
)
from reshard.core.runtime.wording import listed
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import (
    ADDED_TO,
    BLOCK_SCALED_NAME,
    INT4,
    MAP_TENSOR,
    SCALED,
    TEXT,
    DType,
    dtype_from_name,
)
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.tensor.segments import Pieces, are_whole, whole_piece
from reshard.core.tensor.slices import TOO_LARGE, Shape, TensorSlice, is_countable
from reshard.core.tensor.value_changes import Increase

_MAX_NAMES_LISTED = 3
_ADAPTED = ("BFloat16", "Float16", "Float32")
"""dtypes that an adapter can be merged into."""


class SourceTensors:
    """The source parameters that target parameters are made of.

    `shards` are the stages that hold each parameter, `target_names` the names of parameters in the target.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        shards: Mapping[str, Sequence[StageShards]],
        target: Strategy | None,
        target_names: Mapping[str, str],
        integrated: bool,
    ) -> None:
        self._catalog = catalog
        self._shards = shards
        self._known_shapes = KnownShapes(target, target_names)
        self._integrated = integrated
        self._known: dict[str, SourceTensor] = {}
        self._wholes: dict[object, tuple[Shape, tuple[SourceCopy, ...]]] = {}
        self.composer = Composer()

    def of(self, name: str) -> SourceTensor:
        """Return a parameter of the source."""
        known = self._known.get(name)
        if known is None:
            stages = self._shards.get(name)
            known = self._known[name] = self._sharded(stages) if stages else self._unsharded(name)
        return known

    def _sharded(self, stages: Sequence[StageShards]) -> SourceTensor:
        known = self._known_shapes.of(stages)
        kind = shards_kind(stages), known
        whole = self._wholes.get(kind)
        if whole is None:
            whole = self._wholes[kind] = self._whole(stages, known)
        entry = stages[0].entry
        return SourceTensor(entry.name, entry.dtype, *whole)

    def _whole(self, stages: Sequence[StageShards], known: Shape | None) -> tuple[Shape, tuple[SourceCopy, ...]]:
        """The shape of the whole tensor, and its copies."""
        first = stages[0]
        entry = first.entry
        copy = source_copy(first, self._integrated)
        grid = copy.layout.shard_grid(len(entry.shape))
        shape = {grid.whole_shape(rank, shard.shape) for rank, shard in first.shards}.pop()
        for other in stages[1:]:
            check_same_whole(first, shape, other, self._integrated)
        if known is not None and known != shape:
            means = {entry.shape: ": ranks hold whole tensors", joined_shape(first): ": ranks hold slices"}
            raise LayoutError(
                f"its shards of shape {list(entry.shape)} make a whole of {list(shape)}, the strategy says "
                f"{list(known)}{means.get(known, '')}"
            )
        copies = [copy]
        if lacks_shards(copy, len(shape)):
            copies += [source_copy(other, self._integrated) for other in stages if other is not first]
        return shape, tuple(copies)

    def _unsharded(self, name: str) -> SourceTensor:
        """A parameter that only the target's strategy knows: usable if all its owners hold the same whole tensor."""
        first, *others = owners_of(self._catalog, name)
        entry = first.index.entries[name]
        for record in others:
            other = record.index.entries[name]
            same = (entry.dtype, entry.shape, entry.text) == (other.dtype, other.shape, other.text)
            if not same or first.digests.get(name) != record.digests.get(name):
                raise LayoutError(
                    f"the source's strategy does not say how it is cut, and rank_{first.rank} and rank_{record.rank} "
                    "hold different contents"
                )
        copy = SourceCopy(first.rank, whole_layout(len(entry.shape)))
        return SourceTensor(name, entry.dtype, entry.shape, (copy,))


def unchanged(source: SourceTensor, target_layouts: Mapping[int, ParameterLayout]) -> ReshardedParameter:
    """A source parameter resharded under its own name, in its own shape and dtype."""
    whole = (whole_piece(source.shape),)
    return ReshardedParameter(source.name, source.dtype, source.shape, (source,), whole, target_layouts)


def build_resharded(
    recipes: Sequence[Recipe], sources: SourceTensors, target: Strategy | None, problems: list[str]
) -> tuple[ReshardedParameter, ...]:
    """Build the resharded parameters; what does not fit is added to `problems`."""
    resharded = []
    target_layouts = _TargetLayouts(target)
    kept: _KeptShapes = {}
    refused: dict[tuple[tuple[str, ...], str], list[Recipe]] = {}
    for recipe in recipes:
        try:
            resharded.append(_resharded(recipe, sources, target_layouts, kept))
        except LayoutError as error:
            refused.setdefault((tuple(recipe.sources), str(error)), []).append(recipe)
    # an axis that does not divide is the same problem for all parts of a split
    problems.extend(f"{_recipe_names(alike)}: {error}" for (_, error), alike in refused.items())
    return tuple(resharded)


def target_dtype(recipe: Recipe, dtypes: Mapping[str, DType]) -> DType:
    """Return the element type of a target parameter; `dtypes` are those of its sources, by their names."""
    found = set(dtypes.values())
    if recipe.cast is not None and all(dtype.is_float for dtype in found):
        return dtype_from_name(FLOAT_NAMES[recipe.cast.dtype])
    if len(found) > 1:
        listed_dtypes = ", ".join(f"{name!r} {dtype}" for name, dtype in list(dtypes.items())[:8])
        advice = ", which a cast could make one" if all(dtype.is_float for dtype in found) else ""
        raise LayoutError(f"what it is made from has different dtypes ({listed_dtypes}){advice}")
    return found.pop()


def lost_source_boxes(resharded: Sequence[ReshardedParameter]) -> Iterator[LostBox]:
    """The boxes of source parameters that the target needs and no file holds, each once."""
    needed: dict[str, tuple[SourceTensor, list[TensorSlice] | None]] = {}
    # sources that are cut alike have the very same copies
    all_copies = {source.copies for parameter in resharded for source in parameter.sources}
    if not any(copy.missing_ranks for copies in all_copies for copy in copies[:1]):
        return
    for parameter in resharded:
        if not any(copy.missing_ranks for source in parameter.sources for copy in source.copies[:1]):
            continue
        is_whole = parameter.is_whole
        factors = {piece.scale.source for piece in parameter.pieces if piece.scale is not None}
        for number, (source, pieces) in enumerate(zip(parameter.sources, parameter.pieces_of_sources, strict=True)):
            boxes = needed.setdefault(source.name, (source, []))[1]
            if is_whole or number in factors:
                needed[source.name] = source, None
            elif boxes is not None:
                boxes.extend(piece.box for piece in pieces)
    for source, boxes in needed.values():
        for lost in lost_boxes(source.name, source.shape, source.copies):
            if boxes is None or lost.box is None or any(lost.box.intersect(box) for box in boxes):
                yield lost


_KeptShapes = dict[tuple[DType, Shape, str | None], tuple[Pieces, DType]]
"""Source dtype, shape and cast -> pieces and dtype, for parameters that keep their shape."""


def _resharded(
    recipe: Recipe, sources: SourceTensors, target: "_TargetLayouts", kept: _KeptShapes
) -> ReshardedParameter:
    made_of = tuple(map(sources.of, recipe.sources))
    source = made_of[0]
    if not recipe.is_reshaped:
        kind = source.dtype, source.shape, recipe.cast.dtype if recipe.cast else None
        known = kept.get(kind)
        if known is None:
            pieces: Pieces = (whole_piece(source.shape),)
            known = kept[kind] = pieces, _countable_dtype(recipe, made_of, pieces, source.shape)
        layouts = target.of(recipe.name, known[1], source.shape)
        return ReshardedParameter(recipe.name, known[1], source.shape, made_of, known[0], layouts, recipe.renamed)
    _check_has_elements(recipe, made_of)
    pieces, shape = sources.composer.compose(recipe, {source.name: source.shape for source in made_of})
    made_of = _unpacked(made_of, pieces)
    dtype = _countable_dtype(recipe, made_of, pieces, shape)
    quantized = quantized_as(recipe.making.operation, recipe.name, dtype, shape)
    if quantized is not None:
        dtype, shape = written_as(quantized)
    layouts = target.of(recipe.name, dtype, shape)
    # some steps change nothing, as the transposition of a vector
    is_as_it_was = quantized is None and are_whole(pieces, source.shape)
    steps = recipe.renamed if is_as_it_was else recipe.steps
    return ReshardedParameter(recipe.name, dtype, shape, made_of, pieces, layouts, steps, quantized)


def _countable_dtype(recipe: Recipe, made_of: Sequence[SourceTensor], pieces: Pieces, shape: Shape) -> DType:
    """The element type of a target parameter; a LayoutError if its sources have several, or it is too large."""
    dtype = target_dtype(recipe, _dtypes(made_of, pieces))
    if not is_countable(shape, dtype.itemsize):
        raise LayoutError(f"the shape of the whole tensor, {list(shape)}, is {TOO_LARGE} as {dtype}")
    return dtype


def _dtypes(made_of: Sequence[SourceTensor], pieces: Pieces) -> dict[str, DType]:
    """The element types of source parameters, once their values are scaled."""
    for number in dict.fromkeys(piece.source for piece in pieces if piece.changes.is_adapted):
        if made_of[number].dtype.name not in _ADAPTED:
            raise LayoutError(
                f"{made_of[number].name!r} has dtype {made_of[number].dtype}, and adapters are only merged into "
                f"{', '.join(_ADAPTED)}"
            )
    scales = {piece.source: piece.scale for piece in pieces if piece.scale is not None}
    for number, scale in scales.items():
        weight, factors = made_of[number], made_of[scale.source]
        if scale.is_packed:
            if {weight.dtype.name, factors.dtype.name} != {"UInt8"}:
                raise LayoutError(
                    f"{weight.name!r} has dtype {weight.dtype}, its scale {factors.name!r} {factors.dtype}: MXFP4 is "
                    "UInt8 with scales of UInt8"
                )
        elif weight.dtype.name != BLOCK_SCALED_NAME or factors.dtype.name != "Float32":
            raise LayoutError(
                f"{weight.name!r} has dtype {weight.dtype}, its scale {factors.name!r} {factors.dtype}: only "
                f"{BLOCK_SCALED_NAME} with scales of Float32 can be dequantized"
            )
    for number, step in dict.fromkeys((piece.source, step) for piece in pieces for step in piece.changes.each):
        if made_of[number].dtype.name not in ADDED_TO:
            what = "zeros can only be made in the place of"
            if isinstance(step, Increase):
                what = "numbers can only be added to"
            raise LayoutError(
                f"{made_of[number].name!r} has dtype {made_of[number].dtype}: {what} {', '.join(ADDED_TO)}"
            )
    mixed = next((piece.source for piece in pieces if piece.scale is None and piece.source in scales), None)
    if mixed is not None:
        raise LayoutError(
            f"it would have values of {made_of[mixed].name!r} both scaled and as they are stored, which have different "
            "dtypes"
        )
    factors_only = {scale.source for scale in scales.values()} - {piece.source for piece in pieces}
    return {
        source.name: SCALED if number in scales else source.dtype
        for number, source in enumerate(made_of)
        if number not in factors_only
    }


def _unpacked(made_of: tuple[SourceTensor, ...], pieces: Pieces) -> tuple[SourceTensor, ...]:
    """The sources with those of MXFP4 in the shape of their values, in which pieces have them; these are whole."""
    packed = {piece.source for piece in pieces if piece.scale is not None and piece.scale.is_packed}
    after = list(made_of)
    for number in packed:
        source = made_of[number]
        copies = []
        for copy in source.copies:
            grid = copy.layout.shard_grid(len(source.shape))
            if not grid.is_whole:
                raise LayoutError(
                    f"{source.name!r} is MXFP4, and sharded: it can only be unpacked where it is whole: make a unified "
                    "checkpoint first"
                )
            copies.append(replace(copy, layout=whole_layout(3, grid.device_count)))
        after[number] = replace(source, shape=unpacked_shape(source.shape), copies=tuple(copies))
    return tuple(after)


def _check_has_elements(recipe: Recipe, made_of: Sequence[SourceTensor]) -> None:
    for source in made_of:
        if source.dtype in (TEXT, MAP_TENSOR) or (source.dtype is INT4 and "transposed" in recipe.steps):
            raise LayoutError(f"{source.name!r} has dtype {source.dtype}, which cannot be {' or '.join(recipe.steps)}")


class _TargetLayouts:
    """The layouts of target parameters, by target stage; checked once for all parameters of one kind."""

    def __init__(self, target: Strategy | None) -> None:
        self._stages = target.stages if target else None
        self._fitting: dict[object, dict[int, ParameterLayout]] = {}

    def of(self, name: str, dtype: DType, shape: Shape) -> Mapping[int, ParameterLayout]:
        """Return the layout of a parameter in each stage that has it; a LayoutError if one does not fit its shape."""
        if self._stages is None:
            return {0: whole_layout(len(shape))}
        found = [(stage.stage, stage.layouts[name]) for stage in self._stages if name in stage.layouts]
        kind = dtype, shape, tuple([(number, layout, layout.tensor_shape) for number, layout in found])
        fitting = self._fitting.get(kind)
        if fitting is None:
            fitting = self._fitting[kind] = {number: _fitting(layout, dtype, shape, number) for number, layout in found}
        return fitting


def _fitting(layout: ParameterLayout, dtype: DType, shape: Shape, stage: int) -> ParameterLayout:
    """The layout of a parameter in a target stage; a LayoutError if the strategy's does not fit it."""
    if dtype in (TEXT, MAP_TENSOR):
        check_opaque(dtype, layout)
        layout = whole_layout(len(shape), layout.device_count)
    if layout.tensor_shape not in (None, shape):
        raise LayoutError(
            f"its shape is {list(shape)}, the target's strategy says {list(layout.tensor_shape or ())} in stage {stage}"
        )
    try:
        layout.shard_grid(len(shape)).bounds(shape)
    except LayoutError as error:
        raise LayoutError(
            f"its shape {list(shape)} does not fit the target's layout in stage {stage}: {error}"
        ) from error
    return layout


def _recipe_names(alike: Sequence[Recipe]) -> str:
    """The names of target parameters with the same sources, for a message."""
    if len(alike) > 1:
        return f"parameters {listed([repr(recipe.name) for recipe in alike], _MAX_NAMES_LISTED)}"
    [recipe] = alike
    named = "" if recipe.is_reshaped or recipe.name in recipe.sources else f" (the source's {recipe.sources[0]!r})"
    return f"parameter {recipe.name!r}{named}"

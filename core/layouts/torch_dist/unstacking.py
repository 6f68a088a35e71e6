"""Makes parameters of the stored tensors of a `torch_dist` checkpoint: one for each layer and each expert.

Layers are stacked, or numbered if they differ; a checkpoint may have both. The metadata says which box of a stored
tensor each chunk is. Of a chunk with several layers, each is a part of what is stored at one place.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import product

from msgspec.structs import replace

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.layouts.dcp.metadata import Chunk, DcpMetadata, ListedTensor, StoredPart, listed_tensor
from reshard.core.layouts.torch_dist.names import StoredName, is_of_optimizer, parse_state, parse_stored
from reshard.core.tensor.slices import Shape, TensorSlice

_MAX_PARAMETERS = 1 << 20

_Found = dict[str, dict[int | None, tuple[str, ListedTensor]]]
"""Parameter -> half -> the stored tensor that it is in, and what it is there."""


def unstacked(metadata: DcpMetadata) -> DcpMetadata:
    """Return the metadata of the parameters of the model and of its optimizer.

    Raises:
        StrategyError: stored tensors contradict each other.
    """
    try:
        return replace(metadata, tensors=_parameters(metadata.tensors))
    except LayoutError as error:
        raise StrategyError(f"{metadata.origin}: {error.marked}") from None


def unmappable(tensors: Mapping[str, ListedTensor]) -> dict[str, str]:
    """Return the parameters of optimizers that are not a state of one weight each -> what they are instead."""
    found = {}
    for name, tensor in tensors.items():
        if not is_of_optimizer(name):
            continue
        prefix, of = parse_state(name)
        weight = tensors.get(of) if prefix else None
        if ".distributed." in name:
            found[name] = "optimizer state in buckets (dp_reshardable), of which only its training knows the order"
        elif weight is None:
            found[name] = "optimizer state of no weight"
        elif weight.shape != tensor.shape:
            found[name] = f"optimizer state of the shape {list(tensor.shape)}, but its weight is {list(weight.shape)}"
    return found


def _parameters(tensors: Mapping[str, ListedTensor]) -> dict[str, ListedTensor]:
    found: _Found = {}
    counts: dict[str, tuple[int, str]] = {}
    left = _MAX_PARAMETERS
    for tensor in tensors.values():
        name = parse_stored(tensor.name)
        left -= math.prod(_stacked_shape(name, tensor, counts))
        if left < 0:
            raise LayoutError(f"has more than {_MAX_PARAMETERS:,} parameters")
        for parameter, part in _parts(name, tensor):
            halves = found.setdefault(parameter, {})
            if name.half in halves or (halves and None in (*halves, name.half)):
                other = next(iter(halves.values()))[0]
                raise LayoutError(f"parameter {parameter!r} is in {other!r} and in {tensor.name!r}")
            halves[name.half] = tensor.name, part
    return {name: _joined(name, halves) for name, halves in found.items()}


def _stacked_shape(name: StoredName, tensor: ListedTensor, counts: dict[str, tuple[int, str]]) -> Shape:
    """How many layers and experts a stored tensor has: as many as every other one of the same layers or experts."""
    axes = name.stacked_axes
    if len(tensor.shape) < axes:
        raise LayoutError(
            f"parameter {tensor.name!r} has the shape {list(tensor.shape)}: its first {axes} axes should be layers and "
            "experts"
        )
    for axis, count in enumerate(tensor.shape[:axes]):
        module = parse_state("".join(name.pieces[: axis + 1]))[1]
        known, other = counts.setdefault(module, (count, tensor.name))
        if known != count or not count:
            raise LayoutError(f"parameter {tensor.name!r} has {count} of {module!r}, {other!r} has {known}")
    return tensor.shape[:axes]


def _parts(name: StoredName, tensor: ListedTensor) -> Iterator[tuple[str, ListedTensor]]:
    """The parameters in a stored tensor."""
    axes = name.stacked_axes
    if not axes:
        parameter = name.parameter(())
        chunks = tensor.chunks if name.half is None else tuple(_part(tensor, chunk, ()) for chunk in tensor.chunks)
        yield parameter, replace(tensor, name=parameter, chunks=chunks)
        return
    shape = tensor.shape[axes:]
    found: dict[Shape, list[Chunk]] = {index: [] for index in product(*map(range, tensor.shape[:axes]))}
    for chunk in tensor.chunks:
        for index in product(*map(range, chunk.box.start[:axes], chunk.box.stop[:axes])):
            found[index].append(_part(tensor, chunk, index))
    for index, of_index in found.items():
        parameter = name.parameter(index)
        yield parameter, ListedTensor(parameter, tensor.dtype, shape, tuple(of_index))


def _part(tensor: ListedTensor, chunk: Chunk, index: Shape) -> Chunk:
    """The part of a chunk at an index along the first axes of its tensor."""
    axes = len(index)
    box = TensorSlice(chunk.box.start[axes:], chunk.box.stop[axes:])
    inner = tuple(number - low for number, low in zip(index, chunk.box.start, strict=False))
    return Chunk(box, chunk.place, StoredPart(tensor.name, chunk.box, inner))


def _joined(name: str, halves: Mapping[int | None, tuple[str, ListedTensor]]) -> ListedTensor:
    """The parameter of which there are these halves, or all of it."""
    if None in halves:
        return halves[None][1]
    stored, tensors = zip(*(halves[half] for half in (0, 1) if half in halves), strict=True)
    if len(tensors) != 2 or tensors[0].shape != tensors[1].shape or tensors[0].dtype is not tensors[1].dtype:
        raise LayoutError(
            f"parameter {name!r} is in {' and '.join(map(repr, stored))}, which should be two halves of equal shapes"
        )
    first, second = tensors
    rows = first.shape[0]
    chunks = [*first.chunks, *(_shifted(chunk, rows) for chunk in second.chunks)]
    return listed_tensor(name, first.dtype, (2 * rows, *first.shape[1:]), chunks)


def _shifted(chunk: Chunk, rows: int) -> Chunk:
    start, stop = chunk.box.start, chunk.box.stop
    return replace(chunk, box=TensorSlice((start[0] + rows, *start[1:]), (stop[0] + rows, *stop[1:])))

"""Which layers of the model each pipeline stage has, and which number they have there.

A stage has one or more *chunks* (virtual pipeline stages). Layers are numbered from 0 in each chunk. Chunks follow one
another by chunk first, by stage second: with two stages of two chunks, stage 0 has the first and the third quarter of
the layers. Under dualpipev the second chunks follow in descending order of stages instead: the first and the last.
Layers that are no-ops have a place and a local number, but no parameters; the model's own numbers do not count them.
"""

from collections.abc import Mapping
from itertools import count

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.args import MegatronArgs
from reshard.core.runtime.records import Record

Chunk = tuple[int, int]
"""A pipeline stage and the number of a chunk in it."""


class LayerDivision(Record):
    """How layers are divided among stages and chunks.

    Attributes:
        stages: P; chunks: V, of each stage.
        layers: with no-ops.
        first, last: layers of the first and of the last stage, if other than those of the stages between.
        counts: layers of each stage; empty if they are not given one by one.
        noops: numbers of layers that are no-ops.
        mirrored: the second chunks are in descending order of stages.
    """

    stages: int
    layers: int
    chunks: int = 1
    first: int | None = None
    last: int | None = None
    counts: tuple[int, ...] = ()
    noops: tuple[int, ...] = ()
    mirrored: bool = False


class LayerPlace(Record):
    """Where a layer is: its stage, chunk and number in the chunk."""

    stage: int
    chunk: int
    number: int


def division_of(args: MegatronArgs, chunks: int) -> LayerDivision:
    """Return how arguments divide layers among stages of so many chunks."""
    return LayerDivision(
        args.pipeline_size,
        args.layers,
        chunks,
        args.first_layers,
        args.last_layers,
        args.layer_counts,
        args.noop_layers,
        args.mirrors,
    )


def layer_numbers(division: LayerDivision) -> Mapping[Chunk, tuple[int | None, ...]]:
    """Return the model's number of each layer of each chunk, by its local number; None for a no-op.

    Raises:
        LayoutError: layers cannot be divided so; says why.
    """
    counts = _stage_counts(division)
    _check_chunks(division, counts)
    _check_noops(division)
    noops = frozenset(division.noops)
    following = count()
    real = [None if layer in noops else next(following) for layer in range(division.layers)]
    numbers: dict[Chunk, tuple[int | None, ...]] = {}
    start = 0
    for chunk in range(division.chunks):
        descends = division.mirrored and chunk == 1
        for stage in reversed(range(division.stages)) if descends else range(division.stages):
            stop = start + counts[stage] // division.chunks
            numbers[stage, chunk] = tuple(real[start:stop])
            start = stop
    return numbers


def layer_places(division: LayerDivision) -> tuple[LayerPlace, ...]:
    """Return the place of each layer of the model, by its number; raises what `layer_numbers` raises."""
    places = {
        number: LayerPlace(stage, chunk, local)
        for (stage, chunk), numbers in layer_numbers(division).items()
        for local, number in enumerate(numbers)
        if number is not None
    }
    return tuple(places[number] for number in sorted(places))


def _stage_counts(division: LayerDivision) -> tuple[int, ...]:
    """Layers of each stage."""
    stages, layers, first, last = division.stages, division.layers, division.first, division.last
    if division.counts:
        if first is not None or last is not None:
            raise LayoutError("layers are given both for each stage and for the first or the last one")
        if len(division.counts) != stages or sum(division.counts) != layers:
            raise LayoutError(
                f"{sum(division.counts)} layers are given for {len(division.counts)} stages, but there are {layers} "
                f"for {stages}"
            )
        return division.counts
    given = [number for number in (first, last) if number is not None]
    between, rest = stages - len(given), layers - sum(given)
    if rest < 0 or between < 0 or (rest % between if between else rest):
        named = f", {' and '.join(map(str, given))} of them on the first or the last" if given else ""
        raise LayoutError(f"{layers} layers cannot be divided evenly among {stages} stages{named}")
    counts = [rest // between if between else 0] * stages
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    return tuple(counts)


def _check_chunks(division: LayerDivision, counts: tuple[int, ...]) -> None:
    for stage, layers in enumerate(counts):
        if layers % division.chunks:
            raise LayoutError(
                f"stage {stage} has {layers} layers, which cannot be divided into {division.chunks} chunks"
            )
    if division.mirrored and (division.chunks != 2 or len(set(counts)) > 1):
        raise LayoutError("dualpipev is only known for stages of two chunks and equally many layers")


def _check_noops(division: LayerDivision) -> None:
    wrong = [noop for noop in division.noops if not 0 <= noop < division.layers]
    if wrong or len(set(division.noops)) < len(division.noops):
        raise LayoutError(f"the no-ops {list(division.noops)} are not different layers of {division.layers}")

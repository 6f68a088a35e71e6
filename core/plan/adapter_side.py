"""Finds whose names an adapter has where a preset changes names: the source's, or those that the preset makes.

A merge changes values element by element. So a merge into what the preset makes is one into the parts of the source's
parameters that this is made of, each with the rows of B and the columns of A of its place.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

from reshard.core.changes.changes import Changes, Fp8
from reshard.core.errors import PlanError, raise_problems
from reshard.core.plan.adapter import AdaptedSource, Adapter, PlacedDelta
from reshard.core.plan.matching import match_parameters
from reshard.core.plan.model import PlanInputs, ReshardedParameter
from reshard.core.plan.preset_route import CompiledPreset
from reshard.core.plan.recipes import Recipe, build_recipes
from reshard.core.plan.stage_shards import SourceShards, names_in_order
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.tensor.segments import Piece, fill_once
from reshard.core.tensor.slices import Shape
from reshard.core.tensor.value_changes import BlockScale, Increase, Zeroing
from reshard.core.text.options import option

_MAX_LISTED = 4
_CHANGED: Mapping[type, str] = {BlockScale: "dequantized", Increase: "added to", Zeroing: "made zeros"}
_HUGGING_FACE, _TARGET = "Hugging Face's", "the target's"


class _Side(Record):
    """Names that the preset makes.

    Attributes:
        whose: whose they are, for messages.
        changes: what makes them.
        made: name -> recipe.
    """

    whose: str
    changes: Changes
    made: Mapping[str, Recipe]


def with_placed_adapter(inputs: PlanInputs, compiled: CompiledPreset, shards: SourceShards | None) -> PlanInputs:
    """Return a plan's inputs with its adapter placed in the source, if its names are those that a preset makes.

    Raises:
        PlanError: the names do not tell whose they are, or the merge is not one into the source's parameters.
    """
    adapter = inputs.adapter
    if adapter is None or adapter.in_source:
        return inputs
    names = list(dict.fromkeys(names_in_order(inputs.catalog)))
    sides = list(_sides(inputs, compiled, names))
    fitting = [side for side in sides if adapter.deltas.keys() <= side.made.keys()]
    if adapter.deltas.keys() <= frozenset(names):
        changed = [side.whose for side in fitting if not _are_same(adapter, side)]
        if changed:
            raise PlanError(_ambiguous(adapter, ["the source's", *changed]))
        return inputs
    if not fitting:
        raise PlanError(_neither(adapter, names, sides))
    placed, *others = [_placed_by(side, adapter, inputs, shards) for side in fitting]
    if any(each != placed for each in others):
        raise PlanError(_ambiguous(adapter, [side.whose for side in fitting]))
    return replace(inputs, adapter=replace(adapter, placed=placed, whose=fitting[0].whose))


def _placed_by(
    side: _Side, adapter: Adapter, inputs: PlanInputs, shards: SourceShards | None
) -> dict[str, AdaptedSource]:
    """What becomes of the source's parameters if the adapter's names are those of a side."""
    headline = f"{inputs.catalog.url}: the adapter cannot be merged"
    problems = list(adapter.problems(list(side.made)))
    raise_problems(PlanError, headline, problems)
    match = match_parameters(replace(inputs, changes=side.changes, target_strategy=None, adapter=None), shards)
    placed = _placed(adapter, match.resharded, problems)
    raise_problems(PlanError, headline, problems)
    return placed


def _sides(inputs: PlanInputs, compiled: CompiledPreset, names: Sequence[str]) -> Iterator[_Side]:
    """The names that the preset makes: Hugging Face's on the way, and the target's; once if they are the same."""
    known: list[frozenset[str]] = []
    for whose, steps in ((_TARGET, compiled.steps), (_HUGGING_FACE, compiled.to_hf)):
        if not steps.steps:
            continue
        only: dict[str, object] = {
            "steps": steps.steps,
            "split": (),
            "join": (),
            "transpose": (),
            "rename": (),
            "cast": (),
        }
        if inputs.changes.fp8 is Fp8.QUANTIZE:  # after the merge
            only["fp8"] = Fp8.AUTO
        changes = inputs.changes.model_copy(update=only)
        made = build_recipes(names, changes, []).made
        if frozenset(made) not in known:
            known.append(frozenset(made))
            yield _Side(whose, changes, made)


def _are_same(adapter: Adapter, side: _Side) -> bool:
    """True if the preset leaves all parameters that an adapter changes as they are."""
    return all(not side.made[name].is_reshaped and side.made[name].sources == (name,) for name in adapter.deltas)


def _ambiguous(adapter: Adapter, whose: Sequence[str]) -> str:
    return (
        f"{option('lora', adapter.url)}: {min(adapter.deltas)!r} and the others that it changes are among "
        f"{' and '.join(whose)} names, so names do not tell into which it is to be merged. Convert in two steps: merge "
        f"it without {option('preset')}, before the conversion or after it"
    )


def _neither(adapter: Adapter, names: Sequence[str], sides: Sequence[_Side]) -> str:
    """Why an adapter fits no side: how many of its names each has, and an example of what is lacking."""
    total = len(adapter.deltas)
    evidence = []
    for whose, known in (("the source's", frozenset(names)), *((side.whose, side.made.keys()) for side in sides)):
        lacking = [name for name in adapter.deltas if name not in known]
        evidence.append(
            f"{total - len(lacking)} are among {whose} names, which lack {listed([*map(repr, lacking)], 2)}"
        )
    return (
        f"{option('lora', adapter.url)}: of the {counted(total, 'parameter')} that it changes, {'; '.join(evidence)}. "
        "The adapter is of another model, or has other names than there are on the way from the source to the target: "
        "convert the base to the adapter's names first, and merge it there"
    )


def _placed(adapter: Adapter, resharded: Sequence[ReshardedParameter], problems: list[str]) -> dict[str, AdaptedSource]:
    """What becomes of the source's parameters; what cannot be done is added to `problems`."""
    by_name = {each.name: each for each in resharded}
    shapes: dict[str, Shape] = {}
    parts: dict[str, list[PlacedDelta]] = defaultdict(list)
    for name, delta in adapter.deltas.items():
        parameter = by_name.get(name)
        if parameter is None:
            problems.append(f"{name!r}: the source's strategy does not say how it is cut")
            continue
        if parameter.shape != delta.shape:
            problems.append(f"{name!r} has shape {list(parameter.shape)}, and the adapter is for {list(delta.shape)}")
            continue
        steps = (type(step) for piece in parameter.pieces for step in (piece.changes.by_place, *piece.changes.each))
        if (how := next(filter(None, map(_CHANGED.get, steps)), None)) is not None:
            problems.append(f"{name!r} is {how} on the way: convert without {option('lora')} first, then merge")
            continue
        for piece in parameter.pieces:
            source = parameter.sources[piece.source]
            shapes[source.name] = source.shape
            parts[source.name].append(PlacedDelta(replace(piece, source=0), delta))
    used: dict[str, list[Piece]] = defaultdict(list)
    for parameter in resharded:
        for piece in parameter.pieces:
            if parameter.sources[piece.source].name in parts:
                used[parameter.sources[piece.source].name].append(piece)
    twice = [repr(name) for name, pieces in used.items() if _overlap(pieces, shapes[name])]
    if twice:
        problems.append(
            f"parts of {listed(twice, _MAX_LISTED)} become parts of several parameters, or of one several times, and "
            f"the adapter may change each differently: convert without {option('lora')} first, then merge"
        )
    return {name: AdaptedSource(shapes[name], tuple(those)) for name, those in parts.items()}


def _overlap(pieces: Sequence[Piece], shape: Shape) -> bool:
    """True unless pieces certainly are of different elements of a source parameter."""
    boxes = [piece.box for piece in pieces if piece.box.size]
    if sum(box.size for box in boxes) == math.prod(shape):
        axes = tuple(range(len(shape)))
        return not fill_once([Piece(0, box, axes, box.start, steps=box.steps) for box in boxes], shape)
    return any(one.bounds.intersect(other.bounds) for one, other in combinations(boxes, 2))

"""Shapes of whole source tensors, and what shows them besides the strategy and the shards.

A shard does not show along which axis it was cut: its shape times the pieces of the strategy gives a whole shape that
may be wrong. It is *confirmed* if something else shows it as well: the tensor is on every rank as a whole, a strategy
in JSON has its shape, or it was compared with metadata, with a configuration, or with another checkpoint.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.changes.training_state import STATE_PREFIXES
from reshard.core.errors import LayoutError
from reshard.core.plan.model import ParameterMatch, ReshardedParameter
from reshard.core.plan.stage_shards import StageShards
from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed, shortened
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape

NOT_CONFIRMED = "whole shapes not confirmed"
BY_FILES = "files"
"""Every rank holds the whole tensor."""
BY_RECORD = "recorded shapes"
"""A strategy in JSON or the checkpoint's metadata has the shape, or reshard wrote the shards by a recorded strategy."""
BY_TARGET_STRATEGY = "target strategy"
_MAX_KINDS = 64
"""Kinds in a summary: names of thousands of kinds are no names of layers."""
_MAX_SHOWN = 5
_LAYER_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")


class Whole(Record):
    """The shape of a whole source tensor.

    Attributes:
        pieces: the number of shards along each axis.
        confirmed_by: what shows the shape besides the strategy and the shards; empty: nothing.
    """

    shape: Shape
    pieces: Shape
    confirmed_by: str


class WholeShape(Summary):
    """The shape of the whole tensors of one kind.

    Attributes:
        parameters: their name, with `*` for the numbers of layers.
        count: number of these parameters.
        shape: the shape of each.
        confirmed_by: what shows it besides the strategy and the shards: `files`, `recorded shapes`, `target strategy`,
            or what it was compared with; empty: nothing.
    """

    parameters: str
    count: int
    shape: Shape
    confirmed_by: str


class WholeShapes(Summary):
    """The shapes of a source's whole tensors by kind: those that are not confirmed first.

    Attributes:
        unconfirmed: number of parameters whose shape is not confirmed.
        kinds: the kinds, at most 64 of them.
        more: number of further kinds.
    """

    unconfirmed: int = 0
    kinds: tuple[WholeShape, ...] = ()
    more: int = 0

    @property
    def confirmed(self) -> bool:
        """True if no shape rests on the strategy and the shards alone."""
        return not self.unconfirmed

    @property
    def witnesses(self) -> str:
        """What confirms the shapes that the shards alone do not show, in words."""
        found = dict.fromkeys(kind.confirmed_by for kind in self.kinds if kind.confirmed_by not in ("", BY_FILES))
        return listed(list(found)) or BY_FILES

    def __str__(self) -> str:
        """Format the largest kinds, in a bounded number of words."""
        texts = [f"{shortened(kind.parameters)} {list(kind.shape)}" for kind in self.kinds]
        more = max(0, len(texts) - _MAX_SHOWN) + self.more
        shown = ", ".join(texts[:_MAX_SHOWN]) + (f" and {counted(more, 'more kind')}" if more else "")
        if self.confirmed:
            return f"confirmed by {self.witnesses}: {shown}"
        return (
            f"not confirmed for {counted(self.unconfirmed, 'parameter')}, whose axes only the strategy shows; compare "
            f"with the network's: {shown}"
        )


def folded(name: str) -> str:
    """Return a parameter's name with `*` for each number between dots, as of a layer or an expert."""
    return _LAYER_NUMBER.sub("*", name)


def wholes_of_match(match: ParameterMatch, compared: Mapping[str, str]) -> dict[str, Whole]:
    """Return the whole tensors of the source; `compared`: name in source or target -> what confirmed its shape."""
    found: dict[str, Whole] = {}
    for parameter in match.resharded:
        for source in parameter.sources:
            known = found.get(source.name)
            if source.dtype in (TEXT, MAP_TENSOR) or not source.copies or (known and known.confirmed_by):
                continue
            whole = _whole(source.shape, source.copies[0].layout)
            confirmed_by = compared.get(parameter.name) or compared.get(source.name) or whole.confirmed_by
            if not confirmed_by and _is_in_target_strategy(parameter):
                confirmed_by = BY_TARGET_STRATEGY
            found[source.name] = replace(whole, confirmed_by=confirmed_by)
    return found


def wholes_of_shards(shards: Mapping[str, Sequence[StageShards]], *, integrated: bool) -> dict[str, Whole]:
    """Return the whole tensors that shards make by their strategy; those that do not fit it are left out."""
    found: dict[str, Whole] = {}
    for name, (first, *_) in shards.items():
        stage_rank, entry = first.shards[0]
        if entry.dtype in (TEXT, MAP_TENSOR):
            continue
        if integrated:
            found[name] = Whole(entry.shape, (1,) * len(entry.shape), BY_FILES)
            continue
        try:
            shape = first.layout.shard_grid(len(entry.shape)).whole_shape(stage_rank, entry.shape)
        except LayoutError:
            continue
        found[name] = _whole(shape, first.layout)
    return found


def summarize_shapes(wholes: Mapping[str, Whole]) -> WholeShapes:
    """Summarize shapes by kind: those that are not confirmed, weights, and large tensors first."""
    counts: dict[tuple[str, Shape, str], int] = {}
    for name, whole in wholes.items():
        kind = folded(name), whole.shape, whole.confirmed_by
        counts[kind] = counts.get(kind, 0) + 1
    ordered = sorted(
        counts.items(),
        key=lambda item: (item[0][2] != "", item[0][0].startswith(STATE_PREFIXES), -math.prod(item[0][1])),
    )
    kinds = tuple(
        WholeShape(parameters=name, count=count, shape=shape, confirmed_by=confirmed_by)
        for (name, shape, confirmed_by), count in ordered[:_MAX_KINDS]
    )
    unconfirmed = sum(count for (_, _, confirmed_by), count in counts.items() if not confirmed_by)
    return WholeShapes(unconfirmed=unconfirmed, kinds=kinds, more=len(ordered) - len(kinds))


def other_cuts(whole: Whole) -> Iterator[Shape]:
    """Yield the shapes that the same shards would make, sharded into as many pieces along other axes."""
    shard = [length // pieces if pieces else length for length, pieces in zip(whole.shape, whole.pieces, strict=True)]
    count = math.prod(whole.pieces)
    divisions = [tuple(reversed(whole.pieces))]
    divisions += [tuple(count if axis == cut else 1 for axis in range(len(shard))) for cut in range(len(shard))]
    for division in dict.fromkeys(divisions):
        shape = tuple(length * pieces for length, pieces in zip(shard, division, strict=True))
        if shape != whole.shape:
            yield shape


def _whole(shape: Shape, layout: ParameterLayout) -> Whole:
    grid = layout.shard_grid(len(shape))
    if layout.tensor_shape == shape:
        return Whole(shape, grid.pieces, BY_RECORD)
    return Whole(shape, grid.pieces, BY_FILES if grid.is_whole else "")


def _is_in_target_strategy(parameter: ReshardedParameter) -> bool:
    """True if the target's strategy has the shape of a parameter that is all of its source; planning compared them."""
    return parameter.is_whole and any(layout.tensor_shape for layout in parameter.target_layouts.values())

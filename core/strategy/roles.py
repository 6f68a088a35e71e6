"""Roles of the devices of a stage: which of them share a parameter, which hold replicas of it.

Layouts of one stage may spell its devices differently: [2, 4], [8] and [2, 1, 4] are the same eight. So a device axis
is identified by its *stride*, the ranks that it steps over, and its size. The borders of all axes that shard any
parameter divide the devices into *role axes*:

=================================  ===================================================================================
shards no parameter                data parallel: its ranks hold replicas, which an optimizer shard may divide; context
                                   parallel counts as one
shards parameters                  model parallel, whatever the network calls it: tensor or expert parallel
=================================  ===================================================================================

If every sharded parameter is sharded along one tensor axis, and all into the same number of shards, that number is the
size of model parallel, whichever devices share which parameter: operators arrange devices in different ways, so every
other rank may share an embedding, and neighbors a matrix. Otherwise axes that shard the same parameters along the same
tensor axes are of one *kind*. There are several kinds, for example expert parallel beside tensor parallel, and model
parallel has no single size.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape

NamedLayouts = Sequence[tuple[str, ParameterLayout]]
"""Parameters and their layouts; a parameter of several stages occurs once for each."""


class RoleAxis(Record):
    """A device axis: the distance between neighboring ranks on it, and the number of devices.

    `cuts` are the (parameter, tensor axis) that it shards; empty for data parallel.
    """

    stride: int
    size: int
    cuts: frozenset[tuple[str, int]]


class Roles(Record, dict=True):
    """Roles of a stage's devices: its axes, slowest first.

    `pieces` of every sharded parameter: 1 if there is none, 0 if the numbers differ. `conflict`: why there is one axis
    where there should be more.
    """

    axes: tuple[RoleAxis, ...]
    pieces: int = 0
    conflict: str = ""

    @cached_property
    def model_axes(self) -> tuple[RoleAxis, ...]:
        """Axes that shard parameters, slowest first."""
        return tuple(axis for axis in self.axes if axis.cuts)

    @property
    def data_parallel(self) -> int:
        """Replicas of each sharded parameter."""
        return self.device_count // self.model_parallel

    @property
    def model_parallel(self) -> int:
        """Devices that share one replica; for several kinds, those of all together."""
        return self.pieces or math.prod(axis.size for axis in self.model_axes)

    @property
    def device_count(self) -> int:
        """Number of devices of a stage."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def is_one_kind(self) -> bool:
        """True if the same devices share all sharded parameters."""
        return not self.conflict and len({axis.cuts for axis in self.model_axes}) < 2

    @property
    def several_sizes(self) -> str:
        """Why model parallel has no single size, in words; empty if it has one."""
        return "" if self.pieces else self.conflict or self.kinds

    @property
    def kinds(self) -> str:
        """Which devices shard which parameters, in words."""
        sizes: dict[frozenset[tuple[str, int]], int] = {}
        for axis in self.model_axes:
            sizes[axis.cuts] = sizes.get(axis.cuts, 1) * axis.size
        kinds = []
        for cuts, size in sizes.items():
            # a kind is best described by what it alone cuts
            others = frozenset[tuple[str, int]]().union(*(other for other in sizes if other != cuts))
            named = sorted(cuts - others) or sorted(cuts)
            names = listed([f"{name!r} along axis {axis}" for name, axis in named], 2)
            kinds.append(f"{counted(size, 'device')} {'cuts' if size == 1 else 'cut'} {names}")
        return f"different devices cut different parameters: {'; '.join(kinds)}"


class _Cut(Record):
    """A device axis that shards a tensor axis: its neighbors are `low` ranks apart, and it ends after `high` ranks."""

    tensor_axis: int
    low: int
    high: int


NamedCuts = Sequence[tuple[str, Sequence[_Cut]]]
"""Parameters and what shards each; nothing if its ranks hold replicas."""


def device_roles(layouts: NamedLayouts, device_count: int) -> Roles:
    """Return the roles of the devices of a stage; optimizer shards do not matter."""
    named_cuts = [(name, _cuts(layout)) for name, layout in layouts]
    borders = _borders(named_cuts, device_count)
    pieces = _common_pieces(cuts for _, cuts in named_cuts)
    for low, high in pairwise(borders):
        if high % low:
            everything = frozenset((name, cut.tensor_axis) for name, cuts in named_cuts for cut in cuts)
            return Roles((RoleAxis(1, device_count, everything),), pieces, _conflict(named_cuts, low, high))
    axes = [_axis_between(low, high, named_cuts) for low, high in pairwise(borders)]
    if not axes:
        axes = [RoleAxis(1, 1, frozenset())]
    return Roles(tuple(reversed(axes)), pieces)


def _borders(named_cuts: NamedCuts, device_count: int) -> list[int]:
    """The numbers of ranks at which any sharding axis begins or ends, ascending, from 1 to all devices."""
    borders = {1, device_count}
    for _, cuts in named_cuts:
        for cut in cuts:
            borders.update((cut.low, cut.high))
    return sorted(borders)


def model_axes_of(layout: ParameterLayout, axis_count: int, roles: Roles) -> list[list[int]]:
    """Return, per tensor axis, the numbers of the model axes that shard it, slowest first as in its tensor map."""
    found: list[list[int]] = []
    for device_axes in layout.map_for(axis_count):
        numbers: list[int] = []
        for device_axis in device_axes:
            low, high = _span(layout.device_matrix, device_axis)
            numbers += [
                number
                for number, axis in enumerate(roles.model_axes)
                if low <= axis.stride and axis.stride * axis.size <= high and axis.size > 1
            ]
        found.append(numbers)
    return found


def is_cut_by_steps(layout: ParameterLayout) -> bool:
    """True if neighboring ranks hold replicas of a sharded parameter, and its shards are a step apart."""
    cuts = _cuts(layout)
    if not cuts:
        return False
    return min(cut.low for cut in cuts) > 1 and max(cut.high for cut in cuts) == layout.device_count


def _common_pieces(all_cuts: Iterable[Sequence[_Cut]]) -> int:
    """Number of shards of each sharded parameter, along one tensor axis; 1 if none is sharded, 0 if numbers differ."""
    found: set[int] = set()
    for cuts in all_cuts:
        tensor_axes = {cut.tensor_axis for cut in cuts}
        if len(tensor_axes) == 1:
            found.add(math.prod(cut.high // cut.low for cut in cuts))
        elif tensor_axes:
            return 0
    if not found:
        return 1
    return found.pop() if len(found) == 1 else 0


def _cuts(layout: ParameterLayout) -> list[_Cut]:
    """Each device axis that shards a parameter."""
    cuts: list[_Cut] = []
    for tensor_axis, device_axes in enumerate(layout.map_for(len(layout.tensor_map))):
        for device_axis in device_axes:
            low, high = _span(layout.device_matrix, device_axis)
            if high > low:
                cuts.append(_Cut(tensor_axis, low, high))
    return cuts


def _axis_between(low: int, high: int, named_cuts: NamedCuts) -> RoleAxis:
    """The axis between two borders: what is sharded across all of it."""
    sharded = {
        (name, cut.tensor_axis) for name, cuts in named_cuts for cut in cuts if cut.low <= low and high <= cut.high
    }
    return RoleAxis(low, high // low, frozenset(sharded))


def _span(matrix: Shape, device_axis: int) -> tuple[int, int]:
    """The distance between neighbors on a device axis, and the number of ranks that the axis spans."""
    low = math.prod(matrix[len(matrix) - device_axis :])
    return low, low * matrix[-1 - device_axis]


def _conflict(named_cuts: NamedCuts, first: int, second: int) -> str:
    """Why there are no common axes: the parameters whose devices are arranged in groups of these sizes."""
    first_names: dict[int, str] = {}
    for name, cuts in named_cuts:
        for cut in cuts:
            first_names.setdefault(cut.low, name)
            first_names.setdefault(cut.high, name)
    return (
        f"devices are arranged in ways that do not go together: in groups of {first} for {first_names.get(first)!r}, "
        f"of {second} for {first_names.get(second)!r}"
    )

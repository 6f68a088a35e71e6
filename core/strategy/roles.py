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

from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.wording import counted, listed
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape

NamedLayouts = Sequence[tuple[str, ParameterLayout]]
"""Parameters and their layouts; a parameter of several stages occurs once for each."""


@frozen
class RoleAxis:
    """A device axis: the distance between neighboring ranks on it, and the number of devices.

    `cuts` are the (parameter, tensor axis) that it shards; empty for data parallel.
    """

    stride: int
    size: int
    cuts: frozenset[tuple[str, int]]


@frozen
class Roles:
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


def device_roles(layouts: NamedLayouts, device_count: int) -> Roles:
    """Return the roles of the devices of a stage; optimizer shards do not matter."""
    spans = [(name, _spans(layout)) for name, layout in layouts]
    borders = sorted({1, device_count} | {border for _, cut in spans for _, low, high in cut for border in (low, high)})
    unlike = [(low, high) for low, high in pairwise(borders) if high % low]
    pieces = _common_pieces(cut for _, cut in spans)
    if unlike:
        cuts = frozenset((name, axis) for name, cut in spans for axis, _, _ in cut)
        return Roles((RoleAxis(1, device_count, cuts),), pieces, _conflict(spans, *unlike[0]))
    cutting: dict[tuple[int, int], set[tuple[str, int]]] = {(low, high): set() for low, high in pairwise(borders)}
    for name, cut in spans:
        for axis, low, high in cut:
            for border, found in cutting.items():
                if low <= border[0] and border[1] <= high:
                    found.add((name, axis))
    axes = [RoleAxis(low, high // low, frozenset(found)) for (low, high), found in reversed(cutting.items())]
    return Roles(tuple(axes) or (RoleAxis(1, 1, frozenset()),), pieces)


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
    spans = _spans(layout)
    return (
        bool(spans) and min(low for _, low, _ in spans) > 1 and max(high for _, _, high in spans) == layout.device_count
    )


def _common_pieces(cuts: Iterable[Sequence[tuple[int, int, int]]]) -> int:
    """Number of shards of each sharded parameter, along one tensor axis; 1 if none is sharded, 0 if numbers differ."""
    found: set[int] = set()
    for cut in cuts:
        if cut:
            several = len({axis for axis, _, _ in cut}) > 1
            found.add(0 if several else math.prod(high // low for _, low, high in cut))
    return (found or {1}).pop() if len(found) < 2 else 0


def _spans(layout: ParameterLayout) -> list[tuple[int, int, int]]:
    """(tensor axis, stride, stride beyond it) of each device axis that shards."""
    return [
        (tensor_axis, low, high)
        for tensor_axis, device_axes in enumerate(layout.map_for(len(layout.tensor_map)))
        for device_axis in device_axes
        for low, high in [_span(layout.device_matrix, device_axis)]
        if high > low
    ]


def _span(matrix: Shape, device_axis: int) -> tuple[int, int]:
    low = math.prod(matrix[len(matrix) - device_axis :])
    return low, low * matrix[-1 - device_axis]


def _conflict(spans: Iterable[tuple[str, Sequence[tuple[int, int, int]]]], first: int, second: int) -> str:
    named: dict[int, str] = {}
    for name, cut in spans:
        for _, low, high in cut:
            named.setdefault(low, name)
            named.setdefault(high, name)
    return (
        f"devices are arranged in ways that do not go together: in groups of {first} for {named.get(first)!r}, "
        f"of {second} for {named.get(second)!r}"
    )

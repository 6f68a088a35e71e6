"""What the devices of a stage are for: which of them share a parameter, which hold copies of it.

Layouts of one stage may spell its devices differently: [2, 4], [8] and [2, 1, 4] are the same eight. So a device axis
is told by the ranks that it steps over, its *stride* and size. The borders of all the axes that any layout cuts by
divide the devices into *role axes*:

=================================  ===================================================================================
no parameter is cut by it          data parallel: its ranks hold copies, which an optimizer shard may cut; context
                                   parallel is one, too
parameters are cut by it           model parallel, whatever the network calls it: tensor or expert parallel
=================================  ===================================================================================

Where every parameter that is cut at all is cut along one tensor axis, and all into the same number of pieces, that is
the size of model parallel, whichever devices share which parameter: operators arrange them in different ways, so that
an embedding may be shared by every other rank where matrices are by neighbours. Else axes that cut the same parameters
along the same tensor axes are of one *kind*, and there are several, expert parallel beside tensor parallel say: then
model parallel has no one size.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from reshard.core.runtime.wording import counted, listed
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape

NamedLayouts = Sequence[tuple[str, ParameterLayout]]
"""Parameters and their layouts; one that several stages hold is in it for each."""


@dataclass(frozen=True)
class RoleAxis:
    """A device axis.

    Attributes:
        stride: the distance between neighbouring ranks on it.
        size: devices on it.
        cuts: (parameter, tensor axis) that it cuts; empty if it is data parallel.
    """

    stride: int
    size: int
    cuts: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Roles:
    """The roles of a stage's devices.

    Attributes:
        axes: the role axes, slowest first.
        pieces: into how many pieces all parameters are cut that are; 1 if none is, 0 if there is no one number.
        conflict: why there is but one role axis, if there should be more.
    """

    axes: tuple[RoleAxis, ...]
    pieces: int = 0
    conflict: str = ""

    @cached_property
    def model_axes(self) -> tuple[RoleAxis, ...]:
        """The axes that cut parameters, slowest first."""
        return tuple(axis for axis in self.axes if axis.cuts)

    @property
    def data_parallel(self) -> int:
        """Copies of each parameter that is cut."""
        return self.device_count // self.model_parallel

    @property
    def model_parallel(self) -> int:
        """Devices that share one copy; of several kinds, those of all together."""
        return self.pieces or math.prod(axis.size for axis in self.model_axes)

    @property
    def device_count(self) -> int:
        """Devices of a stage."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def is_one_kind(self) -> bool:
        """Whether the same devices share all parameters that are cut."""
        return not self.conflict and len({axis.cuts for axis in self.model_axes}) < 2

    @property
    def several_sizes(self) -> str:
        """Why model parallel has no one size, in words; empty if it has."""
        return "" if self.pieces else self.conflict or self.kinds

    @property
    def kinds(self) -> str:
        """Which devices cut which parameters, in words."""
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
    """The roles of the devices of each of a strategy's stages; optimizer shards do not matter."""
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
    """Per tensor axis the numbers of the roles' model axes that cut it, slowest first as in its tensor map."""
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
    """Whether neighbouring ranks hold the same of a parameter that is cut, and those a step apart do not."""
    spans = _spans(layout)
    return (
        bool(spans) and min(low for _, low, _ in spans) > 1 and max(high for _, _, high in spans) == layout.device_count
    )


def _common_pieces(cuts: Iterable[Sequence[tuple[int, int, int]]]) -> int:
    """The number of pieces of all that is cut, along one tensor axis each; 1 if nothing is, 0 if there is none."""
    found: set[int] = set()
    for cut in cuts:
        if cut:
            several = len({axis for axis, _, _ in cut}) > 1
            found.add(0 if several else math.prod(high // low for _, low, high in cut))
    return (found or {1}).pop() if len(found) < 2 else 0


def _spans(layout: ParameterLayout) -> list[tuple[int, int, int]]:
    """(tensor axis, stride, stride of what is beyond) of each device axis that cuts."""
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

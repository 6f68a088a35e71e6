"""Reshards a parameter's layout over other numbers of devices: the same tensor axes, other sizes.

A new device matrix has one axis for data parallel and one for model parallel, the faster one unless the source shards
the parameter by the slower one. If model parallel keeps its size, its axes stay as they are, of whatever kinds.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.runtime.records import Record
from reshard.core.strategy.roles import Roles, is_cut_by_steps, model_axes_of
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_DATA, _MODEL = "data", "model"
_DATA_AXIS = -1
_CUT_FORM = "it has to be PATTERN=AXIS, PATTERN=AXIS:model,AXIS:data or PATTERN=whole; AXIS counts from 0"


class CutRule(Record):
    """Which tensor axes of the parameters that match `pattern` are sharded, and by `model` or `data` devices."""

    pattern: str
    axes: tuple[tuple[int, str], ...]


def parse_cut(text: str) -> CutRule:
    """Parse a rule: `PATTERN=0`, `PATTERN=0:model,1:data` or `PATTERN=whole`."""
    pattern, equals, cut = text.rpartition("=")
    if not pattern or not equals:
        raise StrategyError(f"{option('cuts', [text])}: {_CUT_FORM}")
    if cut == "whole":
        return CutRule(pattern, ())
    axes = []
    for part in cut.split(","):
        axis, _, role = part.strip().partition(":")
        if not (axis.isascii() and axis.isdecimal()) or len(axis) > 3 or (role or _MODEL) not in (_DATA, _MODEL):
            raise StrategyError(f"{option('cuts', [text])}: {_CUT_FORM}")
        axes.append((int(axis), role or _MODEL))
    if len({role for _, role in axes}) < len(axes):
        raise StrategyError(f"{option('cuts', [text])}: the same devices cannot cut it twice")
    return CutRule(pattern, tuple(axes))


class Rescaler:
    """Builds layouts for `data_parallel` x `model_parallel` devices; `has_rules`: rules shard some parameters."""

    def __init__(self, roles: Roles, data_parallel: int, model_parallel: int, has_rules: bool = False) -> None:
        self._roles = roles
        self._has_rules = has_rules
        self._data, self._model = data_parallel, model_parallel
        self._keeps_all = (data_parallel, model_parallel) == (roles.data_parallel, roles.model_parallel)
        self._keeps_model = model_parallel == roles.model_parallel
        self._keeps_axes = (
            self._keeps_model and not roles.conflict and model_parallel > 1 and (roles.is_one_kind or not roles.pieces)
        )

    @property
    def notes(self) -> Iterable[str]:
        """Sentences on assumptions that were made."""
        if self._roles.model_parallel == 1 < self._model:
            yield "the source cuts nothing by model parallel: what the rules do not name stays whole"
        if self._model > 1 and self._roles.pieces > 1 and not self._keeps_all and not self._roles.is_one_kind:
            yield (
                f"{self._roles.conflict or self._roles.kinds}. All into {self._roles.pieces} pieces, so this is taken "
                "for one model parallel, arranged in several ways. If it is tensor and expert parallel, say how the "
                f"fewer of them are to be cut, with {option('cuts')}"
            )

    def check(self, origin: str) -> None:
        """Raise a StrategyError unless the source shows which axes model parallel of the new size shards."""
        if self._model == 1 or self._keeps_all or self._keeps_axes:
            return
        had, data = self._roles.model_parallel, self._roles.data_parallel
        if had == 1 and not self._has_rules:
            raise StrategyError(
                f"{origin}: cuts no parameter by model parallel, so it does not show which tensor axes "
                f"{option('model_parallel', self._model)} should cut. Name them with "
                f"{option('cuts', ['PATTERN=AXIS'])} for each kind of parameter, such as "
                f"{option('cuts', ['*.wq.weight=0', '*.wo.weight=1'])}, or name a strategy of the "
                "network that was compiled with model parallel"
            )
        if self._roles.several_sizes:
            kept = "" if self._roles.conflict else f"keep {option('model_parallel', had)}, or "
            raise StrategyError(
                f"{origin}: its layouts say data parallel {data} and model parallel {had}, which cannot become "
                f"{self._data} and {self._model}: {self._roles.several_sizes}. Say how the fewer of them are to be "
                f"cut, with {option('cuts', ['PATTERN=AXIS'])} (by model parallel), "
                f"{option('cuts', ['PATTERN=AXIS:data,AXIS:model'])} (by both) or {option('cuts', ['PATTERN=whole'])}; "
                f"or {kept}take {option('model_parallel', 1)}"
            )

    def rescaled(self, layout: ParameterLayout, shape: Shape | None, rule: CutRule | None) -> ParameterLayout:
        """Return the new layout of a parameter without optimizer shard."""
        if rule is None and self._keeps_all:
            return layout
        axis_count = len(layout.tensor_map) if shape is None else len(shape)
        matrix: Shape = (self._data, self._model)
        if rule:
            tensor_map = _by_rule(rule, axis_count)
        elif self._keeps_axes:
            matrix, tensor_map = self._with_axes_kept(layout, axis_count)
        else:
            matrix, tensor_map = self._with_one_axis(layout, axis_count)
        uneven, offset = layout.param_split_shape, layout.indices_offset
        cut = len(tensor_map[0]) if tensor_map else 0
        if uneven and cut == 0:
            uneven = offset = ()
        if uneven and (rule or not self._keeps_model):
            raise LayoutError(
                f"axis 0 is cut unevenly, into {list(uneven)}: the cut for other devices is unknown. "
                f"Keep the size of model parallel, take 1, or say {option('cuts', ['PATTERN=whole'])}"
            )
        return replace(
            layout,
            device_matrix=matrix,
            tensor_map=tensor_map,
            nested=any(len(axes) > 1 for axes in tensor_map),
            param_split_shape=uneven,
            indices_offset=offset,
        )

    def _with_one_axis(self, layout: ParameterLayout, axis_count: int) -> tuple[Shape, tuple[Shape, ...]]:
        """Return device matrix and tensor map with a single axis for model parallel."""
        by_steps = is_cut_by_steps(layout)
        matrix = (self._model, self._data) if by_steps else (self._data, self._model)
        cut = (int(by_steps),) if self._model > 1 else ()
        pieces = layout.shard_grid(axis_count).pieces
        return matrix, tuple(cut if count > 1 else () for count in pieces)

    def _with_axes_kept(self, layout: ParameterLayout, axis_count: int) -> tuple[Shape, tuple[Shape, ...]]:
        """Return device matrix and tensor map with the source's model-parallel axes, and one for data parallel."""
        order: list[int] = []  # numbers of model axes, slowest first; the data axis where the slowest of them was
        for axis in self._roles.axes:
            if axis.cuts:
                order.append(self._roles.model_axes.index(axis))
            elif _DATA_AXIS not in order:
                order.append(_DATA_AXIS)
        if _DATA_AXIS not in order:
            order.insert(0, _DATA_AXIS)
        sizes = [self._data if number == _DATA_AXIS else self._roles.model_axes[number].size for number in order]
        places = {number: len(order) - 1 - place for place, number in enumerate(order)}
        cutting = model_axes_of(layout, axis_count, self._roles)
        return tuple(sizes), tuple(tuple(places[number] for number in numbers) for numbers in cutting)


def _by_rule(rule: CutRule, axis_count: int) -> tuple[Shape, ...]:
    """Return the tensor map that a rule gives; data parallel is the slower device axis."""
    tensor_map: list[list[int]] = [[] for _ in range(axis_count)]
    for axis, role in rule.axes:
        if axis >= axis_count:
            raise LayoutError(f"has no axis {axis}, which {option('cuts', [rule.pattern])} names: it has {axis_count}")
        tensor_map[axis].append(int(role == _DATA))
    return tuple(map(tuple, tensor_map))

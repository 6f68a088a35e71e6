"""Parameters under the names that Megatron-Core's own layers give them, one for each layer and each expert.

experts.weight1 [experts, H, 2 F]         local_experts.5.linear_fc1.weight [2 F, H]
experts.weight2 [experts, F, H]           local_experts.5.linear_fc2.weight [H, F]
experts.linear_fc1.weight5                local_experts.5.linear_fc1.weight
any name of a stored tensor, see `names`
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product

from msgspec.structs import replace

from reshard.core.layouts.torch_dist.names import StoredName, parse_stored
from reshard.core.plan.model import ReshardedParameter
from reshard.core.tensor.segments import transposed, unstacked
from reshard.core.text.options import option

_GROUPED = re.compile(r"(.*\.experts\.)weight([12])", re.ASCII | re.DOTALL)
_OF_ENGINE = re.compile(r"(.*\.experts\.)(linear_fc[12]\.(?:weight|bias))(\d+)", re.ASCII | re.DOTALL)


def canonical(parameters: Sequence[ReshardedParameter], problems: list[str]) -> Iterator[ReshardedParameter]:
    """Yield parameters under these names; a problem for those of which there would be two of a name."""
    names: dict[str, str] = {}
    for parameter in parameters:
        for each in _renamed(parameter, problems):
            if each.name in names:
                problems.append(f"parameter {each.name!r} is made of {names[each.name]!r} and of {parameter.name!r}")
            names[each.name] = parameter.name
            yield each


def _renamed(parameter: ReshardedParameter, problems: list[str]) -> Iterator[ReshardedParameter]:
    if match := _GROUPED.fullmatch(parameter.name):
        name = StoredName((f"{match[1]}local_experts.", f".linear_fc{match[2]}.weight"))
        if len(parameter.shape) != 3:
            problems.append(
                f"parameter {parameter.name!r} has the shape {list(parameter.shape)}, not that of stacked experts, "
                f"[experts, rows, columns]; leave it out, {option('exclude', [parameter.name])}, or change its shape, "
                f"{option('changes')}"
            )
            return
        yield from (_transposed(each) for each in _split(parameter, name))
        return
    if match := _OF_ENGINE.fullmatch(parameter.name):
        yield _named(parameter, f"{match[1]}local_experts.{match[3]}.{match[2]}")
        return
    name = parse_stored(parameter.name)
    if name.half is not None or len(parameter.shape) < name.stacked_axes:
        problems.append(f"parameter {parameter.name!r} {list(parameter.shape)} has no place in a model of Megatron's")
        return
    yield from _split(parameter, name)


def _split(parameter: ReshardedParameter, name: StoredName) -> Iterator[ReshardedParameter]:
    axes = name.stacked_axes
    for index in product(*map(range, parameter.shape[:axes])):
        pieces, shape = parameter.pieces, parameter.shape
        for number in index:
            pieces, shape = unstacked(pieces, shape, number), shape[1:]
        yield _named(replace(parameter, pieces=pieces, shape=shape), name.parameter(index))


def _named(parameter: ReshardedParameter, name: str) -> ReshardedParameter:
    if name == parameter.name:
        return parameter
    return replace(parameter, name=name, steps=tuple(dict.fromkeys((*parameter.steps, "renamed"))))


def _transposed(parameter: ReshardedParameter) -> ReshardedParameter:
    return replace(
        parameter,
        pieces=transposed(parameter.pieces, (1, 0)),
        shape=parameter.shape[::-1],
        steps=tuple(dict.fromkeys((*parameter.steps, "transposed"))),
    )

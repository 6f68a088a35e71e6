"""Which states of an optimizer a rank's file has, and which parameters must have them."""

from collections.abc import Iterator, Sequence

from reshard.core.errors import LayoutError
from reshard.core.files.model import OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.layouts.megatron.model_order import order_in_model
from reshard.core.layouts.megatron.optimizer_writing import (
    MASTER,
    MOMENTS,
    OptimizedParameter,
    OptimizerSettings,
)
from reshard.core.layouts.megatron.shapes import file_shape
from reshard.core.layouts.megatron.spots import ModelPlacing, parse_name
from reshard.core.layouts.megatron.target import MegatronTarget
from reshard.core.plan.model import ReshardedParameter
from reshard.core.text.options import option

_BUFFER = ".expert_bias"
"""Tensors of a model that are no parameters end so."""
_OF_EXPERTS = ".mlp.experts."
_FULL = "Float32"


def masters_of_full_weights(parameters: Sequence[ReshardedParameter]) -> frozenset[str]:
    """Return the names of masters for which an optimizer has no place: their weights are as wide."""
    full = {each.name for each in parameters if each.dtype.name == _FULL}
    names = {each.name: parse_name(each.name) for each in parameters}
    return frozenset(name for name, parsed in names.items() if parsed.slot == MASTER and parsed.weight in full)


def check_states(
    parameters: Sequence[ReshardedParameter], placing: ModelPlacing, target: MegatronTarget
) -> Iterator[str]:
    """Yield what is wrong with the states of an optimizer, if there are any."""
    states: dict[str, set[str]] = {}
    for each in parameters:
        name = parse_name(each.name)
        if name.slot:
            states.setdefault(name.weight, set()).add(name.slot)
    if not states:
        return
    leave_out = f"leave all optimizer state out: {option('select', 'weights-only')}"
    try:
        OptimizerSettings.of(target.common)
    except LayoutError as error:
        yield error.marked
        return
    if not target.iteration:
        yield f"Megatron loads no optimizer of a release: give {option('iteration', 'N')}, or {leave_out}"
    if placing.is_tied and placing.has_mtp and placing.last != (0, 0):
        yield f"Megatron cannot load optimizer state of a tied embedding that predicts several tokens: {leave_out}"
    for each in parameters:
        name = parse_name(each.name)
        if name.slot:
            continue
        expected = set() if each.name.endswith(_BUFFER) else {*MOMENTS, *([] if each.dtype.name == _FULL else [MASTER])}
        found = states.get(each.name, set())
        if found != expected:
            differing = ", ".join(sorted(found ^ expected))
            yield f"parameter {each.name!r} {'lacks' if expected - found else 'has'} {differing} of Adam: {leave_out}"
            continue
        try:
            order_in_model(each.name)
        except LayoutError as error:
            yield f"{error.marked}: {leave_out}"


def optimized_parameters(placing: ModelPlacing, stage: int, entries: Sequence[OutputEntry]) -> list[OptimizedParameter]:
    """Return the parameters of a rank's model that have states, in the order of its modules; none without states."""
    places = _places(entries)
    found = []
    for entry in entries:
        if entry.name not in places:
            continue
        name = parse_name(entry.name)
        for spot in placing.spots(name):
            if spot.stage == stage:
                local = placing.local_expert(spot.name)
                parameter = OptimizedParameter(
                    decays=_axes(name.weight, entry) > 1 and not local.endswith(".bias"),
                    is_expert=placing.sizes.expert > 1 and _OF_EXPERTS in local,
                    states=places[entry.name],
                )
                found.append(((spot.chunk, *order_in_model(local)), parameter))
    return [parameter for _, parameter in sorted(found, key=lambda each: each[0])]


def _places(entries: Sequence[OutputEntry]) -> dict[str, dict[str, TensorPlace]]:
    """Weight -> slot -> the place of its state."""
    places: dict[str, dict[str, TensorPlace]] = {}
    for entry in entries:
        name = parse_name(entry.name)
        if name.slot:
            of_weight = places.setdefault(name.weight, {})
            of_weight[name.slot] = TensorPlace(entry.name, file_shape(name.weight, entry.shape))
    return places


def _axes(weight: str, entry: OutputEntry) -> int:
    return len(file_shape(weight, entry.shape))

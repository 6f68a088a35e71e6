"""Which of an optimizer's states are known by the names of parameters: those that lie as the masters do.

An optimizer sees a rank's part of a group as one parameter. A state of its length has an element for each of the
part's; the keys below are those of optimizers that treat each element alone, whatever the shape of its parameter.
"""

from collections.abc import Iterable, Mapping, Sequence

from reshard.core.layouts.deepspeed.optimizer_file import FlatGroup, OptimizerFile
from reshard.core.layouts.deepspeed.placing import FlatPlaces
from reshard.core.runtime.wording import listed, shortened

USUAL_KEY = "exp_avg"
_KEYS = (USUAL_KEY, "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
_MAX_LISTED = 6


def state_name(key: str, name: str) -> str:
    """Return the name of a parameter's state."""
    return f"{key}.{name}"


def state_keys(places: FlatPlaces, optimizers: Sequence[OptimizerFile]) -> tuple[Mapping[int, tuple[str, ...]], str]:
    """Return the keys of the states of each group; or none, and why they are not known."""
    keys: dict[int, tuple[str, ...]] = {}
    for group in dict.fromkeys(parameter.group for parameter in places.parameters):
        keys[group] = tuple(optimizers[0].groups[group].states)
        for file in optimizers:
            if problem := _problem(file, group, optimizers[0].groups[group], places.part_lengths[group]):
                return {}, f"{file.file.location}: {problem}"
    without = [group for group, found in keys.items() if not found]
    if without and len(without) < len(keys):
        return {}, f"{optimizers[0].file.location}: the optimizer has no states of group {without[0]}"
    return keys, ""


def _problem(file: OptimizerFile, group: int, first: FlatGroup, part_length: int) -> str:
    """Why a rank's states of a group are not known, or not those of the `first` rank; empty if they are."""
    part = file.groups[group]
    if part.states.keys() != first.states.keys():
        return f"the optimizer's states of group {group} are {_shown(part.states)}, on rank 0 {_shown(first.states)}"
    if unknown := [key for key in part.states if key not in _KEYS]:
        return f"the optimizer has {_shown(unknown)}, which reshard does not know to be of single elements"
    shapes = (part.master.shape, (part_length,))
    for key, state in part.states.items():
        if state.shape not in shapes or state.extent is None:
            return f"{key!r} of group {group} has the shape {list(state.shape)}, its masters {list(part.master.shape)}"
        if state.dtype != first.states[key].dtype:
            return f"{key!r} of group {group} is {state.dtype.name}, on rank 0 {first.states[key].dtype.name}"
    return ""


def _shown(keys: Iterable[str]) -> str:
    return listed([shortened(repr(key), 40) for key in keys], _MAX_LISTED) or "none"

"""One rank's file of an optimizer, as data, and which of its tensors belong to which of the model.

    optim_world_size_4_rank_0.pt    {"state": {number: {"step": tensor, "exp_avg": DTensor, …}}, "param_groups": […]}

Numbers are those of the model's parameters, in its order: the DTensors of its file, a tied one once. They are known
only if all parameters are in one group: several ones number theirs group by group.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing

from reshard.core.errors import CheckpointError, LayoutError
from reshard.core.files.torch_file import text_fields
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.fsdp.dtensors import Cut, LocalShard, ShardReader
from reshard.core.layouts.fsdp.names import RankName
from reshard.core.layouts.fsdp.rank_file import ModelFile, RankFile, read_root
from reshard.core.layouts.placed_shards import PlacedShard
from reshard.core.layouts.state_numbers import read_number
from reshard.core.runtime.pickled import Pairs
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location

SLOTS = ("exp_avg", "exp_avg_sq")
_MAYBE = "max_exp_avg_sq"
_STEP = "step"
_STATE, _GROUPS, _NUMBERS = "state", "param_groups", "params"
_MAX_LISTED = 4

Cuts = Mapping[str, Cut]
"""Parameter -> how it is cut, in the model's order; tied ones are there once."""
States = Mapping[str, Mapping[str, object]]
"""Parameter -> its state, by slot."""


class OptimizerFile(Record):
    """What a rank has of the optimizer.

    Attributes:
        shards: its states; none if there is a `problem`: they are not known by names.
        step: how many steps it says that it has done.
        settings: numbers such as its learning rate, which all ranks have alike.
    """

    file: RankFile
    shards: tuple[PlacedShard, ...]
    problem: str
    step: float | None
    settings: tuple[tuple[object, object], ...]


def state_names(name: str) -> list[str]:
    """Return the names of the states that a parameter surely has."""
    return [f"{slot}.{name}" for slot in SLOTS]


def parameter_cuts(model: ModelFile, tied: Mapping[str, str]) -> Cuts:
    """Return the parameters of a model that an optimizer numbers; `tied` ones are others' second names."""
    return {name: each.cut for name, each in model.shards.items() if not each.is_plain and name not in tied}


def read_optimizer_file(location: Location, name: RankName, cuts: Cuts) -> OptimizerFile:
    """Read a rank's optimizer from its headers, and its number of steps.

    Raises:
        CheckpointError: it is damaged, or no state dict of an optimizer.
        StorageError: it cannot be read.
    """
    with closing(open_source(location)) as file:
        root = text_fields(read_root(file))
        if not root:
            raise CheckpointError(f"{location}: is not the state dict of an optimizer")
        step = read_number(file, _first_step(root))
        opened = RankFile.of(name, file)
    shards, problem = tuple[PlacedShard, ...](), ""
    try:
        shards = tuple(_placed_states(root, ShardReader(name.rank, name.world), cuts))
    except LayoutError as error:
        problem = f"{location}: {error.marked}"
    return OptimizerFile(opened, shards, problem, step, _settings(root))


def _placed_states(root: Mapping[str, object], reader: ShardReader, cuts: Cuts) -> Iterator[PlacedShard]:
    """The states in a rank's file, under the names of their parameters."""
    for name, slots in _states_by_name(root, cuts).items():
        for slot, shard in _moments(reader, name, slots, cuts[name]):
            yield PlacedShard(f"{slot}.{name}", shard.cut.shape, shard.box, shard.stored)


def _settings(root: Mapping[str, object]) -> tuple[tuple[object, object], ...]:
    """The numbers among an optimizer's settings."""
    groups = root.get(_GROUPS)
    items = [pair for group in groups if isinstance(group, Pairs) for pair in group] if type(groups) is list else []
    return tuple((key, value) for key, value in items if isinstance(value, int | float))


def _first_step(root: Mapping[str, object]) -> object:
    """The number of steps that the first state has: nested below its parameter, or in one dict of all."""
    states = root.get(_STATE)
    for _, state in states if isinstance(states, Pairs) else ():
        fields = text_fields(state) or {}
        if _STEP in fields:
            return fields[_STEP]
    return next((value for key, value in root.items() if key.startswith("state.") and key.endswith(".step")), None)


def _moments(reader: ShardReader, name: str, slots: Mapping[str, object], cut: Cut) -> Iterator[tuple[str, LocalShard]]:
    there = set(slots) - {_STEP}
    if not set(SLOTS) <= there <= {*SLOTS, _MAYBE}:
        raise LayoutError(f"the state of {name!r} has {listed(sorted(slots), _MAX_LISTED) or 'nothing'}, not Adam's")
    for slot in sorted(there):
        what = f"the {slot} of {name!r}"
        if isinstance(slots[slot], StoredTensor):
            raise LayoutError(f"{what} is a plain tensor: FSDP1 saves flat pieces that have no names")
        try:
            shard = reader.shard(slots[slot])
        except LayoutError as error:
            raise LayoutError(f"{what}: {error.marked}") from error
        own = shard.cut
        if (own.shape, own.placements, own.sizes) != (cut.shape, cut.placements, cut.sizes):
            raise LayoutError(f"{what} is {own}, its parameter is {cut}")
        yield slot, shard


def _states_by_name(root: Mapping[str, object], cuts: Cuts) -> States:
    if _STATE not in root:
        return _flattened(root, cuts)
    states, groups = root[_STATE], root.get(_GROUPS)
    if not isinstance(states, Pairs) or type(groups) is not list:
        raise LayoutError("it has no states and groups of parameters, as PyTorch's optimizers have")
    listed_keys = [key for group in groups for key in _keys(group)]
    keys = [key for key, _ in states]
    if listed_keys and all(isinstance(key, str) for key in (*listed_keys, *keys)):
        if unknown := [repr(key) for key in listed_keys if key not in cuts]:
            raise LayoutError(f"it has {listed(unknown, _MAX_LISTED)}, which the model does not have")
        return _each_state(states, {key: str(key) for key in listed_keys})
    if len(groups) != 1:
        raise LayoutError(f"it has {counted(len(groups), 'group')} of parameters, and does not say which are in which")
    if not all(type(key) is int for key in listed_keys) or listed_keys != list(range(len(cuts))):
        raise LayoutError(
            f"it numbers {counted(len(listed_keys), 'parameter')}, but not the {len(cuts)} of the model from 0 on"
        )
    return _each_state(states, dict(enumerate(cuts)))


def _keys(group: object) -> list[object]:
    """The numbers or names of a group's parameters."""
    keys = (text_fields(group) or {}).get(_NUMBERS)
    if type(keys) is not list or not all(type(key) in (int, str) for key in keys):
        raise LayoutError("it has a group without numbers of parameters")
    return keys


def _each_state(states: Pairs, names: Mapping[object, str]) -> States:
    found: dict[str, Mapping[str, object]] = {}
    for key, state in states:
        slots = text_fields(state)
        if type(key) not in (int, str) or key not in names or names[key] in found or slots is None:
            raise LayoutError(f"it has a state {str(key)[:40]!r} of no parameter, or two of one")
        found[names[key]] = slots
    return found


def _flattened(root: Mapping[str, object], cuts: Cuts) -> States:
    """States with keys such as `state.model.norm.weight.exp_avg`."""
    found: dict[str, dict[str, object]] = {}
    for key, value in root.items():
        kind, _, path = key.partition(".")
        name, _, slot = path.rpartition(".")
        if kind == _GROUPS:
            continue
        if kind != _STATE or name not in cuts:
            raise LayoutError(f"it has {key[:100]!r}, which is no state of a parameter of the model")
        found.setdefault(name, {})[slot] = value
    return found

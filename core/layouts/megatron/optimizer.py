"""Which tensors of an optimizer belong to which tensors of the model: Megatron saves them without names.

With expert parallelism, experts have an optimizer of their own: a list has that of all other parameters, then that of
experts.

A plain optimizer numbers its states. First come the parameters with weight decay, those of more than one axis but
biases, then the others, each in the order of the model; `fp32_from_fp16_params` has their float32 masters in groups.

A distributed optimizer has a flat buffer for all masters of a chunk, one for each kind of state, in `distrib_optim.pt`.
The parameters lie there in the reverse order of the model, each at a multiple of 64 elements. What several ranks share
may be in the file of one of them alone.

Either mapping is proven by the masters: rounded to the model's dtype, they are the model (`masters`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.errors import LayoutError
from reshard.core.files.torch_file import text_fields
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.megatron.cuts import Part
from reshard.core.layouts.megatron.names import OPTIMIZER_NAME
from reshard.core.layouts.megatron.placing import PlacedTensor
from reshard.core.layouts.megatron.rank_file import RankFile
from reshard.core.runtime.pickled import Pairs
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted
from reshard.core.tensor.slices import Extent

_SLOTS = ("exp_avg", "exp_avg_sq")
_MASTER = "param"
_MASTER_DTYPE = "Float32"
_ALIGNMENT = 64
_MAX_LISTED = 8
_OF_EXPERTS = ".mlp.experts."
_BUFFER = ".expert_bias"
"""Tensors of the model that are no parameters end so."""


class OptimizerState(Record):
    """A tensor of an optimizer: the state of a tensor of the model, or its master."""

    slot: str
    placed: PlacedTensor
    stored: StoredTensor
    model: StoredTensor

    @property
    def name(self) -> str:
        """Its name in the whole checkpoint."""
        return state_name(self.slot, self.placed.name)

    @property
    def is_master(self) -> bool:
        """True for a master, which is the tensor of the model in a wider dtype."""
        return self.slot == _MASTER


class _Parameter(Record):
    placed: PlacedTensor
    stored: StoredTensor

    @property
    def has_decay(self) -> bool:
        return len(self.stored.shape) > 1 and not self.placed.local.endswith(".bias")


class _Share(Record):
    """The parameters of one optimizer, in each chunk of the model."""

    chunks: tuple[tuple[_Parameter, ...], ...]
    is_expert: bool

    @property
    def parameters(self) -> list[_Parameter]:
        return [parameter for chunk in self.chunks for parameter in chunk]


def state_name(slot: str, name: str) -> str:
    """Return the name of a parameter's state, as Megatron's own distributed checkpoints have it."""
    return f"optimizer.state.{slot}.{name}"


def state_names(name: str) -> list[str]:
    """Return the names of all states of a parameter."""
    return [state_name(slot, name) for slot in (*_SLOTS, _MASTER)]


def has_state(rank: RankFile) -> bool:
    """True if a rank has saved an optimizer."""
    return rank.optimizer is not None


def is_distributed(rank: RankFile) -> bool:
    """True if a rank has saved an optimizer whose states are in a file of their own."""
    for optimizer in _each(rank.optimizer):
        fields = text_fields(optimizer)
        inner = None if fields is None else text_fields(fields.get("optimizer"))
        if inner is not None and "state" not in inner:
            return True
    return False


def plain_states(rank: RankFile, chunks: Sequence[Sequence[PlacedTensor]]) -> list[OptimizerState]:
    """Return the states of an optimizer that is not distributed.

    Raises:
        LayoutError: which are whose is not known; says why.
    """
    shares = _shares(rank, chunks)
    return [state for share, saved in _paired(shares, rank.optimizer) for state in _numbered_states(share, saved)]


def distributed_states(
    rank: RankFile, chunks: Sequence[Sequence[PlacedTensor]], buffers: object
) -> list[OptimizerState]:
    """Return the states of a distributed optimizer, in the buffers of its own file.

    Raises:
        LayoutError: which are whose is not known; says why.
    """
    shares = _shares(rank, chunks)
    found: list[OptimizerState] = []
    for share, saved in _paired(shares, buffers):
        if saved is None and len(shares) > 1 and not share.is_expert:
            continue  # another rank, which has the same parameters, has saved their states
        for parameters, buffer in zip(share.chunks, _buffers(saved, len(share.chunks)), strict=True):
            found += _flat_states(parameters, buffer)
    return found


def saved_parts(states: Iterable[OptimizerState]) -> frozenset[tuple[str, Part]]:
    """Return names of parameters, and the parts of them that have states."""
    return frozenset((state.placed.name, state.placed.part) for state in states if state.is_master)


def without_state(chunks: Sequence[Sequence[PlacedTensor]], there: frozenset[tuple[str, Part]]) -> str:
    """Return the name of a rank's first parameter that has no states, of its own or of another rank; empty if none."""
    placed = (each for chunk in chunks for each in chunk if not each.local.endswith(_BUFFER))
    return next((each.local for each in placed if (each.name, each.part) not in there), "")


def _shares(rank: RankFile, chunks: Sequence[Sequence[PlacedTensor]]) -> list[_Share]:
    """The parameters of each optimizer of a rank, in Megatron's order."""
    by_kind: dict[bool, list[tuple[_Parameter, ...]]] = {False: [], True: []}
    for tensors, placed in zip(rank.chunks, chunks, strict=True):
        parameters = [_Parameter(each, tensors[each.local]) for each in placed if not each.local.endswith(_BUFFER)]
        for of_experts, found in by_kind.items():
            found.append(tuple(each for each in parameters if _has_own_optimizer(rank, each) is of_experts))
    shares = [_Share(tuple(found), of_experts) for of_experts, found in by_kind.items()]
    return [share for share in shares if share.parameters]


def _has_own_optimizer(rank: RankFile, parameter: _Parameter) -> bool:
    return rank.args.expert_size > 1 and _OF_EXPERTS in parameter.placed.local


def _paired(shares: Sequence[_Share], saved: object) -> Iterator[tuple[_Share, object]]:
    optimizers = _each(saved)
    if len(optimizers) != len(shares):
        raise LayoutError(
            f"it has {counted(len(optimizers), 'optimizer')}, by its expert parallelism there are {len(shares)}"
        )
    yield from zip(shares, optimizers, strict=True)


def _each(saved: object) -> Sequence[object]:
    return saved if type(saved) is list else [saved]


def _numbered_states(share: _Share, saved: object) -> Iterator[OptimizerState]:
    """The states of a share of the parameters, whose optimizer numbers them."""
    for parameter in share.parameters:
        if parameter.stored.dtype.name == _MASTER_DTYPE:
            raise LayoutError(f"{parameter.placed.local!r} is float32, and has no master to prove whose the states are")
    fields = _fields(saved, "the optimizer")
    inner = _fields(fields.get("optimizer"), "the optimizer")
    states = _by_number(inner.get("state"))
    groups, masters = inner.get("param_groups"), fields.get("fp32_from_fp16_params")
    if not isinstance(groups, list) or not isinstance(masters, list) or len(groups) != len(masters):
        raise LayoutError("the optimizer has no float32 master for each of its groups")
    left = {decays: [each for each in share.parameters if each.has_decay is decays] for decays in (True, False)}
    for group, of_group in zip(groups, masters, strict=True):
        numbers, decays = _group(group, is_expert=share.is_expert)
        parameters = left.pop(decays, None)
        if parameters is None or not isinstance(of_group, list) or not len(parameters) == len(numbers) == len(of_group):
            raise LayoutError("the groups of the optimizer are not those with and without weight decay")
        for number, parameter, master in zip(numbers, parameters, of_group, strict=True):
            slots = dict(_fields(states.pop(number, None), f"the optimizer's state {number}"))
            slots.pop("step", None)
            if set(slots) != set(_SLOTS):
                raise LayoutError(f"the optimizer's state {number} has {', '.join(slots) or 'nothing'}, not Adam's")
            for slot in _SLOTS:
                yield _state(slot, parameter, slots[slot])
            yield _state(_MASTER, parameter, master)
    if states or any(left.values()):
        raise LayoutError("the optimizer has other parameters than the model")


class _Buffer(Record):
    """The flat tensors of a chunk, and how many of their elements are used."""

    flat: Mapping[str, StoredTensor]
    numel: int


def _flat_states(parameters: Sequence[_Parameter], buffer: _Buffer) -> Iterator[OptimizerState]:
    """The states of a chunk's parameters, which lie one after the other."""
    stop, several = 0, f"{buffer.numel}: it has several buckets"
    for parameter in reversed(parameters):
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
        stop = start + math.prod(parameter.stored.shape)
        if stop > buffer.numel:
            raise LayoutError(f"its parameters need {stop} elements or more, its buffer has {several}")
        for slot, flat in buffer.flat.items():
            yield _state(slot, parameter, _cut_out(flat, start, parameter.stored))
    if stop != buffer.numel:
        raise LayoutError(f"its parameters take {stop} elements, its buffer has {several}")


def _buffers(saved: object, chunks: int) -> list[_Buffer]:
    """The buffers of all chunks, which are numbered."""
    if not isinstance(saved, Pairs) or text_fields(saved) != {"buckets_coalesced": True}:
        raise LayoutError("its buffers are not coalesced")
    numbered = _by_number(Pairs((key, value) for key, value in saved if not isinstance(key, str)))
    numbers, expected = sorted(numbered), list(range(chunks))
    if numbers != expected:
        raise LayoutError(f"it has the buffers {numbers[:_MAX_LISTED]}, for the chunks {expected} of the model")
    return [_buffer(numbered[chunk]) for chunk in range(chunks)]


def _buffer(kinds: object) -> _Buffer:
    """The buffer of a chunk, whose parameters are all of one dtype."""
    if not isinstance(kinds, Pairs) or len(kinds) != 1:
        raise LayoutError("a chunk of the model has not one buffer of one dtype")
    fields = dict(_fields(kinds[0][1], "its buffer"))
    numel = fields.pop("numel_unpadded", None)
    flat = {slot: tensor for slot, tensor in fields.items() if isinstance(tensor, StoredTensor)}
    if set(flat) != set(fields) or set(flat) != {_MASTER, *_SLOTS}:
        raise LayoutError(f"its buffer has {', '.join(fields)}, not Adam's states")
    if isinstance(numel, bool) or not isinstance(numel, int):
        raise LayoutError("its buffer does not say how many of its elements are used")
    for slot, tensor in flat.items():
        if tensor.extent is None or len(tensor.shape) != 1 or tensor.shape[0] < numel:
            raise LayoutError(f"its {slot} is not a row of {numel} elements")
    return _Buffer(flat, numel)


def _cut_out(buffer: StoredTensor, start: int, like: StoredTensor) -> StoredTensor:
    """Elements of a buffer from `start` on, of the shape of a tensor."""
    if buffer.extent is None:
        raise LayoutError("its buffer is not in order")
    item = buffer.dtype.itemsize
    extent = Extent(buffer.extent.offset + start * item, math.prod(like.shape) * item)
    return replace(buffer, shape=like.shape, extent=extent)


def _group(group: object, *, is_expert: bool) -> tuple[list[int], bool]:
    """The numbers of a group's states, and whether it has weight decay."""
    fields = _fields(group, "a group of the optimizer")
    numbers, decay = fields.get("params"), fields.get("wd_mult")
    if bool(fields.get("is_expert_parallel")) is not is_expert:
        raise LayoutError(f"a group of the optimizer is {'not ' if is_expert else ''}of experts")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers) or decay not in (0, 1):
        raise LayoutError("the optimizer has a group without numbers of parameters, or without wd_mult")
    return numbers, decay == 1


def _state(slot: str, parameter: _Parameter, stored: object) -> OptimizerState:
    model = parameter.stored
    if not isinstance(stored, StoredTensor) or stored.shape != model.shape or stored.dtype.name != _MASTER_DTYPE:
        raise LayoutError(f"the {slot} of {parameter.placed.local!r} is not float32 of its shape {list(model.shape)}")
    return OptimizerState(slot, parameter.placed, stored, model)


def _by_number(value: object) -> dict[int, object]:
    if not isinstance(value, Pairs) or not all(type(key) is int for key, _ in value):
        raise LayoutError("the optimizer's states are not numbered")
    found = {key: state for key, state in value if isinstance(key, int)}
    if len(found) != len(value):
        raise LayoutError("the optimizer's states have numbers twice")
    return found


def _fields(value: object, what: str) -> Mapping[str, object]:
    fields = text_fields(value)
    if fields is None:
        raise LayoutError(f"{what} is not one of a single model of Megatron, as {OPTIMIZER_NAME} or groups have it")
    return fields

"""A rank's file of the optimizer, `…_optim_states.pt`, as data: its part of each flat group, and what lies beside it.

    {"optimizer_state_dict": {"single_partition_of_fp32_groups": […], "base_optimizer_state": {…}, …}}   stages 1, 2
    {"optimizer_state_dict": {"fp32_flat_groups": […], "optimizer_state_dict": {…}, …}}                  stage 3

A group's states lie under a number in `state`, which `param_groups` gives; those of an elastic checkpoint are a list.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from reshard.core.errors import CheckpointError
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.deepspeed.fields import FRAGMENT, STAGE, Fields, read_fields
from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.runtime.pickled import PickledObject
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location

_ROOT = "optimizer_state_dict"
_KEYS = (_ROOT, "ds_version")
_JOINED, _PARTITIONED = "single_partition_of_fp32_groups", "fp32_flat_groups"
_STEP = "step"
_FLOATS = ("Float32", "BFloat16", "Float16", "Float64")
_OTHER_GROUPS = "ds_zero_partition_groups"


class Fragment(Record):
    """Where a parameter is in a rank's part: its elements there, and the first of them, counted in the part."""

    count: int
    start: int


class FlatGroup(Record):
    """A rank's part of a group.

    Attributes:
        master: the weights, in one row.
        states: the optimizer's, by their keys, as far as they are tensors with axes.
        step: what tells the number of steps from another: a number, or the CRC of the tensor with it.
        padding: elements at the end of its part that belong to no parameter; None if it does not say.
        alignment: elements after each parameter that belong to none; None if there are none.
        fragments: where parameters are; None if it does not say.
    """

    master: StoredTensor
    states: Mapping[str, StoredTensor]
    step: object
    padding: int | None
    alignment: tuple[int, ...] | None
    fragments: Mapping[str, Fragment] | None


class OptimizerFile(Record):
    """What a rank has saved; `stage` is None where the optimizer accumulates in float32, of stage 1 or none.

    `partition_counts` are the numbers of ranks that share its groups.
    """

    file: ShardFile
    version: str
    stage: int | None
    partition_counts: tuple[int, ...]
    groups: tuple[FlatGroup, ...]


def read_optimizer_file(location: Location) -> OptimizerFile:
    """Read a rank's file from its headers.

    Raises:
        CheckpointError: it is damaged, or not what DeepSpeed saves.
        StorageError: it cannot be read.
    """
    file, fields = read_fields(location, *_KEYS)
    if _ROOT not in fields.items:
        raise CheckpointError(f"{location}: has no {_ROOT!r}: it is not DeepSpeed's file of an optimizer")
    inner = fields.below(_ROOT)
    if inner.items.get(_OTHER_GROUPS) is not None:
        raise inner.refusal(
            _OTHER_GROUPS, "that some parameters are divided among other ranks, which reshard does not read"
        )
    version = fields.items.get("ds_version") or inner.items.get("ds_version")
    groups = _groups(inner)
    _check_apart(inner, groups)
    return OptimizerFile(file, str(version or ""), _stage(inner), _partition_counts(inner), groups)


def _stage(fields: Fields) -> int | None:
    value = fields.items.get("zero_stage")
    if isinstance(value, PickledObject) and (value.made_by.module, value.made_by.name) == STAGE:
        value = value.arguments[0] if len(value.arguments) == 1 else value
    if value is None:
        return None
    if type(value) is not int or value not in (1, 2, 3):
        raise fields.refusal("zero_stage", "not 1, 2 or 3")
    return value


def _partition_counts(fields: Fields) -> tuple[int, ...]:
    value = fields.items.get("partition_count")
    return tuple(fields.number("partition_count", each) for each in (value if type(value) is list else [value]))


def _groups(fields: Fields) -> tuple[FlatGroup, ...]:
    is_joined = _JOINED in fields.items
    if is_joined == (_PARTITIONED in fields.items):
        raise CheckpointError(f"{fields.location}: has neither {_JOINED!r} nor {_PARTITIONED!r}, or has both")
    key = _JOINED if is_joined else _PARTITIONED
    masters = [_row(fields, each, key) for each in fields.list(key)]
    states = _states(fields, "base_optimizer_state" if is_joined else _ROOT, len(masters))
    paddings = _of_each(fields, "group_paddings", len(masters))
    alignments = _of_each(fields, "param_alignment_paddings", len(masters))
    fragments = _of_each(fields, "param_slice_mappings", len(masters))
    return tuple(
        FlatGroup(
            masters[number],
            _with_axes(states[number]),
            _step(states[number].get(_STEP)),
            None if paddings is None else fields.number("group_paddings", paddings[number]),
            None if alignments is None else _numbers(fields, "param_alignment_paddings", alignments[number]),
            None if fragments is None else _fragments(fields, "param_slice_mappings", fragments[number]),
        )
        for number in range(len(masters))
    )


def _check_apart(fields: Fields, groups: Sequence[FlatGroup]) -> None:
    """Refuse rows that have bytes in common: each is of another group, or another state."""
    rows: list[tuple[int, int, str]] = []
    for number, group in enumerate(groups):
        for key, row in (("masters", group.master), *group.states.items()):
            if row.extent and row.extent.length:
                rows.append((row.extent.offset, row.extent.length, f"{key} of group {number}"))
    for (start, length, one), (other_start, _, other) in pairwise(sorted(rows)):
        if start + length > other_start:
            raise CheckpointError(f"{fields.location}: the {one} and the {other} are the same bytes: damaged")


def _row(fields: Fields, value: object, key: str) -> StoredTensor:
    if not isinstance(value, StoredTensor) or len(value.shape) != 1 or value.extent is None:
        raise fields.refusal(key, "not a list of rows of elements")
    if value.dtype.name not in _FLOATS:
        raise fields.refusal(key, f"of {value.dtype.name}, not of floating-point numbers")
    return value


def _of_each(fields: Fields, key: str, count: int) -> list[object] | None:
    """What a list says of each group; None without it."""
    if fields.items.get(key) is None:
        return None
    found = fields.list(key)
    if len(found) != count:
        raise fields.refusal(key, f"of {len(found)} groups, but there are {count}")
    return found


def _states(fields: Fields, key: str, count: int) -> list[Mapping[str, object]]:
    """The optimizer's states of each group; all empty if none were saved."""
    saved = fields.items.get(key)
    if saved is None:
        return [{}] * count
    if type(saved) is list:
        each = _of_each(fields, key, count) or []
        return [fields.of(value, key).items for value in each]
    inner = fields.below(key)
    numbered = inner.numbered("state")
    numbers = _group_numbers(inner) if numbered else []
    if numbered and len(numbers) != count:
        raise inner.refusal("param_groups", f"of {len(numbers)} flat groups, but there are {count}")
    return [inner.of(numbered[number], "state").items if number in numbered else {} for number in numbers] or [
        {}
    ] * count


def _group_numbers(fields: Fields) -> list[int]:
    """The numbers of the states of all groups, in order."""
    groups = [fields.of(group, "param_groups") for group in fields.list("param_groups")]
    return [group.number("params", number) for group in groups for number in group.list("params")]


def _with_axes(states: Mapping[str, object]) -> dict[str, StoredTensor]:
    """The states of a group that are tensors with axes, but the step, which may be one as well."""
    return {
        key: value for key, value in states.items() if isinstance(value, StoredTensor) and value.shape and key != _STEP
    }


def _step(value: object) -> object:
    if isinstance(value, StoredTensor):
        return value.dtype.name, value.shape, value.crc and value.crc.crc
    return value if isinstance(value, int | float) else None


def _numbers(fields: Fields, key: str, value: object) -> tuple[int, ...]:
    if type(value) is not list:
        raise fields.refusal(key, "not a list of lists")
    return tuple(fields.number(key, each) for each in value)


def _fragments(fields: Fields, key: str, value: object) -> dict[str, Fragment]:
    return {name: _fragment(fields, key, each) for name, each in fields.of(value, key).items.items()}


def _fragment(fields: Fields, key: str, value: object) -> Fragment:
    if not isinstance(value, PickledObject) or (value.made_by.module, value.made_by.name) != FRAGMENT:
        raise fields.refusal(key, "not of addresses of fragments")
    state = fields.of(value.state, key)
    return Fragment(state.number("numel"), state.number("start"))

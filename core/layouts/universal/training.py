"""What a source of DeepSpeed's says of its training, and a universal checkpoint takes over.

    groups                                         settings of each group of the optimizer, but its parameters
    loss_scaler                                    of a training in float16 whose scale changes
    lr_scheduler, global_samples, skipped_steps

It is in the files of ranks, of which the first one's are read. Only plain values are taken: a training may have saved
objects of any class.
"""

from collections.abc import Iterator, Mapping

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file
from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.layouts.deepspeed.fields import Fields, read_fields
from reshard.core.layouts.deepspeed.names import FileKind, parse_rank_name
from reshard.core.runtime.pickle_writing import build_pickle
from reshard.core.runtime.pickled import Global, Pairs, PickledObject, read_objects
from reshard.core.storage.listing import names_in

GROUPS, LOSS_SCALER = "groups", "loss_scaler"
NUMBERS = ("lr_scheduler", "global_samples", "skipped_steps")
_OPTIMIZER, _STATES = "optimizer_state_dict", ("base_optimizer_state", "optimizer_state_dict")
_SCALER = Global("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler")
_PLAIN = (bool, int, float, str)


def training_beside(catalog: CheckpointCatalog) -> bytes:
    """Return what the files of a catalog say of their training, pickled; empty if they are not DeepSpeed's.

    Raises:
        CatalogError: they are damaged.
        StorageError: they cannot be read.
    """
    location = first_file(catalog)
    if parse_rank_name(location.name) is None:
        return b""
    parsed = [each for name in names_in(location.parent) if (each := parse_rank_name(name)) is not None]
    taken: list[tuple[str, object]] = []
    try:
        for kind, take in ((FileKind.MODEL, _of_model), (FileKind.OPTIMIZER, _of_optimizer)):
            for first in sorted(each for each in parsed if each.kind is kind)[:1]:
                _, fields = read_fields(location.parent.child(first.name))
                taken += take(fields)
    except CheckpointError as error:
        raise CatalogError(error.marked) from error
    return build_pickle(Pairs(taken))


def taken_over(training: bytes) -> Mapping[str, object]:
    """Return what is taken over, by its keys; nothing if it is empty."""
    value = read_objects(training) if training else None
    return _items(value)


def shared_settings(groups: list[Pairs]) -> dict[object, object]:
    """Return the settings that all groups have alike."""
    first, *others = [dict(group) for group in groups] or [{}]
    return {key: value for key, value in first.items() if all(key in each and each[key] == value for each in others)}


def groups_of(training: bytes) -> list[Pairs]:
    """Return the settings of each group of the optimizer; none if they are not known."""
    groups = taken_over(training).get(GROUPS)
    return [each for each in groups if isinstance(each, Pairs)] if isinstance(groups, list) else []


def _of_model(fields: Fields) -> Iterator[tuple[str, object]]:
    for key in NUMBERS:
        value = fields.items.get(key)
        if value is not None and _is_plain(value):
            yield key, value


def _of_optimizer(fields: Fields) -> Iterator[tuple[str, object]]:
    inner = _items(fields.items.get(_OPTIMIZER))
    for key in _STATES:
        groups = _items(inner.get(key)).get("param_groups")
        if isinstance(groups, list) and groups and all(isinstance(each, Pairs) for each in groups):
            kept = [Pairs(item for item in each if item[0] != "params") for each in groups]
            if _is_plain(kept):
                yield GROUPS, kept
    scaler = inner.get(LOSS_SCALER)
    if isinstance(scaler, PickledObject) and scaler.made_by == _SCALER and _is_plain(scaler.state):
        yield LOSS_SCALER, scaler


def _items(value: object) -> dict[str, object]:
    return {key: each for key, each in value if isinstance(key, str)} if isinstance(value, Pairs) else {}


def _is_plain(value: object) -> bool:
    match value:
        case Pairs():
            return all(_is_plain(key) and _is_plain(each) for key, each in value)
        case list() | tuple():
            return all(map(_is_plain, value))
    return value is None or isinstance(value, _PLAIN)

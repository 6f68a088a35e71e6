"""A file of the model, `…_model_states.pt`, as data: nothing in it is run.

    {"module": {name: tensor}, "buffer_names": […], "param_shapes": [{name: shape}, …], "shared_params": {…},
     "frozen_param_shapes": {…}, "frozen_param_fragments": {…}, "dp_world_size": 4, "global_steps": 40, …}

A training adds its own keys, the client state, in which anything may be.
"""

from collections.abc import Mapping

from reshard.core.errors import CheckpointError
from reshard.core.files.torch_file import text_fields
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.deepspeed.fields import Fields, read_fields
from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import Location
from reshard.core.tensor.slices import Shape

_EXPERTS = ("ds_autoep_layers", "autoep_layers", "moe_layers")
_KEYS = (
    *("module", "buffer_names", "param_shapes", "shared_params", "frozen_param_shapes", "frozen_param_fragments"),
    *("dp_world_size", "mp_world_size", "global_steps", "ds_version"),
)
_MAX_LISTED = 4

Shapes = Mapping[str, Shape]


class ModelFile(Record):
    """What a file says of the model.

    Attributes:
        module: the tensors of the model: in stage 3 parameters are empty.
        others: names in the module that are not tensors.
        groups: the parameters of each group of the optimizer, in the order of the flat partitions; None without ZeRO.
        tied: name of a parameter -> the one that it is.
        frozen: shapes of parameters without an optimizer; None if it does not say.
        fragments: their values: in stage 3 a part of each.
        steps: steps of the training; None if it does not say.
    """

    file: ShardFile
    module: Mapping[str, StoredTensor]
    others: tuple[str, ...]
    buffers: frozenset[str]
    groups: tuple[Shapes, ...] | None
    tied: Mapping[str, str]
    frozen: Shapes | None
    fragments: Mapping[str, StoredTensor]
    world_size: int
    steps: int | None
    version: str
    left_out: tuple[str, ...]


def read_model_file(location: Location) -> ModelFile:
    """Read a file of the model from its headers.

    Raises:
        CheckpointError: it is damaged, not what DeepSpeed saves, or of a training that reshard does not read.
        StorageError: it cannot be read.
    """
    file, fields = read_fields(location, *_KEYS)
    _check_kind(fields)
    module, others = _tensors(fields)
    return ModelFile(
        file,
        module,
        others,
        _names(fields, "buffer_names"),
        _groups(fields),
        _tied(fields),
        None if fields.items.get("frozen_param_shapes") is None else _frozen(fields),
        {} if fields.items.get("frozen_param_fragments") is None else _fragments(fields),
        fields.number("dp_world_size"),
        None if fields.items.get("global_steps") is None else fields.number("global_steps"),
        str(fields.items.get("ds_version") or ""),
        tuple(key for key, value in fields.items.items() if key not in _KEYS and value is not None),
    )


def _check_kind(fields: Fields) -> None:
    if "module" not in fields.items:
        raise CheckpointError(f"{fields.location}: has no 'module': it is not DeepSpeed's file of a model")
    experts = next((key for key in _EXPERTS if fields.items.get(key)), "")
    if experts:
        raise CheckpointError(
            f"{fields.location}: has {experts!r}: its experts are divided among ranks, which reshard does not read; "
            "load it in its training, and save the model whole from there"
        )
    if fields.items["module"] is None:
        raise CheckpointError(
            f"{fields.location}: has no model in it, as with pipeline parallelism, which reshard does not read; load "
            "it in its training, and save the model whole from there"
        )
    if _is_swapped(fields):
        raise CheckpointError(
            f"{fields.location}: its optimizer was offloaded to NVMe (offload_optimizer in ds_config), so that it is "
            "not in the files of ranks; load it in its training, and save the model whole from there"
        )
    if fields.items.get("mp_world_size") not in (None, 1):
        raise CheckpointError(
            f"{fields.location}: its training had tensor parallelism (mp_world_size "
            f"{fields.number('mp_world_size')}), which reshard does not read; load it there, and save the model whole"
        )


def _is_swapped(fields: Fields) -> bool:
    """True if the optimizer's rows are on NVMe; a configuration of another form says nothing."""
    value: object = fields.items.get("ds_config")
    for key in ("zero_optimization", "offload_optimizer", "device"):
        items = text_fields(value)
        value = None if items is None else items.get(key)
    return value == "nvme"


def _tensors(fields: Fields) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    items = fields.below("module").items
    tensors = {name: value for name, value in items.items() if isinstance(value, StoredTensor)}
    return tensors, tuple(name for name in items if name not in tensors)


def _names(fields: Fields, key: str) -> frozenset[str]:
    names = fields.list(key)
    if not all(isinstance(name, str) for name in names):
        raise fields.refusal(key, "not a list of names")
    return frozenset(map(str, names))


def _groups(fields: Fields) -> tuple[Shapes, ...] | None:
    if fields.items.get("param_shapes") is None:
        return None
    groups = [fields.shapes(each, "param_shapes") for each in fields.list("param_shapes")]
    names = [name for group in groups for name in group]
    if len(set(names)) != len(names):
        raise fields.refusal("param_shapes", "a list with a name twice")
    return tuple(groups)


def _tied(fields: Fields) -> dict[str, str]:
    if fields.items.get("shared_params") is None:
        return {}
    found = fields.below("shared_params").items
    if not all(isinstance(name, str) for name in found.values()):
        raise fields.refusal("shared_params", "not a dict of names")
    return {tied: str(name) for tied, name in found.items()}


def _frozen(fields: Fields) -> Shapes:
    return fields.shapes(fields.items["frozen_param_shapes"], "frozen_param_shapes")


def _fragments(fields: Fields) -> dict[str, StoredTensor]:
    found = fields.below("frozen_param_fragments").items
    others = [name for name, value in found.items() if not isinstance(value, StoredTensor)]
    if others:
        raise fields.refusal("frozen_param_fragments", f"without tensors: {listed(others, _MAX_LISTED)}")
    return {name: value for name, value in found.items() if isinstance(value, StoredTensor)}

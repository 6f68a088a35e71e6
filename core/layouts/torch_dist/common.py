"""common.pt of a `torch_dist` checkpoint: what a training has beside its tensors.

    args                  arguments, an argparse.Namespace
    iteration             number of the iteration
    checkpoint_version    3.0
    content_metadata      how names follow from the layers and from the optimizer
    optimizer             param_groups of each optimizer, with `step`
    opt_param_scheduler, num_floating_point_operations_so_far

Each source of Megatron's has the same keys, beside its tensors or with them.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file
from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.torch_file import read_torch_file
from reshard.core.files.torch_file_writing import plan_torch_file
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.megatron.args import MegatronArgs, parse_args
from reshard.core.layouts.megatron.args_writing import model_args, namespace
from reshard.core.layouts.megatron.names import MODEL_NAME, OPTIMIZER_NAME
from reshard.core.layouts.torch_dist.names import COMMON_NAME, parse_state
from reshard.core.layouts.torch_dist.stacking import Stacking
from reshard.core.layouts.torch_dist.target import TorchDistTarget
from reshard.core.plan.model import ParameterMatch
from reshard.core.runtime.pickle_writing import build_pickle
from reshard.core.runtime.pickled import Global, Pairs, PickledObject, read_objects
from reshard.core.storage.listing import exists
from reshard.core.storage.reading import SourceFile, open_source, read_bytes
from reshard.core.tensor.dtypes import TORCH_DTYPES
from reshard.core.tensor.slices import Extent

_VERSION = 3.0
_LOADABLE = frozenset(
    [
        *(("torch", name) for name in TORCH_DTYPES),
        ("torch", "device"),
        ("argparse", "Namespace"),
        ("types", "SimpleNamespace"),
        ("pathlib", "PosixPath"),
        ("signal", "Signals"),
        ("megatron.core.enums", "ModelType"),
        ("megatron.core.transformer.enums", "AttnBackend"),
    ]
)
"""(module, name) of what Megatron-Core loads from common.pt: torch refuses any other class there."""
_INERT = ("args", "opt_param_scheduler", "rng_state", "rerun_state_machine", "content_metadata")
_KEPT = ("opt_param_scheduler", "num_floating_point_operations_so_far")
_TAKEN = ("args", "content_metadata", *_KEPT)


def common_beside(catalog: CheckpointCatalog) -> bytes:
    """Return what a target takes over of what Megatron saved with the files of a catalog; empty if it saved none.

    It is pickled: arguments, what optimizers have beside their tensors, schedules.

    Raises:
        CatalogError: it is damaged, has something else than data, or is no dict.
        StorageError: it cannot be read.
    """
    location = first_file(catalog)
    if location.name == OPTIMIZER_NAME:
        location = location.parent.child(MODEL_NAME)
    if location.name != MODEL_NAME:
        location = location.parent.child(COMMON_NAME)
        if not exists(location):
            return b""
    try:
        with closing(open_source(location)) as file:
            root = read_torch_file(file, inert=_INERT).root
            if not isinstance(root, Pairs):
                raise CatalogError(f"{location}: is not the dict that Megatron saves")
            return build_pickle(Pairs(_taken(root, file)))
    except CheckpointError as error:
        raise CatalogError(error.marked) from error


def args_beside(catalog: CheckpointCatalog) -> MegatronArgs | None:
    """Return the arguments in common.pt; None without any.

    Raises:
        CatalogError: common.pt is damaged, or its arguments are not those of a training.
        StorageError: it cannot be read.
    """
    location = first_file(catalog).parent.child(COMMON_NAME)
    args = _fields(common_beside(catalog)).get("args")
    return None if args is None else parse_args(args, str(location), needed=("layers",))


def taken_over(common: bytes) -> dict[str, object]:
    """Return what a target takes over, by its keys; none if it is empty."""
    return _fields(common)


def source_args(common: bytes) -> Mapping[str, object]:
    """Return the source's arguments in what a target takes over; none if it is empty."""
    value = _fields(common).get("args")
    if not isinstance(value, PickledObject):
        return {}
    return dict(_text_items(value.state))


def has_plain_optimizer(common: bytes) -> bool:
    """True if the source's training has an optimizer that is not divided among ranks."""
    return "optimizer" in _fields(common) and source_args(common).get("use_distributed_optimizer") is False


def wants_numbered_layers(common: bytes) -> bool:
    """True if the source's training has layers as tensors of their own, even those that are alike."""
    fields = _fields(common)
    content = dict(_text_items(fields.get("content_metadata")))
    frequency = source_args(common).get("moe_layer_freq")
    return (
        bool(content.get("non_homogeneous_layers") or content.get("singleton_local_shards"))
        or isinstance(frequency, list | tuple)
        or (isinstance(frequency, int) and frequency > 1)
    )


def build_common(target: TorchDistTarget, match: ParameterMatch, stacking: Stacking) -> bytes:
    """Return the bytes of common.pt of a target, whose planned parameters have axes for stacked layers and experts."""
    source = {key: value for key, value in _fields(target.common).items() if key == "args" or _is_loadable(value)}
    given = {name: value for name, value in source_args(target.common).items() if _is_loadable(value)}
    shapes = {each.name: each.shape[stacking.axes(each.name) :] for each in match.resharded}
    model = model_args(shapes, {each.name: each.dtype for each in match.resharded}, target.heads, given)
    number = target.iteration
    root: dict[str, object] = {
        "args": namespace(
            {
                **given,
                **model,
                "transformer_impl": "local" if target.is_local else "transformer_engine",
                "use_distributed_optimizer": not target.is_plain,
                "ckpt_format": "torch_dist",
                "iteration": number,
            }
        ),
        "checkpoint_version": _VERSION,
        "iteration": number,
        "content_metadata": {
            "distrib_optim_sharding_type": "fully_reshardable",
            "distrib_optim_fully_reshardable_mem_efficient": False,
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
            **({} if stacking.layers else {"non_homogeneous_layers": True}),
        },
    }
    if any(parse_state(name)[0] for name in shapes):
        root["optimizer"] = _optimizers(
            source.get("optimizer"), number, is_plain=target.is_plain, has_experts=stacking.experts > 0
        )
    root |= {key: source[key] for key in _KEPT if key in source}
    segments = plan_torch_file(root, (), COMMON_NAME.removesuffix(".pt")).segments
    return b"".join(segment for segment in segments if isinstance(segment, bytes))


def _is_loadable(value: object) -> bool:
    """True for data, and for objects of classes that Megatron-Core allows in common.pt."""
    match value:
        case Global():
            return (value.module, value.name) in _LOADABLE
        case PickledObject():
            parts = (value.made_by, *value.arguments, value.state, *(value.pairs or ()), *(value.values or ()))
            return all(map(_is_loadable, parts))
        case list() | tuple():  # pairs, too
            return all(map(_is_loadable, value))
    return True


def _taken(root: Pairs, file: SourceFile) -> Iterator[tuple[object, object]]:
    """What a target takes over, without tensors."""
    for key, value in root:
        if key == "optimizer":
            yield key, _taken_optimizers(value, file)
        elif key in _TAKEN:
            yield key, _without_tensors(value, file)


def _taken_optimizers(value: object, file: SourceFile) -> object:
    """The groups and the step of each optimizer: of several, by their numbers."""
    if type(value) is list:  # as files of ranks have several
        value = Pairs(enumerate(value))
    if isinstance(value, Pairs) and value and all(isinstance(key, int) for key, _ in value):
        return Pairs((key, _taken_optimizer(each, file)) for key, each in value)
    return _taken_optimizer(value, file)


def _taken_optimizer(value: object, file: SourceFile) -> Pairs:
    inner = dict(_text_items(dict(_text_items(value)).get("optimizer", value)))
    listed = inner.get("param_groups")
    groups = [group for group in (listed if isinstance(listed, list) else []) if isinstance(group, Pairs)]
    state = inner.get("state")
    states = [each for _, each in state if isinstance(each, Pairs)] if isinstance(state, Pairs) else []
    steps: list[object] = [dict(_text_items(each)).get("step") for each in (*groups, *states)]
    steps.append(dict(_text_items(state)).get("common_step"))
    numbers = (_without_tensors(each, file) for each in steps)
    step = next((each for each in numbers if isinstance(each, int | float)), None)
    kept = [Pairs(each for each in group if each[0] not in ("params", "step")) for group in groups]
    return Pairs([("param_groups", _without_tensors(kept, file)), ("step", step)])


def _optimizers(source: object, number: int, *, is_plain: bool, has_experts: bool) -> object:
    """What optimizers have beside their tensors: as the source's, or steps alone, with one of experts' own."""
    if isinstance(source, Pairs):
        if all(isinstance(key, int) for key, _ in source):
            return {key: _optimizer(value, number, is_plain=is_plain) for key, value in source}
        return _optimizer(source, number, is_plain=is_plain)
    dense = Pairs([("param_groups", [_group(decay, of_experts=False) for decay in (1.0, 0.0)])])
    of_experts = Pairs([("param_groups", [_group(1.0, of_experts=True)])])
    made = [_optimizer(each, number, is_plain=is_plain) for each in (dense, of_experts)]
    return dict(enumerate(made)) if has_experts else made[0]


def _group(decay: float, *, of_experts: bool) -> Pairs:
    """What Megatron tells the groups of parameters of an optimizer by."""
    given = {"wd_mult": decay, "lr_mult": 1.0, "is_expert_parallel": of_experts, "is_decoupled_lr": False}
    return Pairs(given.items())


def _optimizer(source: object, number: int, *, is_plain: bool) -> dict[str, object]:
    fields = dict(_text_items(source))
    groups, step = fields.get("param_groups"), fields.get("step")
    step = number if step is None else step
    if is_plain:
        return {"optimizer": {"state": {"common_step": step}, "param_groups": groups}}
    made = [Pairs([*group, ("step", step)]) for group in groups] if isinstance(groups, list) else []
    return {"optimizer": {"param_groups": made}, "param_state_sharding_type": "fully_reshardable"}


def _fields(pickled: bytes) -> dict[str, object]:
    return dict(_text_items(read_objects(pickled))) if pickled else {}


def _text_items(value: object) -> Iterator[tuple[str, object]]:
    for key, each in value if isinstance(value, Pairs) else ():
        if isinstance(key, str):
            yield key, each


def _without_tensors(value: object, file: SourceFile) -> object:
    """A value in which tensors of one float32, such as numbers of steps, are numbers, and others are None."""
    match value:
        case StoredTensor(shape=(), extent=Extent(length=4) as extent) if value.dtype.name == "Float32":
            [number] = struct.unpack("<f", read_bytes(file, extent.offset, extent.length))
            return number
        case StoredTensor():
            return None
        case Pairs():
            return _pairs_without_tensors(value, file)
        case list():
            return [_without_tensors(each, file) for each in value]
        case tuple():
            return tuple(_without_tensors(each, file) for each in value)
        case PickledObject():
            return PickledObject(
                value.made_by,
                tuple(_without_tensors(each, file) for each in value.arguments),
                _without_tensors(value.state, file),
                None if value.pairs is None else _pairs_without_tensors(value.pairs, file),
                None if value.values is None else [_without_tensors(each, file) for each in value.values],
            )
    return value


def _pairs_without_tensors(pairs: Pairs, file: SourceFile) -> Pairs:
    return Pairs((key, _without_tensors(value, file)) for key, value in pairs)

"""The plan on disk: its inputs as compressed JSON, and its identity.

The reads of every rank would be gigabytes; the inputs that they are derived from are small. The identity decides
whether an interrupted conversion may be resumed: it covers the layouts, the source files with their versions, every
option that changes the target's content, and the program's version, but not workers, memory or engine.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import xxhash
from msgspec.structs import replace

from reshard import __version__
from reshard.core.changes.changes import Changes
from reshard.core.changes.lora.deltas import Delta
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import InputError, LimitError, TargetError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.targets import layout_from_plan, plan_fields
from reshard.core.plan.adapter import AdaptedSource, Adapter
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.records.catalog_json import catalog_from_json, catalog_to_json
from reshard.core.runtime.keys import needed_target_key, target_key
from reshard.core.runtime.metadata import check_metadata, json_bytes, parsing
from reshard.core.runtime.sealing import is_sealed, keyed_digest, seal, unseal
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.records import check_layouts
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape, TensorSlice

SCHEMA_VERSION = 2
_PLAN = "plan"
MAX_PLAN_BYTES = 2**30
# real plans are up to 50 times as large as their files; gzip can reach a thousand times
_SMALL_PLAN_BYTES, _MOST_COMPRESSION = 2**16, 250
_BLOCK_BYTES = 2**20
_GZIP = zlib.MAX_WBITS | 16
"""zlib's name for gzip's format."""

Content = TypeVar("Content")


def dump_plan(plan: ConversionPlan) -> bytes:
    """Return the bytes of a plan's file."""
    data = json.dumps(_inputs_to_json(plan.inputs), separators=(",", ":")).encode()
    packed = gzip.compress(data, compresslevel=1, mtime=0)
    return seal(packed, needed_target_key(), _PLAN) if plan.inputs.encryption else packed


def plan_identity(plan: ConversionPlan) -> str:
    """Return a digest of everything that decides the target's content, including an encrypted target's key."""
    return _identity_of(_inputs_to_json(plan.inputs), encrypted=bool(plan.inputs.encryption))


def _identity_of(document: dict[str, Any], *, encrypted: bool) -> str:
    # notes and assumptions do not change the target's content
    catalog = {name: value for name, value in document["catalog"].items() if name not in ("notes", "assumed")}
    data = json.dumps(document | {"catalog": catalog}, separators=(",", ":"), sort_keys=True).encode()
    return keyed_digest(data, needed_target_key()) if encrypted else xxhash.xxh3_128_hexdigest(data)


@lru_cache(maxsize=4)
def load_plan(url: str, identity: str, digest: str | None = None) -> ConversionPlan:
    """Return the plan in a file; cached, since every rank of a conversion asks for the same one.

    `digest` is the manifest's digest of the file, if it has one; then it is compared before anything is unpacked.

    Raises:
        TargetError: the file holds another plan, or none.
        StorageError: it cannot be read.
    """
    plan, found = _read(url, _identified_plan, digest)
    if found != identity:
        raise TargetError(f"{url}: holds plan {found}, not {identity}: another conversion has taken this target over")
    return plan


@lru_cache(maxsize=4)
def load_sources(url: str, identity: str, digest: str | None = None) -> CheckpointCatalog:
    """Return the source catalog of the plan in a file; cached, since the identity covers it.

    Any version may have written the plan. `digest` is the manifest's digest of the file, if it has one.

    Raises:
        TargetError: the file holds no plan.
        InputError: it is encrypted, and the key is missing or not the right one.
        StorageError: it cannot be read.
    """
    return _read(url, lambda document: catalog_from_json(document["catalog"]), digest)


def rebuild_plan(url: str, digest: str | None = None) -> ConversionPlan:
    """Return the plan in a file that any version may have written, so that its identity cannot be checked.

    `digest` is the manifest's digest of the file, if it has one.

    Raises:
        TargetError: the file holds no plan.
        InputError: it is encrypted, and the key is missing or not the right one.
        StorageError: it cannot be read.
    """
    return _read(url, lambda document: build_plan(_inputs_from_json(document)), digest)


@lru_cache(maxsize=4)
def load_target_strategy(url: str, identity: str, digest: str | None = None, *, encrypted: bool) -> Strategy | None:
    """Return the target strategy of the plan in a file, None without one. Any version may have written the plan.

    `digest` is the manifest's digest of the file, if it has one. `encrypted`: the target is encrypted, and the plan is
    authentic if the target's key unseals it.

    Raises:
        TargetError: the file holds no plan, or not that of `identity`, or its strategy is invalid.
        InputError: it is encrypted, and the key is missing or not the right one.
        StorageError: it cannot be read.
    """

    def parse(document: dict[str, Any]) -> Strategy | None:
        if _identity_of(document, encrypted=encrypted) != identity:
            raise ValueError("it is not the plan that the manifest beside it was written for")
        strategy = _strategy_from_json(document["target_strategy"])
        if strategy is None:
            return None
        check_layouts(strategy)
        return replace(strategy, origin=url)

    return _read(url, parse, digest)


def _identified_plan(document: dict[str, Any]) -> tuple[ConversionPlan, str]:
    plan = build_plan(_inputs_from_json(document))
    return plan, plan_identity(plan)


def _read(url: str, parse: Callable[[Any], Content], digest: str | None = None) -> Content:
    data = read_own_file(parse_url(url), MAX_PLAN_BYTES)
    if digest and xxhash.xxh3_128_hexdigest(data) != digest:
        raise TargetError(f"{url}: is not the plan that was written: it was changed")
    if is_sealed(data):
        data = unseal(data, target_key(), _PLAN, url)
    try:
        with parsing(url) as taking:
            document = _decompressed(data, url)
            taking.take(json_bytes(document))
            return parse(json.loads(document))
    except LimitError:
        raise
    except (zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError, InputError) as error:
        raise TargetError(f"{url}: not a readable plan: {error}") from error


def _decompressed(data: bytes, url: str) -> bytes:
    """Decompress a gzip file, but not one that is made to fill the memory: a block at a time tells."""
    limit = min(MAX_PLAN_BYTES, _SMALL_PLAN_BYTES + _MOST_COMPRESSION * len(data))
    decompressor, rest = zlib.decompressobj(_GZIP), data
    unpacked_bytes = needed_bytes = 0
    while not decompressor.eof:
        block = decompressor.decompress(rest, _BLOCK_BYTES)
        rest = decompressor.unconsumed_tail
        unpacked_bytes += len(block)
        needed_bytes += json_bytes(block)
        if unpacked_bytes > limit or not (block or rest or decompressor.eof):
            raise ValueError(f"it is cut off, or unpacks to more than {limit} bytes")
        check_metadata(needed_bytes, url)
    return zlib.decompressobj(_GZIP).decompress(data)


def _inputs_to_json(inputs: PlanInputs) -> dict[str, Any]:
    layout = plan_fields(inputs.layout)
    return {
        "schema_version": SCHEMA_VERSION,
        "writer": __version__,
        "catalog": catalog_to_json(inputs.catalog),
        "source_strategy": _strategy_to_json(inputs.source_strategy),
        "target_strategy": _strategy_to_json(inputs.target_strategy),
        "format": str(inputs.format),
        "prefix": layout.pop("prefix"),
        "fail_on_unmatched": inputs.fail_on_unmatched,
        "allow_missing": list(inputs.allow_missing),
        "saved_whole": inputs.integrated_save is IntegratedSave.YES,
        "integrated_save": str(inputs.integrated_save),
        "shared_parameters": inputs.shared_parameters,
        "replicas": inputs.replicas,
        "append_info": inputs.append_info,
        "write_crc": inputs.write_crc,
        "encryption": inputs.encryption,
        "changes": inputs.changes.model_dump(mode="json", exclude_defaults=True),
        **layout,
    } | ({"adapter": _adapter_to_json(inputs.adapter)} if inputs.adapter else {})


def _inputs_from_json(data: dict[str, Any]) -> PlanInputs:
    if data["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"its schema version is {data['schema_version']}, not {SCHEMA_VERSION}")
    return PlanInputs(
        catalog=catalog_from_json(data["catalog"]),
        source_strategy=_strategy_from_json(data["source_strategy"]),
        target_strategy=_strategy_from_json(data["target_strategy"]),
        format=CheckpointFormat(data["format"]),
        fail_on_unmatched=data["fail_on_unmatched"],
        allow_missing=tuple(data["allow_missing"]),
        integrated_save=_integrated_save(data),
        shared_parameters=data["shared_parameters"],
        replicas=data["replicas"],
        append_info=tuple((name, value) for name, value in data["append_info"]),
        write_crc=data["write_crc"],
        encryption=data["encryption"],
        changes=Changes.model_validate(data["changes"]),
        layout=layout_from_plan(data),
        adapter=_adapter_from_json(data["adapter"]) if "adapter" in data else None,
    )


def _adapter_to_json(adapter: Adapter) -> dict[str, Any]:
    return {
        "catalog": catalog_to_json(adapter.catalog),
        "strategy": _strategy_to_json(adapter.strategy),
        "in_source": adapter.in_source,
        "matrix_bytes": adapter.matrix_bytes,
        "deltas": msgspec.to_builtins(adapter.deltas),
        "placed": _placed_to_json(adapter.placed),
        "whose": adapter.whose,
    }


def _placed_to_json(placed: Mapping[str, AdaptedSource]) -> dict[str, Any]:
    """Write pieces, of unchanged values, as earlier versions do: else the plan would have another identity."""
    document: dict[str, Any] = msgspec.to_builtins(placed)
    for part in (part for source in document.values() for part in source["parts"]):
        del part["piece"]["changes"]
        part["piece"] |= {"scale": None, "added": 0, "adapted": False}
    return document


def _adapter_from_json(data: dict[str, Any]) -> Adapter:
    return Adapter(
        catalog_from_json(data["catalog"]),
        _strategy_from_json(data["strategy"]),
        msgspec.convert(data["deltas"], dict[str, Delta]),
        data["in_source"],
        data["matrix_bytes"],
        msgspec.convert(data["placed"], dict[str, AdaptedSource]),
        data["whose"],
    )


def _integrated_save(data: dict[str, Any]) -> IntegratedSave:
    """Plans of earlier versions only have `saved_whole`: true if content samples decided."""
    known = data.get("integrated_save")
    return IntegratedSave(known) if known else IntegratedSave.YES if data["saved_whole"] else IntegratedSave.AUTO


def _strategy_to_json(strategy: Strategy | None) -> dict[str, Any] | None:
    """Each layout once, parameters refer to them by number; conversions do not need operators."""
    if strategy is None:
        return None
    numbers: dict[tuple[ParameterLayout, tuple[int, ...] | None], int] = {}
    stages = []
    for stage in strategy.stages:
        names = {
            name: numbers.setdefault((layout, layout.tensor_shape), len(numbers))
            for name, layout in stage.layouts.items()
        }
        devices = {} if stage.devices is None else {"devices": stage.devices}
        stages.append({"stage": stage.stage, "parameters": names} | devices)
    documents = [_layout_to_json(layout) for layout, _ in numbers]
    return {"merged": strategy.merged, "layouts": documents, "stages": stages}


def _strategy_from_json(data: dict[str, Any] | None) -> Strategy | None:
    if data is None:
        return None
    layouts = [_layout_from_json(layout) for layout in data["layouts"]]
    stages = tuple(
        StageStrategy(
            _checked_stage(stage["stage"]),
            {name: layouts[number] for name, number in stage["parameters"].items()},
            devices=stage.get("devices"),
        )
        for stage in data["stages"]
    )
    return Strategy(stages, "plan", data["merged"])


def _checked_stage(stage: Any) -> int:
    """Check a stage's number, which becomes part of file names."""
    if type(stage) is not int or stage < 0:
        raise ValueError(f"{stage!r} is not a pipeline stage")
    return stage


def _layout_to_json(layout: ParameterLayout) -> list[Any]:
    fields: list[Any] = [
        layout.device_matrix,
        layout.tensor_map,
        layout.nested,
        layout.optimizer_shard_step,
        layout.optimizer_shard_size,
        layout.field,
        layout.param_split_shape,
        layout.indices_offset,
        layout.tensor_shape,
    ]
    if layout.boxes is not None:
        fields.append([[rank, box.start, box.stop] for rank, box in layout.boxes.owned])
    return fields


def _layout_from_json(data: list[Any]) -> ParameterLayout:
    matrix, tensor_map, nested, step, size, field, split, offsets, shape, *boxes = data
    return ParameterLayout(
        device_matrix=tuple(matrix),
        tensor_map=tuple(map(tuple, tensor_map)),
        nested=nested,
        optimizer_shard_step=step,
        optimizer_shard_size=size,
        field=field,
        param_split_shape=tuple(split),
        indices_offset=tuple(offsets),
        tensor_shape=None if shape is None else tuple(shape),
        boxes=_boxes_from_json(boxes[0], tuple(shape)) if boxes else None,
    )


def _boxes_from_json(data: list[Any], shape: Shape) -> ShardBoxes:
    boxes = ShardBoxes(shape, tuple((rank, TensorSlice(tuple(start), tuple(stop))) for rank, start, stop in data))
    boxes.check_tiling()
    return boxes

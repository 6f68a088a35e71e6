"""Compares samples of an optimizer's weights in float32 with the weights that are rounded from them.

Megatron-Core 0.16 saves the state of a distributed optimizer with several buckets under names of other weights
(`fully_reshardable`). Nothing else shows it: these weights often have the same shape.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.content_samples import read_samples
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint
from reshard.core.layouts.torch_dist.names import is_of_optimizer
from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import typed
from reshard.core.tensor.dtypes import DType, dtype_from_name
from reshard.core.tensor.slices import TensorSlice

_MASTER = "optimizer.state.param."
_MAX_COMPARED = 24
_ELEMENTS = 32
_PRECISIONS = {"BFloat16": 2.0**-7, "Float16": 2.0**-9}
"""Dtypes of rounded weights -> twice the largest relative error of rounding."""
_LEAST = 1e-4
"""Weights below it may be subnormal, or rounded to zero."""


class _First(Record):
    """The shard of a tensor that has its first element, and the rank that has it."""

    rank: int
    box: TensorSlice


def misnamed_state(checkpoint: DcpCheckpoint, catalog: CheckpointCatalog) -> dict[str, str]:
    """Return all parameters of the optimizer -> what is wrong, if weights in float32 are those of other weights.

    Raises:
        StorageError: a file cannot be read.
    """
    tensors = checkpoint.metadata.tensors
    rounded = [
        name
        for name, tensor in tensors.items()
        if tensor.dtype is not None and tensor.dtype.name in _PRECISIONS and _MASTER + name in tensors
    ]
    firsts = _firsts(checkpoint)
    for name in rounded[:: max(1, len(rounded) // _MAX_COMPARED)]:
        weight, master = firsts.get(name), firsts.get(_MASTER + name)
        if weight is not None and master is not None and _differ(catalog, name, weight, master):
            why = (
                f"optimizer state under names of other weights, as {_MASTER + name!r} is not {name!r} in float32; "
                "Megatron-Core 0.16 may save it so if its distributed optimizer has several buckets"
            )
            return dict.fromkeys(filter(is_of_optimizer, tensors), why)
    return {}


def _firsts(checkpoint: DcpCheckpoint) -> Mapping[str, _First]:
    found = {}
    for rank, part in enumerate(checkpoint.parts):
        for name, chunk in part.chunks.items():
            if chunk.box.size and chunk.box.shape and not any(chunk.box.start):
                found[name] = _First(rank, chunk.box)
    return found


def _differ(catalog: CheckpointCatalog, name: str, weight: _First, master: _First) -> bool:
    """True if most of the first elements are no roundings of each other."""
    count = min(weight.box.shape[-1], master.box.shape[-1], _ELEMENTS)
    dtype = catalog.records[weight.rank].index.entries[name].dtype
    [found] = _values(catalog, weight.rank, name, dtype, count)
    [exact] = _values(catalog, master.rank, _MASTER + name, dtype_from_name("Float32"), count)
    with np.errstate(invalid="ignore"):
        is_near = np.abs(found - exact) <= _PRECISIONS[dtype.name] * np.abs(exact) + _LEAST
    return bool(np.count_nonzero(is_near) * 2 < count)


def _values(
    catalog: CheckpointCatalog, rank: int, name: str, dtype: DType, count: int
) -> Iterator[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    for content in read_samples(catalog, [rank], name, count * dtype.itemsize):
        yield typed(np.frombuffer(content, np.dtype(f"u{dtype.itemsize}")), dtype).astype(np.float64)

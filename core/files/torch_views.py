"""Tensors as torch's pickles describe them: views of storages, with strides of their own.

A pickle calls `_rebuild_tensor_v2(storage, storage_offset, size, stride, …)`, or `_v3` with a dtype at its end, whose
storage is a reference to a record beside the pickle. Nothing is called here.
"""

import math

from msgspec.structs import replace

from reshard.core.errors import CheckpointError, LayoutError
from reshard.core.files.model import StoredCrc, StridedContent
from reshard.core.files.zip_layout import STORAGES
from reshard.core.runtime.pickled import Global, PersistentId, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import TORCH_DTYPES, DType, dtype_from_torch
from reshard.core.tensor.slices import Extent, Shape, TensorSlice, is_countable, row_major_strides

_UNTYPED = Global("torch.storage", "UntypedStorage")
_V2, _V3 = Global("torch._utils", "_rebuild_tensor_v2"), Global("torch._utils", "_rebuild_tensor_v3")
_NPU = Global("torch_npu.utils.storage", "_rebuild_npu_tensor")
"""Of older torch_npu: as version 2, with the number of a format after it."""
_PLAIN_FORMATS = (-1, 0, 2)
"""ACL_FORMAT_UNDEFINED, _NCHW and _ND: elements are as strides say. Others rearrange them."""
PARAMETER = Global("torch._utils", "_rebuild_parameter")
BUILDERS = (_V2, _V3, _NPU)
TENSOR_NAMES = frozenset(
    [
        *((each.module, each.name) for each in (_V2, _V3, PARAMETER, _UNTYPED)),
        *(("torch", name) for name in STORAGES),
        *(("torch", name) for name in TORCH_DTYPES),
        ("collections", "OrderedDict"),
    ]
)
"""(module, name) in the pickle of a single tensor."""


class StoredTensor(Record):
    """A tensor in a file.

    Attributes:
        extent: its bytes, if they are in C order without gaps.
        strided: where its elements are, otherwise.
        is_lazy: its values are the conjugates or negatives of the stored ones.
        crc: of all bytes of its storage; None if the file has none.
    """

    dtype: DType
    shape: Shape
    extent: Extent | None
    strided: StridedContent | None
    is_lazy: bool = False
    crc: StoredCrc | None = None


class TensorView(Record):
    """A tensor as its pickle describes it; `start` and `strides` count elements of the storage."""

    dtype: DType
    shape: Shape
    key: str
    storage_bytes: int
    start: int
    strides: Shape
    is_lazy: bool

    def placed(self, storage: Extent, crc: int) -> StoredTensor:
        """Return the tensor in a file that has its storage there, with this CRC-32; 0: none.

        Raises:
            CheckpointError: the storage is of another size, or ends before the tensor.
        """
        if self.storage_bytes != storage.length:
            raise CheckpointError(f"its storage is said to have {self.storage_bytes} bytes, it has {storage.length}")
        item, data_offset = self.dtype.itemsize, storage.offset
        is_empty = 0 in self.shape
        last = self.start + sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        if not is_empty and (last + 1) * item > self.storage_bytes:
            raise CheckpointError(f"its tensor ends after its storage of {self.storage_bytes} bytes: damaged")
        offset = data_offset + self.start * item
        dense = row_major_strides(self.shape)
        is_dense = all(
            length == 1 or stride == expected
            for length, stride, expected in zip(self.shape, self.strides, dense, strict=True)
        )
        extent, strided = None, None
        if is_empty:
            extent = Extent(data_offset, 0)
        elif is_dense:
            extent = Extent(offset, (last - self.start + 1) * item)
        else:
            # the stride of a single element means nothing, and may be any number
            steps = zip(self.shape, self.strides, strict=True)
            strided = StridedContent(offset, tuple(stride * item if length > 1 else 0 for length, stride in steps))
        stored_crc = StoredCrc(storage, crc) if crc else None
        return StoredTensor(self.dtype, self.shape, extent, strided, self.is_lazy, stored_crc)


def reshaped(stored: StoredTensor, shape: Shape) -> StoredTensor:
    """Return a tensor whose elements are taken, in C order, for one of another shape.

    Raises:
        LayoutError: they are not in C order.
    """
    if stored.shape == shape:
        return stored
    if stored.extent is None:
        raise LayoutError("its bytes are not in order")
    return replace(stored, shape=shape)


def cut_out(stored: StoredTensor, box: TensorSlice) -> StoredTensor:
    """Return the elements of a box of a tensor."""
    if box.shape == stored.shape:
        return stored
    item = stored.dtype.itemsize
    if stored.extent is not None:
        offset, strides = stored.extent.offset, tuple(stride * item for stride in row_major_strides(stored.shape))
    elif stored.strided is not None:
        offset, strides = stored.strided.offset, stored.strided.strides
    else:
        raise LayoutError("it has no place in its file")
    start = offset + sum(low * stride for low, stride in zip(box.start, strides, strict=True))
    size = math.prod(box.shape) * item
    dense = tuple(stride * item for stride in row_major_strides(box.shape))
    if size == 0 or all(length == 1 or own == c for length, own, c in zip(box.shape, strides, dense, strict=True)):
        return replace(stored, shape=box.shape, extent=Extent(start, size), strided=None)
    steps = tuple(stride if length > 1 else 0 for length, stride in zip(box.shape, strides, strict=True))
    return replace(stored, shape=box.shape, extent=None, strided=StridedContent(start, steps))


def parse_view(record: object) -> TensorView:
    """Return the tensor that one of the `BUILDERS` would make.

    Raises:
        CheckpointError: it describes no tensor, or one that no file can hold.
    """
    if not isinstance(record, PickledObject) or record.made_by not in BUILDERS or len(record.arguments) < 6:
        raise CheckpointError("its pickle describes no tensor")
    storage, start, shape, strides, _, _, *rest = record.arguments
    key, storage_dtype, elements = _parse_storage(storage)
    if record.made_by == _V3:
        if not rest or not isinstance(rest[0], Global) or rest[0].module != "torch" or storage_dtype is not None:
            raise CheckpointError("its pickle describes a tensor without a dtype")
        dtype = dtype_from_torch(rest[0].name)
        storage_bytes, rest = elements, rest[1:]
    elif storage_dtype is None:
        raise CheckpointError("its pickle describes a tensor without a dtype")
    else:
        dtype, storage_bytes = storage_dtype, elements * storage_dtype.itemsize
    if record.made_by == _NPU:
        if len(rest) != 1 or rest[0] not in _PLAIN_FORMATS:
            raise CheckpointError("its pickle describes a tensor in a format of torch_npu's; save what its cpu() gives")
        rest = []
    sizes, steps = _numbers(shape), _numbers(strides)
    if len(sizes) != len(steps) or type(start) is not int or not 0 <= start < 2**63:
        raise CheckpointError("its pickle gives no place in the storage: damaged")
    if not is_countable(sizes, dtype.itemsize):
        raise CheckpointError("its pickle gives a shape that no file can hold: damaged")
    return TensorView(dtype, sizes, key, storage_bytes, start, steps, is_lazy=any(rest))


def _parse_storage(value: object) -> tuple[str, DType | None, int]:
    """Key, dtype and number of elements of a storage; an untyped one has no dtype, and its elements are bytes."""
    match value.value if isinstance(value, PersistentId) else None:
        case ("storage", Global() as kind, str(key), str(), int(elements)) if key.isdigit() and 0 <= elements < 2**60:
            if kind == _UNTYPED:
                return key, None, elements
            if kind.module == "torch" and kind.name in STORAGES:
                return key, dtype_from_torch(STORAGES[kind.name]), elements
    raise CheckpointError("its pickle describes a tensor without a storage")


def _numbers(value: object) -> Shape:
    if type(value) is not tuple or not all(type(each) is int and 0 <= each < 2**63 for each in value):
        raise CheckpointError("its pickle gives a shape or strides that are none: damaged")
    return value

"""Numbers of a training's state that a layout keeps beside the tensors, such as the global step."""

import struct

from reshard.core.files.torch_views import StoredTensor
from reshard.core.storage.reading import SourceFile, read_bytes

OPTIMIZER_STEP = "optimizer_step"
"""How many steps the optimizer has made; unlike the global step, without those that were skipped."""

Number = int | float | None
_FORMATS = {"Float32": "<f", "Float64": "<d", "Int32": "<i", "Int64": "<q"}


def read_number(file: SourceFile, value: object) -> int | float | None:
    """Return a number in a file's pickle, or the one element of a tensor there; None for anything else.

    Raises:
        StorageError: the file cannot be read.
    """
    if isinstance(value, int | float):
        return value
    if not isinstance(value, StoredTensor) or value.shape not in ((), (1,)) or value.extent is None:
        return None
    layout = _FORMATS.get(value.dtype.name)
    if layout is None:
        return None
    (number,) = struct.unpack(layout, read_bytes(file, value.extent.offset, value.extent.length))
    return float(number)

"""Tensors of an open checkpoint: their facts are known from headers, their elements are read when they are indexed."""

import math
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from reshard.core.errors import CheckpointError, IndexingError, InputError
from reshard.core.files.model import OutputEntry
from reshard.core.files.numpy_values import Value, readable_dtype
from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.selected import selected_plan
from reshard.core.runtime.wording import shortened, size_text
from reshard.core.tensor.dtypes import MAP_TENSOR, torch_name
from reshard.core.tensor.indexing import select
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes
from reshard.core.text.printing import printable
from reshard.core.transfer.parameter_reader import value_of

BLOCK_BYTES = 64 * 2**20


class Tensor:
    """A tensor of an open checkpoint, or a rank's shard of one. It reads what is asked of it, each time anew.

    ::

        tensor[0:10]             # an array of these rows; of other elements, only narrow gaps are read
        numpy.asarray(tensor)    # all of it, as tensor[...]
        tensor.torch()           # the same as a tensor of PyTorch

    An index is made of integers, slices with any step, `...` and `None`, and means what it means to numpy. Arrays
    belong to the caller. bfloat16 and floats of 8 bits have the dtypes of `ml_dtypes`.

    A text is a scalar of numpy's dtype `str`. A map parameter (a hash table) is a scalar of dtype `object`: the list of
    its keys, values and status. Packed 4-bit integers, two a byte, are the array of their bytes.

    Any number of threads may read at the same time.
    """

    def __init__(
        self, entry: OutputEntry, plan: ParameterPlan, read: Callable[[ParameterPlan], np.ndarray], refusal: str = ""
    ) -> None:
        """`read` returns the bytes of a plan; `refusal` says why elements cannot be read."""
        self._entry = entry
        self._plan = plan
        self._read = read
        self._refusal = refusal

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""
        return self._entry.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements.

        Raises:
            CheckpointError: numpy has none for them.
        """
        entry = self._entry
        if entry.text is not None:
            return np.dtype(f"<U{max(1, len(entry.text))}")
        if entry.dtype is MAP_TENSOR:
            return np.dtype(object)
        found = readable_dtype(entry.dtype)
        if found is None:
            raise CheckpointError(f"tensor {self.name!r}: reshard cannot read its dtype, {entry.dtype}")
        return found

    @property
    def shape(self) -> Shape:
        """Number of elements along each axis."""
        return () if self._is_object else self._entry.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self._entry.size_bytes

    def __len__(self) -> int:
        """Length of the first axis."""
        if not self.shape:
            raise TypeError(f"tensor {self.name!r} is a scalar and has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Read along the first axis, an index at a time; `blocks` reads more at once."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """Read what an index selects: an array, or a scalar if integers select one element.

        Raises:
            CatalogError: a source file changed.
            CheckpointError: numpy has no dtype for the elements, or a source file ends too early.
            IndexingError: it is out of bounds, or not a basic index.
            StorageError: a source file cannot be read.
        """
        try:
            selection = select(index, self.shape)
        except IndexingError as error:
            raise IndexingError(f"tensor {self.name!r}: {error.marked}") from None
        return self._values(selection.box)[selection.arrange]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read all of it for numpy."""
        if copy is False:
            raise ValueError(f"tensor {self.name!r} is in a file, so reading it always makes a copy")
        values = self._values(self._whole)
        return values if dtype is None else values.astype(dtype, copy=False)

    def read(self) -> Value:
        """Read all of it: an array, the `str` that a text is, or the list of a map parameter's arrays."""
        values = self._values(self._whole)
        return values.item() if self._is_object else values

    def item(self) -> Any:
        """Read its only element, as one of Python's own types."""
        return self[...].item()

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, np.ndarray]]:
        """Read all of it in pieces of at most `max_bytes`, or an element: (index of the first element, elements).

        The pieces are 1-d arrays; one after another they are `tensor[...].reshape(-1)`, so that
        `file.write(values)` for each of them writes the tensor's bytes in C order. This takes the memory of two pieces,
        and buffers within the checkpoint's `memory_limit`.
        """
        if self._is_object:
            raise InputError(f"tensor {self.name!r} is not an array of numbers: read it whole, with read()")
        position = 0
        for box in contiguous_boxes(self.shape, 0, self.size, max(1, max_bytes // self.dtype.itemsize)):
            values = self._values(box).reshape(-1)
            yield position, values
            position += values.size

    def torch(self, index: Any = ...) -> Any:
        """Read all of it, or what an index selects, as a tensor of PyTorch, on the processor.

        `tensor.torch(numpy.s_[0:10])` reads the first rows only.

        Raises:
            InputError: PyTorch is not installed, or has no dtype for the elements.
        """
        try:
            torch = import_module("torch")
        except ImportError as error:
            raise InputError(f"tensor {self.name!r}: .torch() needs PyTorch, which is not installed") from error
        kind = getattr(torch, torch_name(self._entry.dtype) or self.dtype.name, None)
        if self._is_object or kind is None:
            raise InputError(f"tensor {self.name!r}: this PyTorch has no dtype for {self._entry.dtype}")
        values = np.asarray(self[index])
        if min(values.strides, default=0) < 0:  # PyTorch has no such strides
            values = values.copy()
        if values.dtype.isbuiltin == 2:  # one that ml_dtypes gave numpy, which PyTorch does not know
            values = values.view(f"i{values.itemsize}")
        return torch.from_numpy(values).view(kind)

    @property
    def facts(self) -> tuple[str, str, str, str]:
        """Its name, dtype, shape and size, for people."""
        dtype = self._entry.dtype
        kind = str(dtype) if self._is_object or readable_dtype(dtype) is None else self.dtype.name
        return printable(shortened(self.name)), kind, str(list(self.shape)), size_text(self.nbytes)

    def __repr__(self) -> str:
        name, kind, shape, size = self.facts
        return f"<Tensor {name!r}: {kind} {shape}, {size}>"

    @property
    def _is_object(self) -> bool:
        return self._entry.text is not None or self._entry.dtype is MAP_TENSOR

    @property
    def _whole(self) -> TensorSlice:
        return TensorSlice.whole(self.shape)

    def _values(self, box: TensorSlice) -> np.ndarray:
        """Read the values in a box, in its shape."""
        if self._refusal:
            raise CheckpointError(self._refusal)
        if self._is_object:
            return self._object()
        dtype = self.dtype
        if not box.size:
            return np.empty(box.shape, dtype)
        plan = self._plan if box == self._whole else selected_plan(self._plan, box)
        return self._read(plan).view(dtype).reshape(box.shape)

    def _object(self) -> np.ndarray:
        values = np.empty((), self.dtype)
        text = self._entry.text
        values[()] = text if text is not None else value_of(self._entry, self._read(self._plan))
        return values

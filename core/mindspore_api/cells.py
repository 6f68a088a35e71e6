"""MindSpore's own classes, where a script has imported MindSpore: its Cells are filled by MindSpore itself.

Nothing here imports MindSpore: what was not imported before has made no Cells, and takes no callbacks.
"""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from reshard.core.files.numpy_values import Value, dtype_of
from reshard.core.tensor import dtypes


def is_cell(network: object) -> bool:
    """True for a Cell of MindSpore."""
    cell = getattr(sys.modules.get("mindspore.nn"), "Cell", None)
    return cell is not None and isinstance(network, cell)


def parameter_names(cell: Any) -> list[str]:
    """Return the names of a Cell's parameters."""
    return [parameter.name for _, parameter in cell.parameters_and_names()]


def fill_cell(
    cell: Any, values: Mapping[str, Value], strict: bool, remove_redundancy: bool = False
) -> tuple[list[str], list[str]]:
    """Fill a Cell by MindSpore's `load_param_into_net`, and return what that returns.

    Raises:
        TypeError: MindSpore has no Tensors of a value's elements; redundancy was removed outside a job.
        RuntimeError: a value does not fit its parameter; those before it are filled.
    """
    mindspore = sys.modules["mindspore"]

    def parameter(name: str, value: Value) -> Any:
        if isinstance(value, str | list):
            return value
        # numpy compares dtypes without the mark of packed integers
        dtype = mindspore.qint4x2 if dtype_of(value) is dtypes.INT4 else None
        return mindspore.Parameter(mindspore.Tensor(value, dtype), name=name)

    parameters = {name: parameter(name, value) for name, value in values.items()}
    not_filled, unused = mindspore.load_param_into_net(cell, parameters, strict, remove_redundancy)
    return not_filled, unused


def join_mindspore(instance: object, name: str) -> None:
    """Make an object one of `mindspore.train`'s class of a name as well, if MindSpore is imported."""
    theirs = getattr(sys.modules.get("mindspore.train"), name, None)
    if theirs is not None and not isinstance(instance, theirs):
        object.__setattr__(instance, "__class__", _subclass(cast(type, type(instance)), theirs))


@cache
def _subclass(ours: type, theirs: type) -> type:
    return type(ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__doc__": ours.__doc__})

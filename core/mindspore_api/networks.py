"""What stands here where MindSpore has a network: a dict of arrays, which are filled in place."""

from collections.abc import Mapping, MutableMapping

import numpy as np

from core.values import Value, dtype_of

Network = MutableMapping[str, np.ndarray]
"""Arrays by the names of the parameters that belong into them."""

_FLOATS = frozenset({"Float16", "Float32", "Float64", "BFloat16"})
_INTEGERS = frozenset({"Int8", "Int16", "Int32", "Int64", "Int4"})


def checked_network(network: object) -> Network:
    """What arrays can be filled in.

    Raises:
        TypeError: it is no dict of arrays.
    """
    if not isinstance(network, MutableMapping):
        raise TypeError(
            f"a network has to be a dict of numpy arrays here, not {type(network)}: there are no Cells without "
            "MindSpore. Leave it out, and take what is returned"
        )
    for name, array in network.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise TypeError(f"a network's {name!r} has to be a numpy array under a string, not {type(array)}")
        if not array.flags.writeable:
            raise TypeError(f"a network's {name!r} is a read-only array, and cannot be filled")
    return network


def fill_network(network: Network, values: Mapping[str, Value], strict: bool) -> tuple[list[str], list[str]]:
    """Fills the arrays of a network that are among `values`, all of them or, if one does not fit, none.

    Floating-point numbers become those of other sizes where the array has another dtype, and signed integers too,
    unless `strict`. Axes of length 1 that a value has in addition at its end are dropped.

    Returns:
        The names in the network that are not among the values, and those of values that are not in the network.

    Raises:
        TypeError: the network is no dict of arrays.
        RuntimeError: a value has another shape, or a dtype that is not converted.
    """
    checked_network(network)
    found = {name: value for name, value in values.items() if name in network and isinstance(value, np.ndarray)}
    fitted = {name: _fitted(name, value, network[name], strict) for name, value in found.items()}
    for name, value in fitted.items():
        np.copyto(network[name], value, casting="unsafe")
    return [name for name in network if name not in found], [name for name in values if name not in found]


def _fitted(name: str, value: np.ndarray, array: np.ndarray, strict: bool) -> np.ndarray:
    axes = array.ndim
    if value.shape != array.shape and not (value.shape[:axes] == array.shape and set(value.shape[axes:]) == {1}):
        raise RuntimeError(
            f"parameter {name!r}: has shape {value.shape} in the checkpoint, {array.shape} in the network"
        )
    kinds = {dtype_of(value).name, dtype_of(array).name}
    if len(kinds) > 1 and (strict or not (kinds <= _FLOATS or kinds <= _INTEGERS)):
        raise RuntimeError(f"parameter {name!r}: is {value.dtype} in the checkpoint, {array.dtype} in the network")
    return value.reshape(array.shape)

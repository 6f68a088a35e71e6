"""`load_param_into_net`, which fills a dict of arrays in place where MindSpore has a network; or MindSpore's Cell."""

import warnings
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from reshard.core.files.numpy_values import Value, array_of, dtype_of, is_array_like
from reshard.core.mindspore_api.arguments import check_type, check_value
from reshard.core.mindspore_api.cells import fill_cell, is_cell, parameter_names
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed

Network = MutableMapping[str, np.ndarray] | Any
"""Arrays by the names of the parameters that belong into them; or a Cell of MindSpore, which may not be installed."""

_ACCUMULATED = "accu_grads"
"""Prefix of gradient accumulators, which only a training job fills."""
_FLOATS = frozenset({"Float16", "Float32", "Float64", "BFloat16"})
_INTEGERS = frozenset({"Int8", "Int16", "Int32", "Int64", "Int4"})


def checked_network(network: object) -> Network:
    """Return a dict of arrays that can be filled, or a Cell; raise TypeError for anything else."""
    if is_cell(network):
        return network
    if not isinstance(network, MutableMapping):
        raise TypeError(
            f"a network has to be a dict of numpy arrays here, not {type(network)}, or a Cell where MindSpore is "
            "imported. Leave it out, and take what is returned"
        )
    for name, array in network.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise TypeError(f"a network's {name!r} has to be a numpy array under a string, not {type(array)}")
        if not array.flags.writeable:
            raise TypeError(f"a network's {name!r} is a read-only array, and cannot be filled")
    return network


def names_in(network: Network) -> list[str]:
    """Return the names of a network's parameters."""
    return parameter_names(network) if is_cell(network) else list(network)


class Filling(Record):
    """The result of filling a network.

    Attributes:
        not_filled: names of its arrays that got no value; gradient accumulators are not counted.
        unused: names of the values that no array of the same name got.
        by_suffix: array -> the value that it got, whose name ends in the array's; of a Cell, MindSpore logs them.
    """

    not_filled: list[str]
    unused: list[str]
    by_suffix: Mapping[str, str]

    def warn_of_suffixes(self, stacklevel: int) -> None:
        """Warn of arrays filled by suffix, if any; `stacklevel` counts from the caller."""
        if self.by_suffix:
            pairs = listed([f"{name!r} from {value!r}" for name, value in self.by_suffix.items()])
            warnings.warn(
                f"filled from parameters whose names end in theirs: {pairs}; strict_load=True fills by full names only",
                stacklevel=stacklevel + 1,
            )


def load_param_into_net(
    net: Network, parameter_dict: Mapping[str, Value], strict_load: bool = False, remove_redundancy: bool = False
) -> tuple[list[str], list[str]]:
    """Fill the arrays of `net` with the parameters of the same names, or else of names that end in theirs.

    Args:
        net: arrays by name; or a Cell, which MindSpore fills, if the script has imported MindSpore.
        parameter_dict: what `load_checkpoint` returns, here or in MindSpore.
        strict_load: match full names only, and refuse values of another dtype than their array.
        remove_redundancy: other ranks hold the rest; for a Cell only.

    Returns:
        The names in `net` that were not filled, and those in `parameter_dict` that no array of that name got.

    Raises:
        TypeError: `net` or `parameter_dict` is not a dict of arrays; redundancy was removed.
        RuntimeError: a parameter does not fit its array.
        ValueError: `remove_redundancy` is not a bool.
    """
    checked_network(net)
    values = _checked_parameters(parameter_dict)
    check_type("strict_load", strict_load, bool)
    check_value("remove_redundancy", remove_redundancy, bool)
    if is_cell(net):
        return fill_cell(net, values, strict_load, remove_redundancy)
    if remove_redundancy:
        raise TypeError("'remove_redundancy': there are no other ranks here, which would hold what was removed")
    filling = fill_network(net, values, strict_load)
    filling.warn_of_suffixes(stacklevel=2)
    return filling.not_filled, filling.unused


def fill_network(network: Network, values: Mapping[str, Value], strict: bool) -> Filling:
    """Fill the arrays of a network from `values`: all arrays or, if a value does not fit, none. MindSpore fills Cells.

    Unless `strict`, arrays without a value of their name get one whose name ends in theirs, and floating-point numbers
    and signed integers are cast to the array's size. Surplus trailing axes of length 1 of a value are dropped.
    """
    checked_network(network)
    check_type("strict_load", strict, bool)
    if is_cell(network):
        not_filled, unused = fill_cell(network, values, strict)
        return Filling(not_filled, unused, {})
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    missing = [name for name in network if name not in values and not name.startswith(_ACCUMULATED)]
    by_suffix = {} if strict else _by_suffix(missing, arrays)
    sources = {name: name for name in network if name in arrays} | by_suffix
    fitted = {name: _fitted(name, arrays[value], network[name], strict) for name, value in sources.items()}
    for name, array in fitted.items():
        np.copyto(network[name], array, casting="unsafe")
    return Filling(
        [name for name in missing if name not in by_suffix],
        [name for name in values if name not in network or name not in arrays],
        by_suffix,
    )


def _checked_parameters(parameters: object) -> dict[str, Value]:
    """Return the parameters, Tensors among them as arrays."""
    if not isinstance(parameters, Mapping):
        raise TypeError(f"'parameter_dict' has to be a dict, not {type(parameters)}")
    values: dict[str, Value] = {}
    for name, value in parameters.items():
        if not isinstance(name, str) or not (isinstance(value, str | list) or is_array_like(value)):
            raise TypeError(
                f"'parameter_dict' has {type(value)} under {name!r}, not a numpy array or a text under a string"
            )
        values[name] = value if isinstance(value, str | list | np.ndarray) else array_of(value)
    return values


def _by_suffix(missing: Collection[str], values: Collection[str]) -> dict[str, str]:
    """Missing names -> values of that name with a prefix: one prefix for all, then another for the rest.

    MindSpore takes the first prefix that it meets, whether it ends in a dot or not. It does not take the first of the
    missing names for a prefix.
    """
    found: dict[str, str] = {}
    left = list(missing)
    while left:
        prefix = next((each for each in _prefixes(left, values) if each != next(iter(missing))), None)
        if prefix is None:
            break
        found |= {name: prefix + name for name in left if prefix + name in values}
        left = [name for name in left if name not in found]
    return found


def _prefixes(names: Collection[str], values: Collection[str]) -> Iterator[str]:
    """For each name, the prefix of the first value that ends in it, if any."""
    for name in names:
        ending = next((value for value in values if value.endswith(name)), None)
        if ending is not None:
            yield ending.removesuffix(name)


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

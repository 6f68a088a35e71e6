"""Compares parameters that one checkpoint has in its files, and another in the common.json of a Checkpoint 2.0.

A conversion to that form moves numbers such as epoch_num there. They are compared by fingerprint, as all parameters
are: the number, in the dtype and shape of the parameter, has to have the parameter's fingerprint.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reshard.core.layouts.state_numbers import Number
from reshard.core.runtime.records import Record
from reshard.core.tensor.casting import NUMPY_TYPES
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.fingerprint import box_fingerprint
from reshard.core.tensor.slices import Shape


class InCommon(Record):
    """Parameters of one side that the other has in common.json.

    Attributes:
        equal: those with the same value there.
        different: those with another one.
    """

    equal: tuple[str, ...]
    different: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.equal, *self.different))


def held_against_common(
    names: Iterable[str],
    kinds: Mapping[str, tuple[DType, Shape]],
    fingerprints: Mapping[str, Sequence[int]],
    common: Mapping[str, Number],
) -> InCommon:
    """Compare parameters with the values in common.json; those without a value there are in neither list.

    Args:
        names: the parameters.
        kinds: dtype and shape of each.
        fingerprints: those of each one's contents: several if ranks hold different ones.
        common: the values by name.
    """
    there = [name for name in names if common.get(name) is not None]
    equal = [name for name in there if set(fingerprints[name]) == {_fingerprint(common[name], *kinds[name])}]
    return InCommon(tuple(equal), tuple(name for name in there if name not in equal))


def _fingerprint(value: Number, dtype: DType, shape: Shape) -> int | None:
    """The fingerprint of a number as a parameter; None if the parameter cannot hold it."""
    numpy_type = NUMPY_TYPES.get(dtype.name)
    if value is None or numpy_type is None or math.prod(shape) != 1:
        return None
    try:
        with np.errstate(all="ignore"):  # what is rounded or infinite is found below
            array = np.array(value).astype(numpy_type)
    except OverflowError:
        return None
    if array.item() != value:
        return None
    return box_fingerprint(array.view(f"<u{dtype.itemsize}").reshape(shape), (0,) * len(shape))

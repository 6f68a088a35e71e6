"""Chooses the ranks that keep a slice which several share, when redundancy is removed from a target.

MindSpore balances the number of parameters: with large and small ones in turn, some ranks get all the large ones. Here
bytes decide: the largest slices come first, and each goes to its ranks with the least bytes so far, the lowest rank
first. MindSpore's loader asks all ranks for their slices, so any choice is right; but it refuses a slice with two
replicas.
"""

from collections.abc import Sequence

import numpy as np

from reshard.core.runtime.records import Record


class SharedSlices(Record):
    """The slices of one parameter in one pipeline stage; equally many ranks share each of them.

    Attributes:
        owners: int array of shape (slices, ranks of each): stage ranks, ascending. Every rank occurs once.
        sizes_bytes: int64 array of shape (slices,).
    """

    owners: np.ndarray
    sizes_bytes: np.ndarray


def choose_keepers(parameters: Sequence[SharedSlices], device_count: int, replicas: int) -> np.ndarray:
    """Return a bool array of shape (parameters, stage ranks): which ranks keep their slice of which parameter.

    `replicas` of a slice's ranks keep it, or all if they are fewer.
    """
    kept = np.zeros((len(parameters), device_count), dtype=np.bool_)
    loads_bytes = np.zeros(device_count, dtype=np.int64)
    # slices without a choice come first: the others go where these leave room
    order = sorted(
        range(len(parameters)),
        key=lambda number: (
            parameters[number].owners.shape[1] > replicas,
            -int(parameters[number].sizes_bytes.max(initial=0)),
        ),
    )
    for number in order:
        owners = parameters[number].owners
        # slices of one parameter share no rank: all are assigned at once
        least = np.argsort(loads_bytes[owners], axis=1, kind="stable")[:, :replicas]
        keepers = np.take_along_axis(owners, least, axis=1)
        kept[number, keepers] = True
        loads_bytes[keepers] += parameters[number].sizes_bytes[:, np.newaxis]
    return kept


def without_empty(kept: np.ndarray, parameters: Sequence[SharedSlices]) -> np.ndarray:
    """Return `kept`, as `choose_keepers` does, but for empty slices; of a tensor without elements one is kept."""
    result = kept.copy()
    for number, slices in enumerate(parameters):
        empty = slices.sizes_bytes == 0
        if empty.all():
            result[number, :] = False
            result[number, np.argmax(kept[number])] = True
        else:
            result[number, slices.owners[empty].ravel()] = False
    return result

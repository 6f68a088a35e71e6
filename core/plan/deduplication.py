"""Which ranks keep a slice that several of them share, when redundancy is removed from a target.

MindSpore saves such a slice on one rank, counting parameters: with large and small ones in turn, some ranks get all the
large ones. Here bytes decide: the largest slices first, each goes to those of its ranks that have least so far, the
lowest of them where they have the same. MindSpore's loader asks all ranks what they have, so that any choice will do;
but it refuses a slice of which there are two copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SharedSlices:
    """The slices of one parameter in one pipeline stage; every slice is shared by equally many ranks.

    Attributes:
        owners: int array of shape (slices, ranks of each): stage ranks, ascending. Every rank is in it once.
        sizes_bytes: int64 array of shape (slices,).
    """

    owners: np.ndarray
    sizes_bytes: np.ndarray


def choose_keepers(parameters: Sequence[SharedSlices], device_count: int, replicas: int) -> np.ndarray:
    """A bool array of shape (parameters, stage ranks): which ranks keep their slice of which parameter.

    Each slice is kept by `replicas` of its ranks, or by all if they are fewer.
    """
    kept = np.zeros((len(parameters), device_count), dtype=np.bool_)
    loads_bytes = np.zeros(device_count, dtype=np.int64)
    # what cannot be chosen comes first: the others are put where it leaves room
    order = sorted(
        range(len(parameters)),
        key=lambda number: (
            parameters[number].owners.shape[1] > replicas,
            -int(parameters[number].sizes_bytes.max(initial=0)),
        ),
    )
    for number in order:
        owners = parameters[number].owners
        # slices of one parameter share no rank: all are decided at once
        least = np.argsort(loads_bytes[owners], axis=1, kind="stable")[:, :replicas]
        keepers = np.take_along_axis(owners, least, axis=1)
        kept[number, keepers] = True
        loads_bytes[keepers] += parameters[number].sizes_bytes[:, np.newaxis]
    return kept

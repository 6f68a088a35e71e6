"""Sums the fingerprints of many boxes by keys; small boxes of one shape and place are computed together.

The fingerprint of a box of a few KiB costs mostly the calls that lead to it. The layers of a model have parameters of
the same shape, sharded alike, so a rank's small boxes of one shape and place are many.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np

from reshard.core.tensor.fingerprint import box_fingerprint, box_fingerprints, combined
from reshard.core.tensor.slices import Shape

Key = TypeVar("Key", bound=Hashable)

_SMALL_BYTES = 32 * 2**10
"""Larger boxes are computed at once: copying them would cost more than the calls."""
_WAITING_BYTES = 2**20
_MAX_WAITING = 4096
"""Small boxes are kept up to these bounds: each takes some 200 bytes beside its own."""


class BoxSums(Generic[Key]):
    """The sum of the fingerprints of each key's boxes; 0 for one of `keys` without boxes."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._sums = dict.fromkeys(keys, 0)
        self._waiting: dict[tuple[np.dtype[np.unsignedinteger], Shape, Shape, Shape], list[tuple[Key, bytes]]] = {}
        self._waiting_bytes = self._waiting_count = 0

    def add(self, key: Key, values: np.ndarray, start: Shape, steps: Shape = ()) -> None:
        """Add a box, as `box_fingerprint` takes it; its values are copied if they are needed later."""
        if values.nbytes > _SMALL_BYTES:
            self._add(key, box_fingerprint(values, start, steps))
            return
        self._waiting.setdefault((values.dtype, values.shape, start, steps), []).append((key, values.tobytes()))
        self._waiting_bytes += values.nbytes
        self._waiting_count += 1
        if self._waiting_bytes > _WAITING_BYTES or self._waiting_count >= _MAX_WAITING:
            self._compute()

    def sums(self) -> dict[Key, int]:
        """Return the sums, each below 2**64, of all boxes so far."""
        self._compute()
        return self._sums

    def _compute(self) -> None:
        for (dtype, shape, start, steps), boxes in self._waiting.items():
            values = np.frombuffer(b"".join(content for _, content in boxes), dtype).reshape(len(boxes), *shape)
            for (key, _), fingerprint in zip(boxes, box_fingerprints(values, start, steps).tolist(), strict=True):
                self._add(key, fingerprint)
        self._waiting.clear()
        self._waiting_bytes = self._waiting_count = 0

    def _add(self, key: Key, fingerprint: int) -> None:
        self._sums[key] = combined([self._sums.get(key, 0), fingerprint])

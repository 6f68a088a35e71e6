"""How fast fingerprints are, on one core, from memory: `python -m benchmarks.fingerprint`.

Prints as JSON, in GB of values a second of the processor's time, what each item size gives: as one axis, as a matrix,
as a box of some columns of one, and as a matrix whose axes are turned. The box begins where words are cut off.
"""

import json
import time
from collections.abc import Callable

import numpy as np

from reshard.core.tensor.fingerprint import box_fingerprint

_BYTES = 2**26
_COLUMNS = 4096
_ROUNDS = 5


def main() -> None:
    """The command."""
    memory = np.random.default_rng(0).integers(0, 256, _BYTES, np.uint8)
    figures = {}
    for itemsize in (1, 2, 4, 8):
        axis = memory.view(f"<u{itemsize}")
        matrix = axis.reshape(-1, _COLUMNS)
        boxes = {"axis": axis, "matrix": matrix, "columns": matrix[:, : _COLUMNS // 2], "turned": matrix.T}
        figures[f"{itemsize} bytes"] = {name: round(_rate(box), 2) for name, box in boxes.items()}
    print(json.dumps(figures))


def _rate(box: np.ndarray) -> float:
    return box.nbytes / 1e9 / min(_seconds(lambda: box_fingerprint(box, (5,) * box.ndim)) for _ in range(_ROUNDS))


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


if __name__ == "__main__":
    main()

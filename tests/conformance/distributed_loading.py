"""A rank of a network that loads checkpoints without redundancy: what it lacks comes from the other ranks.

Run by msrun, with MindSpore's Python: RESULTS CHECKPOINT... It knows nothing of reshard. What the rank has of each
checkpoint in the end is written to RESULTS/{rank}.json: the bytes of each parameter in hex, or the error.
"""

import json
import sys
from pathlib import Path

import mindspore
from mindspore import nn
from mindspore.communication import get_rank, init


class Network(nn.Cell):  # type: ignore[misc]
    """Parameters that all ranks hold whole, zero as yet."""

    def __init__(self, shapes: dict[str, list[int]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            zeros = mindspore.ops.zeros(tuple(shape), mindspore.float32)
            setattr(self, name, mindspore.Parameter(zeros, name=name))
        self.compile_cache.add("compiled")  # or so MindSpore demands; nothing here is to be run


def load(checkpoint: Path, shapes: dict[str, list[int]]) -> dict[str, str]:
    """What this rank has after it has loaded its file, and what the others have."""
    network = Network(shapes)
    path = next((checkpoint / f"rank_{get_rank()}").iterdir())
    loaded = mindspore.load_checkpoint(str(path), format=path.suffix[1:], remove_redundancy=True)
    try:
        mindspore.load_param_into_net(network, loaded, remove_redundancy=True)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {name: parameter.asnumpy().tobytes().hex() for name, parameter in network.parameters_dict().items()}


def main(results: Path, checkpoints: list[Path]) -> None:
    """Loads each of the checkpoints."""
    mindspore.set_device("CPU")
    init()
    shapes = json.loads((results / "shapes.json").read_text())
    found = [load(checkpoint, shapes) for checkpoint in checkpoints]
    written = results / f"{get_rank()}.tmp"
    written.write_text(json.dumps(found))
    written.rename(results / f"{get_rank()}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])

"""The description of a Checkpoint 2.0."""

from collections.abc import Sequence

from reshard.core.layouts.checkpoint2.common import read_common
from reshard.core.layouts.checkpoint2.iterations import Iteration, iterations_beside
from reshard.core.layouts.source_layout import Document


def describe_iteration(iteration: Iteration, ignored: Sequence[str], *, unfinished: bool) -> Document:
    """Describe an iteration by its metadata and the names of its files, which are not opened."""
    metadata = iteration.metadata
    stages = metadata.strategy.stages if metadata else ()
    return {
        "kind": "Checkpoint 2.0",
        "url": iteration.url,
        "iteration": iteration.number,
        "other_iterations": [number for number in iterations_beside(iteration) if number != iteration.number],
        "common": read_common(iteration.location).values,
        "world_size": len(metadata.strategy.ranks) if metadata else 1,
        "stages": len(stages) or 1,
        "ranks": [{"rank": rank, "files": list(names)} for rank, names in iteration.files.items()],
        "parameters": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "shard_shape": list(tensor.local_shape),
                "first_rank": tensor.ranks.start if tensor.layout else None,
            }
            for tensor in (metadata.tensors.values() if metadata else ())
        ],
        "notes": list(iteration.notes),
        "ignored": list(ignored),
        "unfinished": unfinished,
    }

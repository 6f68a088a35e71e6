"""The part of a description, for `inspect`, that all checkpoints of placed shards have: their files and parameters."""

from collections.abc import Sequence

from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.layouts.source_layout import Document


def describe_shards(files: Sequence[ShardFile]) -> Document:
    """Return how many shards each file has, and the dtype, shape and shards of each parameter, sorted by name."""
    parameters: dict[str, Document] = {}
    for file in files:
        for shard in file.shards:
            parameter = parameters.setdefault(
                shard.name,
                {"name": shard.name, "dtype": shard.stored.dtype.name, "shape": list(shard.shape), "shards": []},
            )
            parameter["shards"].append(
                {"start": list(shard.box.start), "shape": list(shard.box.shape), "file": file.path}
            )
    return {
        "files": [{"file": file.path, "shards": len(file.shards)} for file in files],
        "parameters": [parameters[name] for name in sorted(parameters)],
    }

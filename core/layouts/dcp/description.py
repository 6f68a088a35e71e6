"""The description of a DCP checkpoint."""

from collections.abc import Sequence

from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint
from reshard.core.layouts.source_layout import Document


def describe_dcp(checkpoint: DcpCheckpoint, ignored: Sequence[str], *, unfinished: bool) -> Document:
    """Describe a DCP checkpoint by its metadata; its files are not opened."""
    held: dict[str, int] = {}
    for part in checkpoint.parts:
        held[part.path] = held.get(part.path, 0) + len(part.chunks)
    return {
        "kind": "DCP checkpoint",
        "url": checkpoint.url,
        "step": checkpoint.step,
        "other_steps": [number for number in checkpoint.steps if number != checkpoint.step],
        "files": [{"file": path, "shards": held.get(path, 0)} for path in checkpoint.paths],
        "parameters": [
            {
                "name": tensor.name,
                "dtype": None if tensor.dtype is None else tensor.dtype.name,
                "shape": list(tensor.shape),
                "shards": [
                    {"start": list(chunk.box.start), "shape": list(chunk.box.shape), "file": chunk.place.path}
                    for chunk in tensor.chunks
                ],
            }
            for tensor in checkpoint.metadata.tensors.values()
        ],
        "objects": list(checkpoint.metadata.objects),
        "notes": list(checkpoint.choice),
        "ignored": list(ignored),
        "unfinished": unfinished,
    }

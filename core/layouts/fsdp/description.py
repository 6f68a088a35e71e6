"""The description of a model's ranks for `inspect`."""

from collections.abc import Sequence

from reshard.core.layouts.fsdp.checkpoint import OpenedCheckpoint
from reshard.core.layouts.fsdp.places import SavedModel
from reshard.core.layouts.placed_description import describe_shards
from reshard.core.layouts.source_layout import Document


def describe_fsdp(saved: SavedModel, opened: OpenedCheckpoint, ignored: Sequence[str], *, unfinished: bool) -> Document:
    """Describe a model by the headers of its ranks' files."""
    optimizer = opened.optimizer
    unusable = {**opened.lost, **optimizer.lost}
    return {
        "kind": "FSDP checkpoint",
        "url": saved.url,
        "directory": str(saved.location),
        "step": saved.number,
        "other_steps": [number for number in saved.numbers if number != saved.number],
        "ranks": opened.world,
        **describe_shards(opened.files),
        "optimizer": optimizer.problem or ("by names" if optimizer.files else "none"),
        "unusable": [{"file": path, "why": why} for path, why in unusable.items()],
        "notes": [*saved.notes, *opened.notes],
        "ignored": list(ignored),
        "unfinished": unfinished,
    }

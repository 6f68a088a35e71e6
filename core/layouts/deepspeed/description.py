"""The description of a tag for `inspect`."""

from collections.abc import Sequence

from reshard.core.layouts.deepspeed.checkpoint import OpenedTag
from reshard.core.layouts.deepspeed.tags import Tag
from reshard.core.layouts.placed_description import describe_shards
from reshard.core.layouts.source_layout import Document


def describe_tag(tag: Tag, opened: OpenedTag, ignored: Sequence[str], *, unfinished: bool) -> Document:
    """Describe a tag by the headers of its files."""
    return {
        "kind": "DeepSpeed checkpoint",
        "url": tag.url,
        "tag": tag.location.name,
        "step": opened.model.steps if tag.number is None else tag.number,
        "other_steps": [number for number in tag.numbers if number != tag.number],
        "zero_stage": opened.stage,
        "ranks": opened.model.world_size,
        "deepspeed_version": opened.model.version,
        **describe_shards(opened.files),
        "optimizer": opened.state_problem or ("by names" if opened.states else "none"),
        "unusable": [],
        "notes": [*tag.notes, *opened.notes],
        "ignored": list(ignored),
        "unfinished": unfinished,
    }

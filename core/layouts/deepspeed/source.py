"""A tag of DeepSpeed's training as a source."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from reshard.core.changes.model_config import CONFIG_NAME as MODEL_CONFIG
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file
from reshard.core.errors import CatalogError
from reshard.core.layouts.deepspeed.names import (
    LATEST_NAME,
    is_tag,
    parse_rank_name,
    parse_tag,
)
from reshard.core.layouts.deepspeed.tags import Tag, choose_tag, list_tags, newest_tag, tag_in
from reshard.core.layouts.place import Place, PlaceKind, lacks_manifest, relative_path, whole_file
from reshard.core.layouts.placed_source import FoundShards
from reshard.core.layouts.source_layout import (
    CatalogOptions,
    Document,
    SourceLayout,
)
from reshard.core.layouts.state_numbers import Number
from reshard.core.layouts.trainer_output import TRAINER_STATE
from reshard.core.storage.links import check_links
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.layouts.deepspeed.checkpoint import OpenedTag
    from reshard.core.layouts.deepspeed.steps import TagSteps

_TITLE = "DeepSpeed checkpoint"
_OF_TRAINER = frozenset({MODEL_CONFIG, TRAINER_STATE})
"""Hugging Face's Trainer has DeepSpeed save into its own checkpoint-40/, which has both."""
_WEIGHTS = re.compile(r".+\.safetensors|pytorch_model.*\.bin", re.DOTALL)


class FoundTag(FoundShards):
    """A tag that was found; its files are opened when its sharding is asked for."""

    tag: Tag

    title = _TITLE
    evidence = "the shapes in its files say how tensors are partitioned, and lengths and paddings agree"
    has_replicas = False
    may_share_bytes = True
    no_steps = "is the directory of one tag. Name the directory that training saves all into"

    @cached_property
    def opened(self) -> "OpenedTag":
        """Its files, after their headers were read."""
        from reshard.core.layouts.deepspeed.checkpoint import open_tag

        return open_tag(self.tag)

    @property
    def numbers(self) -> Sequence[int]:
        """The steps of the training."""
        return self.tag.numbers

    @cached_property
    def model_directory(self) -> Location | None:
        """The directory of the tag's directory, if it is a checkpoint of Hugging Face's Trainer without weights.

        One with weights has no optimizer's states, which the tag has.
        """
        directory = self.tag.location.parent
        names = names_if_directory(directory)
        return directory if _OF_TRAINER.issubset(names) and not _has_weights(names) else None

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Compare what its files hold with each other."""
        from reshard.core.layouts.deepspeed.catalog import deepspeed_catalog

        return deepspeed_catalog(self.tag, self.opened, options)

    def describe(self) -> Document:
        """Describe it by the headers of its files."""
        from reshard.core.layouts.deepspeed.description import describe_tag

        return describe_tag(self.tag, self.opened, self.ignored, unfinished=self.unfinished)


class DeepSpeedSource(SourceLayout):
    """Checkpoints of DeepSpeed's ZeRO, a file for each rank, as a source."""

    name = "deepspeed"

    def recognize(self, place: Place, step: str) -> FoundTag | None:
        """Return a tag: the one of a directory, or the one of several that is meant."""
        if place.kind is PlaceKind.FILE:
            if is_tag([place.location.name]):
                raise CatalogError(
                    f"{place.location}: is a part of a {_TITLE}: name the directory of its tag, {place.location.parent}"
                )
            return None
        if not _may_be_read(place):
            return None
        tag = tag_in(place.location, place.names, step)
        return None if tag is None else _found(tag, place)

    def holds(self, names: Sequence[str]) -> bool:
        """True for files of ranks."""
        return is_tag(names)

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the tag's step."""
        if is_tag(place.names):
            return parse_tag(place.location.name)
        tags = list_tags(place.location, place.names) if _may_be_read(place) else None
        return None if tags is None else parse_tag(choose_tag(tags, step)[0])

    def note_beside(self, root: Location, names: Sequence[str]) -> str:
        """Say where the masters of a model are that Hugging Face's Trainer saved beside them."""
        tag = newest_tag(root, names)
        if not tag:
            return ""
        return (
            f"its training's float32 masters and optimizer's states are not in it, but in {tag}/, a {_TITLE}: name "
            f"{root.child(tag)} to read these"
        )

    def find_steps(self, place: Place) -> "TagSteps | None":
        """Return the tags in a directory that have a step."""
        from reshard.core.layouts.deepspeed.steps import TagSteps

        is_training = _may_be_read(place) and not is_tag(place.names)
        tags = list_tags(place.location, place.names) if is_training else None
        return TagSteps(tags.root, tags.numbered, tags.latest) if tags is not None and tags.numbered else None

    def numbers_beside(self, catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
        """Return the step of the training, and that of its optimizer."""
        from reshard.core.layouts.deepspeed.numbers import optimizer_numbers

        location = first_file(catalog)
        if parse_rank_name(location.name) is None:
            return None
        step = {"global_step": int(catalog.step)} if catalog.step else {}
        return {**step, **optimizer_numbers(location.parent)} or None


SOURCE = DeepSpeedSource()


def _has_weights(names: Sequence[str]) -> bool:
    """True if whole weights are in a directory with these names, which are what is read then."""
    return any(_WEIGHTS.fullmatch(name) for name in names)


def _may_be_read(place: Place) -> bool:
    """True for a directory without whole weights, and for a tag, whatever is in it."""
    return place.kind is PlaceKind.DIRECTORY and (is_tag(place.names) or not _has_weights(place.names))


def _found(tag: Tag, place: Place) -> FoundTag:
    names = [name for name in tag.names if parse_rank_name(name) is not None]
    files = [tag.location.child(name) for name in sorted(names)]
    check_links(tag.location, files)
    known = {STATE_DIRECTORY, *names}
    inside = [name for name in tag.names if name not in known]
    if tag.location != place.location:
        inside = [f"{tag.location.name}/{name}" for name in inside]
        beside = [item for item in place.items if item.name not in (LATEST_NAME, STATE_DIRECTORY, tag.location.name)]
        inside += [relative_path(place.location, item) for item in beside if parse_tag(item.name) is None]
    return FoundTag(
        tag.url,
        {rank: (whole_file(file),) for rank, file in enumerate(files)},
        tag,
        ignored=tuple(inside),
        unfinished=lacks_manifest(tag.location, tag.names),
    )

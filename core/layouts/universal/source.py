"""A universal checkpoint of DeepSpeed as a source, DeepSpeed's own or a conversion's."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.dense_view import first_file
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.place import Place, PlaceKind, lacks_manifest, whole_file
from reshard.core.layouts.placed_source import FoundShards
from reshard.core.layouts.source_layout import (
    CatalogOptions,
    Document,
    ListedParameters,
    SourceLayout,
    TrackedSteps,
)
from reshard.core.layouts.state_numbers import OPTIMIZER_STEP, Number
from reshard.core.layouts.universal.names import (
    LATEST,
    STATE_FOLDER,
    STEP,
    WEIGHT,
    is_own_path,
    parse_state,
    parse_tag,
)
from reshard.core.layouts.universal.tag import UniversalTag, is_universal, number_of, tag_at, tags_in
from reshard.core.storage.listing import exists
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.options import source_option

if TYPE_CHECKING:
    from reshard.core.layouts.universal.checkpoint import OpenedUniversal

_TITLE = "universal checkpoint of DeepSpeed"


class FoundUniversal(FoundShards):
    """A universal checkpoint that was found; its files are opened when their contents are asked for."""

    tag: UniversalTag

    title = _TITLE
    evidence = "its tensors are whole, each in a file of its own"
    has_replicas = False
    may_share_bytes = True
    no_steps = "is one universal checkpoint. Name the directory of all steps"

    @cached_property
    def opened(self) -> "OpenedUniversal":
        """Its files, after their headers were read."""
        from reshard.core.layouts.universal.checkpoint import open_universal

        return open_universal(self.tag)

    @property
    def numbers(self) -> Sequence[int]:
        """The steps of the training."""
        return self.tag.numbers

    @property
    def strategy_refusal(self) -> str:
        """Its tensors are whole."""
        return f"{self.url}: is a {_TITLE}: its tensors are whole, so leave out {source_option('source_strategy')}"

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Catalog its files, with the CRCs of their tensors."""
        from reshard.core.layouts.placed_crcs import with_crcs
        from reshard.core.layouts.placed_shards import placed_records

        opened = self.opened
        records = placed_records(opened.files)
        if options.check_crc:
            unwanted = frozenset(options.damage.excluded(opened.names))
            records = with_crcs(opened.files, records, unwanted, options)
        step = None if self.tag.number is None else str(self.tag.number)
        return CheckpointCatalog(self.url, CheckpointFormat.SAFETENSORS, step, records)

    def listed_parameters(self, catalog: CheckpointCatalog) -> ListedParameters | None:
        """The parameters that it lists, and does not hold."""
        opened = self.opened
        if not opened.missing:
            return None
        return ListedParameters(self.url, [*opened.names, *opened.missing], opened.missing)

    def describe(self) -> Document:
        """Describe it by the headers of its files."""
        shards = [(file, shard) for file in self.opened.files for shard in file.shards]
        return {
            "kind": _TITLE,
            "url": self.url,
            "tag": self.tag.location.name,
            "step": self.tag.number,
            "other_steps": [number for number in self.tag.numbers if number != self.tag.number],
            "parameters": [
                {
                    "name": shard.name,
                    "dtype": shard.stored.dtype.name,
                    "shape": list(shard.shape),
                    "file": file.path,
                }
                for file, shard in shards
            ],
            "missing": list(self.opened.missing),
            "ignored": list(self.ignored),
            "unfinished": self.unfinished,
        }


class UniversalSource(SourceLayout):
    """Universal checkpoints as a source."""

    name = "universal"

    def recognize(self, place: Place, step: str) -> FoundUniversal | None:
        """Return the checkpoint of a directory, or of several the one that is meant."""
        location = place.location
        if place.kind is PlaceKind.FILE:
            if location.parent.parent.name == STATE_FOLDER and is_own_path("/".join(location.path.split("/")[-3:])):
                raise _is_part(location, location.parent.parent.parent)
            return None
        if location.parent.name == STATE_FOLDER and f"{WEIGHT}.pt" in place.names:
            raise _is_part(location, location.parent.parent)
        tag = tag_at(location, place.names, step) if place.kind is PlaceKind.DIRECTORY else None
        return None if tag is None else _found(tag)

    def holds(self, names: Sequence[str]) -> bool:
        """True for the folder of tensors beside the files of the model's state."""
        return is_universal(names)

    def number_at(self, place: Place, step: str) -> int | None:
        """Return the number in the tag."""
        if place.kind is not PlaceKind.DIRECTORY:
            return None
        if is_universal(place.names):
            return parse_tag(place.location.name)
        return number_of(place.location, place.names, step)

    def tracked_steps(self, root: Location, names: Sequence[str]) -> TrackedSteps | None:
        """Return the steps in a directory, and what reads the tracker."""
        tags: Mapping[int, str] = tags_in(names)
        return TrackedSteps(root, tags, LATEST) if tags else None

    def numbers_beside(self, catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
        """Return the step of the training, and that of its optimizer."""
        from reshard.core.layouts.deepspeed.numbers import step_in_file

        if first_file(catalog).parent.parent.name != STATE_FOLDER:
            return None
        numbers: dict[str, Number] = {"global_step": int(catalog.step)} if catalog.step else {}
        for record in catalog.records.values():
            if any(parse_state(name)[0] for name in record.index.entries):
                step = parse_url(record.location).parent.child(f"{STEP}.pt")
                return numbers | ({OPTIMIZER_STEP: step_in_file(step)} if exists(step) else {})
        return numbers


SOURCE = UniversalSource()


def _is_part(location: Location, directory: Location) -> CatalogError:
    return CatalogError(f"{location}: is a part of a {_TITLE}: name its directory, {directory}")


def _found(tag: UniversalTag) -> FoundUniversal:
    known = {STATE_DIRECTORY, STATE_FOLDER, *tag.model_names}
    files = [tag.location.child(name) for name in tag.model_names]
    return FoundUniversal(
        tag.url,
        {rank: (whole_file(file),) for rank, file in enumerate(files)},
        tag,
        ignored=tuple(name for name in tag.names if name not in known),
        unfinished=lacks_manifest(tag.location, tag.names),
    )

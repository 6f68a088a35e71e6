"""State dicts that torch.save wrote as a source: one file, or several of Hugging Face's with an index."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, StorageError
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.foreign import check_not_foreign
from reshard.core.layouts.indexed_tensors import (
    FoundIndexed,
    WeightIndex,
    check_no_single,
    only_index,
)
from reshard.core.layouts.model_files import ModelFileNames, ModelFiles, model_files
from reshard.core.layouts.numbered_shards import are_numbered_shards, parse_shard
from reshard.core.layouts.place import Place, PlaceKind, directory_at, whole_file
from reshard.core.layouts.source_layout import CatalogOptions, Document, SelfEvident, SourceLayout
from reshard.core.layouts.torch.names import INDEX_NAME, SINGLE_NAME, is_index, is_torch_file, is_weights, rank_template
from reshard.core.layouts.torch.state_dict import NotChosenError
from reshard.core.layouts.weight_maps import check_file_names, read_weight_map
from reshard.core.layouts.whole_tensors import describe_whole_tensors
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location
from reshard.core.text.options import option, spelled

_MAX_LISTED = 6


class FoundStateDict(FoundIndexed):
    """State dicts that were found."""

    title = "PyTorch checkpoint"
    has_trees: ClassVar[bool] = True
    may_share_bytes: ClassVar[bool] = True
    no_steps = "is one PyTorch checkpoint, and has no steps: convert it with `reshard convert`"

    @property
    def self_evident(self) -> SelfEvident:
        """Its tensors are whole."""
        return SelfEvident("PyTorch", len(self.files), "its tensors are whole")

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse options about ranks and steps."""
        self.check_left_out(options.about_ranks, "whose tensors are whole, and which is never encrypted")
        super().check_options(options)

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Open its files, and compare its index with them."""
        from reshard.core.layouts.torch.catalog import torch_catalog

        locations = [file.location for (file,) in self.files.values()]
        catalog = torch_catalog(self.url, locations, self.index, options)
        return replace(catalog, notes=(*self.index_notes(is_weights), *self._part_notes(), *catalog.notes))

    def _part_notes(self) -> list[str]:
        """A note if its only file, without an index, is one of several by its name."""
        names = [file.location.name for (file,) in self.files.values()]
        shard = parse_shard(names[0]) if len(names) == 1 and self.index is None else None
        if shard is None:
            return []
        return [f"{names[0]} is one of {shard.count} files by its name: what the others hold is not read"]

    def describe(self) -> Document:
        """Describe it by its files, which are opened; or by the dicts in a file, one of which has to be chosen."""
        try:
            catalog = catalog_of(self, CatalogOptions(check_crc=False))
        except NotChosenError as error:
            chosen = spelled(f"choose one with {option('root', 'KEY')}")
            return {"kind": "PyTorch file", "url": self.url, "has": list(error.there), "note": chosen}
        return describe_whole_tensors(self.title, catalog, self.index_name, self.ignored)


class TorchSource(SourceLayout):
    """Files of PyTorch's whole tensors, as a source."""

    name = "torch"

    def is_document(self, name: str) -> bool:
        """True for the name of an index, and of a file that is a checkpoint by itself."""
        return is_index(name) or is_torch_file(name)

    def recognize(self, place: Place, step: str) -> FoundStateDict | None:
        """Return the checkpoint of an index, of one file, or of the files in a directory of Hugging Face's.

        A directory with files of other formats that reshard reads is theirs.
        """
        if place.kind is PlaceKind.FILE:
            return _named(place.location)
        if place.kind is not PlaceKind.DIRECTORY or place.rank_folders or place.checkpoint_files:
            return None
        return _in_directory(place)

    def model_files(self, place: Place) -> ModelFiles | None:
        """Return a model's .bin files."""
        return model_files(place, _MODEL_FILES, _entries)

    def holds(self, names: Sequence[str]) -> bool:
        """True for files in Hugging Face's scheme."""
        return any(is_weights(name) or is_index(name) for name in names)

    def note_beside(self, root: Location, names: Sequence[str]) -> str:
        """Say that weights were saved twice: transformers, too, reads those in safetensors."""
        weights = [name for name in names if is_weights(name)]
        return f"beside its .safetensors files, so ignored: {listed(weights, _MAX_LISTED)}" if weights else ""


SOURCE = TorchSource()

_MODEL_FILES = ModelFileNames(SINGLE_NAME, INDEX_NAME, ".bin", is_weights)


def _entries(location: Location) -> Mapping[str, TensorEntry]:
    from reshard.core.layouts.torch.catalog import torch_catalog

    catalog = torch_catalog(str(location), [location], None, CatalogOptions(check_crc=False))
    return catalog.records[0].index.entries


def _named(location: Location) -> FoundStateDict | None:
    """The checkpoint of a file that is named: an index, or a state dict."""
    if is_index(location.name):
        return _of_index(directory_at(location.parent), location)
    if not is_torch_file(location.name):
        return None
    check_not_foreign(location, [location.name])
    _check_not_rank(location)
    return FoundStateDict(str(location), {0: (whole_file(location),)}, None)


def _check_not_rank(location: Location) -> None:
    """Refuse a file that is one of several ranks' by its name: its tensors may be slices."""
    template = rank_template(location.name)
    if template is None:
        return
    others = [name for name in _names_beside(location) if rank_template(name) == template and name != location.name]
    if others:
        raise CatalogError(
            f"{location}: is one rank's of {counted(len(others) + 1, 'file')} by its name, with "
            f"{listed(others, _MAX_LISTED)} beside it: its tensors may be slices, and how they are cut is not in it. "
            "Put the model together with the program that saved it, and convert that"
        )


def _names_beside(location: Location) -> list[str]:
    try:
        return names_in(location.parent)
    except StorageError as error:
        if error.transient:
            raise
        return []  # who may read a file may not be allowed to list its folder


def _in_directory(place: Place) -> FoundStateDict | None:
    index = only_index(place, is_index)
    if index is not None:
        return _of_index(place, index)
    weights = [item for item in place.items if is_weights(item.name) and item.kind == "file"]
    if not weights:
        return None
    there = [item.name for item in weights]
    if not are_numbered_shards(place.location, there, INDEX_NAME) and len(weights) > 1:
        raise CatalogError(
            f"{place.location}: has {listed(there, _MAX_LISTED)}: name the one that is meant ({weights[0].location})"
        )
    return FoundStateDict.of(place, there, None)


def _of_index(place: Place, location: Location) -> FoundStateDict:
    index = WeightIndex(location, read_weight_map(location))
    check_file_names(index.files, location, ".bin")
    check_no_single(place, index, f"{location.name.partition('.bin.index')[0]}.bin")
    return FoundStateDict.of(place, index.files.values(), index)

"""A unified checkpoint as a source: whole tensors in a few files, and mostly an index of their places."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.record_reader import no_digest
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat, TensorEntry
from reshard.core.layouts.any_layout import notes_beside
from reshard.core.layouts.cataloging import catalog_files, catalog_of
from reshard.core.layouts.indexed_tensors import (
    FoundIndexed,
    WeightIndex,
    check_index,
    check_no_single,
    names_outside,
    only_index,
)
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.model_files import ModelFileNames, ModelFiles, model_files
from reshard.core.layouts.numbered_shards import are_numbered_shards
from reshard.core.layouts.place import Place, PlaceKind, directory_at
from reshard.core.layouts.source_layout import CatalogOptions, Document, SelfEvident, SourceLayout
from reshard.core.layouts.unified.names import INDEX_NAME, MAP_NAME, SINGLE_NAME, is_index_name
from reshard.core.layouts.weight_maps import OTHERS_NAME, check_file_names, read_weight_map
from reshard.core.layouts.whole_tensors import describe_whole_tensors
from reshard.core.storage.urls import Location, parse_url


class FoundUnified(FoundIndexed):
    """A unified checkpoint that was found."""

    title = "unified checkpoint"
    no_steps = "is a unified checkpoint, and has no steps: convert it with `reshard convert`"

    @property
    def self_evident(self) -> SelfEvident:
        """Its tensors are whole."""
        return SelfEvident(
            "unified",
            len(self.files),
            "its tensors are whole",
            superfluous="the checkpoint is unified: its tensors are whole, and belong to no rank",
            origin="it was exported, as Hugging Face's checkpoints are",
        )

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        """Open its files, and compare its index with them."""
        if not self.files:
            check_index(self.url, self.index, {})
            raise CatalogError(f"{self.url}: its index names no file")
        files = {rank: file.location for rank, (file,) in self.files.items()}
        catalog = catalog_files(
            self.url, files, digest=options.digest, check_crc=options.check_crc, workers=options.workers
        )
        notes = check_index(self.url, self.index, catalog.records)
        notes += notes_beside(parse_url(self.url), [name.rstrip("/") for name in self.ignored])
        notes += self.index_notes(lambda name: name.endswith(f".{CheckpointFormat.SAFETENSORS}"))
        outside = names_outside(catalog.records)
        return replace(catalog, notes=notes, has_whole_tensors=True, outside=outside)

    def as_source(self, catalog: CheckpointCatalog, *, refuses_parts: bool) -> CheckpointCatalog:
        """Complete the catalog with the parameters outside of any strategy that its manifest records."""
        manifest = read_manifest(parse_url(catalog.url))
        if manifest is None:
            return catalog
        return replace(catalog, outside=tuple(dict.fromkeys([*catalog.outside, *manifest.carried])))

    def describe(self) -> Document:
        """Describe it by its files, which are opened, and compared with its index."""
        catalog = catalog_of(self, CatalogOptions(check_crc=False))
        return describe_whole_tensors(self.title, catalog, self.index_name, self.ignored)


class UnifiedSource(SourceLayout):
    """Files of whole tensors, MindSpore's and Hugging Face's, as a source."""

    name = "unified"

    def is_document(self, name: str) -> bool:
        """True for the name of an index."""
        return is_index_name(name)

    def recognize(self, place: Place, step: str) -> FoundUnified | None:
        """Return the checkpoint of an index; or without one that of files whose names say that they are complete.

        A directory with rank folders is a checkpoint of ranks, whatever lies beside them.
        """
        if place.kind is PlaceKind.FILE and self.is_document(place.location.name):
            return _found(directory_at(place.location.parent), place.location)
        if place.kind is not PlaceKind.DIRECTORY or place.rank_folders:
            return None
        index = only_index(place, is_index_name)
        names = [file.location.name for file in place.checkpoint_files]
        # an index decides alone; are_numbered_shards refuses sets of files that are incomplete
        if index is not None or names == [SINGLE_NAME] or are_numbered_shards(place.location, names, INDEX_NAME):
            return _found(place, index)
        return None

    def model_files(self, place: Place) -> ModelFiles | None:
        """Return a model's .safetensors files."""
        return model_files(place, _MODEL_FILES, _entries)

    def holds(self, names: Sequence[str]) -> bool:
        """True for an index."""
        return any(map(is_index_name, names))


SOURCE = UnifiedSource()

_SUFFIX = f".{CheckpointFormat.SAFETENSORS}"
_MODEL_FILES = ModelFileNames(SINGLE_NAME, INDEX_NAME, _SUFFIX, lambda name: name.endswith(_SUFFIX))


def _entries(location: Location) -> Mapping[str, TensorEntry]:
    catalog = catalog_files(str(location), {0: location}, digest=no_digest, check_crc=False, workers=1)
    return catalog.records[0].index.entries


def _found(place: Place, index_location: Location | None) -> FoundUnified:
    """List the files in an index and, beside MindSpore's, the file of parameters that no strategy covers.

    Without an index all checkpoint files count.
    """
    if index_location is None:
        return FoundUnified.of(place, [file.location.name for file in place.checkpoint_files], None)
    index = WeightIndex(index_location, read_weight_map(index_location))
    check_file_names(index.files, index.location)
    check_no_single(place, index, SINGLE_NAME)
    others = [OTHERS_NAME] if index.location.name == MAP_NAME else []
    return FoundUnified.of(place, {*index.files.values(), *others}, index)

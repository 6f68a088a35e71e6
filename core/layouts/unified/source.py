"""A unified checkpoint as a source: whole tensors in a few files, and mostly an index of their places."""

from collections.abc import Sequence

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.cataloging import catalog_files, catalog_of
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.place import Place, PlaceKind, directory_at, lacks_manifest, relative_path, whole_file
from reshard.core.layouts.source_layout import CatalogOptions, Document, FoundCheckpoint, SelfEvident, SourceLayout
from reshard.core.layouts.unified.index import WeightIndex, are_numbered_shards, check_index, file_order, names_outside
from reshard.core.layouts.unified.names import MAP_NAME, OTHERS_NAME, SINGLE_NAME, is_index_name
from reshard.core.layouts.unified.weight_maps import check_file_names, read_weight_map
from reshard.core.layouts.whole_tensors import strategy_of_files
from reshard.core.runtime.wording import listed
from reshard.core.storage.links import check_links
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option


class FoundUnified(FoundCheckpoint):
    """A unified checkpoint that was found, and its index; None without one."""

    index: WeightIndex | None

    has_whole_tensors = True
    no_steps = "is a unified checkpoint. Name the directory that training saves into"

    @property
    def strategy_refusal(self) -> str:
        """Its tensors are whole."""
        return (
            f"{self.url}: is a unified checkpoint: its tensors are whole, so leave out "
            f"{source_option('source_strategy')}"
        )

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

    def check_options(self, options: CatalogOptions) -> None:
        """Refuse a strategy, other steps and replicas."""
        if options.ranks is not None:
            raise CatalogError(self.strategy_refusal)
        if options.step or options.source_prefix:
            raise CatalogError(
                f"{self.url}: is a unified checkpoint, without steps or prefixes: leave out "
                f"{source_option('step')} and {option('source_prefix')}"
            )
        if options.damage.recovers:
            raise CatalogError(
                f"{self.url}: is a unified checkpoint, which has everything once and so nothing to recover from: "
                f"leave out {option('recover', True)}"
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
        if self.index is None and len(files) > 1:
            notes += (f"there is no index: its {len(files)} files are complete by the numbers in their names",)
        beside = [name for name in self.ignored if name.endswith(f".{CheckpointFormat.SAFETENSORS}")]
        if beside:
            notes += (f"beside the files of the checkpoint, and not in its index, so ignored: {listed(beside, 6)}",)
        outside = names_outside(catalog.records)
        return replace(catalog, notes=notes, has_whole_tensors=True, outside=outside)

    def sharding_of(self, catalog: CheckpointCatalog) -> Strategy | None:
        """Each file is a stage of one device."""
        return strategy_of_files(catalog) if catalog.records else None

    def as_source(self, catalog: CheckpointCatalog, *, refuses_parts: bool) -> CheckpointCatalog:
        """Complete the catalog with the parameters outside of any strategy that its manifest records."""
        manifest = read_manifest(parse_url(catalog.url))
        if manifest is None:
            return catalog
        return replace(catalog, outside=tuple(dict.fromkeys([*catalog.outside, *manifest.carried])))

    def describe(self) -> Document:
        """Describe it by its files, which are opened, and compared with its index."""
        from reshard.core.layouts.unified.description import describe_unified

        catalog = catalog_of(self, CatalogOptions(check_crc=False))
        return describe_unified(catalog, self.index.location.name if self.index else None, self.ignored)


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
        index = _only_index(place)
        names = [file.location.name for file in place.checkpoint_files]
        # an index decides alone; are_numbered_shards refuses sets of files that are incomplete
        if index is not None or names == [SINGLE_NAME] or are_numbered_shards(place.location, names):
            return _found(place, index)
        return None

    def holds(self, names: Sequence[str]) -> bool:
        """True for an index."""
        return any(map(is_index_name, names))


SOURCE = UnifiedSource()


def _only_index(place: Place) -> Location | None:
    """Return the index of a directory, which has at most one; None if it has none."""
    indexes = [item.location for item in place.items if is_index_name(item.name) and item.kind == "file"]
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise CatalogError(f"{place.location}: has several indexes, {names}: name the one that is meant ({indexes[0]})")
    return indexes[0] if indexes else None


def _found(place: Place, index_location: Location | None) -> FoundUnified:
    """List the files in an index and, beside MindSpore's, the file of parameters that no strategy covers.

    Without an index all checkpoint files count.
    """
    root = place.location
    if index_location is None:
        index, wanted = None, {file.location.name for file in place.checkpoint_files}
    else:
        index = WeightIndex(index_location, read_weight_map(index_location))
        wanted = _names_wanted(place, index)
    there = sorted(
        (item for item in place.items if item.name in wanted and item.kind == "file"),
        key=lambda item: file_order(item.name),
    )
    documents = [index_location] if index_location else []
    check_links(root, [*(item.location for item in there), *documents])
    known = {STATE_DIRECTORY, *(item.name for item in there), *(document.name for document in documents)}
    return FoundUnified(
        str(root),
        {number: (whole_file(item.location),) for number, item in enumerate(there)},
        index,
        ignored=tuple(relative_path(root, item) for item in place.items if item.name not in known),
        unfinished=lacks_manifest(root, place.names),
    )


def _names_wanted(place: Place, index: WeightIndex) -> set[str]:
    """The names of the files that an index means; a CatalogError if a file beside it may be meant instead."""
    check_file_names(index.files, index.location)
    wanted = {*index.files.values(), *([OTHERS_NAME] if index.location.name == MAP_NAME else [])}
    if SINGLE_NAME not in wanted and SINGLE_NAME in place.names:
        raise CatalogError(
            f"{place.location}: has {SINGLE_NAME}, and beside it {index.location.name}, which does not list it: it is "
            "unclear which is the checkpoint. Remove the other one"
        )
    return wanted

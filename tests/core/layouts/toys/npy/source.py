"""A directory of `.npy` files as a source."""

from collections.abc import Sequence
from contextlib import closing

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.place import Place, lacks_manifest, whole_file
from reshard.core.layouts.source_layout import CatalogOptions, Document, FoundCheckpoint, SelfEvident, SourceLayout
from reshard.core.layouts.whole_tensors import strategy_of_files
from reshard.core.storage.reading import open_source, read_version
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy

from .files import read_array


class FoundArrays(FoundCheckpoint):
    """A directory with a file for each tensor."""

    has_whole_tensors = True
    no_steps = "is a directory of arrays. Name the directory that training saves into"

    @property
    def self_evident(self) -> SelfEvident:
        return SelfEvident("arrays", len(self.files), "its arrays are whole")

    def check_options(self, options: CatalogOptions) -> None:
        if options.step or options.source_prefix:
            raise CatalogError(f"{self.url}: arrays have no steps")

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        records = {number: _record(number, file.location) for number, (file,) in self.files.items()}
        return CheckpointCatalog(self.url, CheckpointFormat.SAFETENSORS, None, records, has_whole_tensors=True)

    def sharding_of(self, catalog: CheckpointCatalog) -> Strategy:
        return strategy_of_files(catalog)

    def describe(self) -> Document:
        return {"kind": "arrays", "url": self.url, "files": [file.location.name for (file,) in self.files.values()]}


def _record(number: int, location: Location) -> CatalogRecord:
    with closing(open_source(location)) as file:
        index = read_array(file)
    return CatalogRecord(number, str(location), index.size_bytes, read_version(location), index)


class Arrays(SourceLayout):
    """The layout."""

    name = "npy"

    def holds(self, names: Sequence[str]) -> bool:
        return any(name.endswith(".npy") for name in names)

    def recognize(self, place: Place, step: str) -> FoundArrays | None:
        arrays = [item for item in place.items if item.name.endswith(".npy")]
        if not arrays:
            return None
        files = {number: (whole_file(item.location),) for number, item in enumerate(arrays)}
        ignored = tuple(name for name in place.names if not name.endswith(".npy"))
        unfinished = lacks_manifest(place.location, place.names)
        return FoundArrays(str(place.location), files, ignored=ignored, unfinished=unfinished)


SOURCE = Arrays()

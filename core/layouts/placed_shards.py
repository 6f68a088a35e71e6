"""Checkpoints whose layout knows the box of each shard in their files, as trainings with PyTorch save them.

A file may hold several shards of one parameter, such as the gates and the ups that a tensor-parallel rank has of a
matrix. Its shards are therefore divided among *parts*, with at most one of each parameter in each; the parts count as
ranks. Shards with the same box are replicas.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.dense_view import place_strided
from reshard.core.errors import LayoutError, StrategyError, raise_problems
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.files.torch_views import StoredTensor
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.layout import ParameterLayout, boxes_layout
from reshard.core.tensor.slices import Shape, TensorSlice


class PlacedShard(Record):
    """A shard of a parameter in a file.

    Attributes:
        name: the parameter's name in the whole model.
        shape: shape of the whole parameter.
        box: the shard's box in it.
        stored: where its elements are in the file; of the box's shape.
    """

    name: str
    shape: Shape
    box: TensorSlice
    stored: StoredTensor

    @classmethod
    def whole(cls, name: str, stored: StoredTensor) -> "PlacedShard":
        """Return the one shard of a parameter that is whole in a file."""
        return cls(name, stored.shape, TensorSlice.whole(stored.shape), stored)


class ShardFile(Record):
    """A file and the shards in it; `path` is below the checkpoint's directory, `location` its URL."""

    path: str
    location: str
    size_bytes: int
    version: str
    shards: tuple[PlacedShard, ...]

    @property
    def parts(self) -> list[dict[str, PlacedShard]]:
        """Its shards by name, those of one parameter each in another part."""
        parts: list[dict[str, PlacedShard]] = []
        counts: dict[str, int] = {}
        for shard in self.shards:
            number = counts.get(shard.name, 0)
            counts[shard.name] = number + 1
            if number == len(parts):
                parts.append({})
            parts[number][shard.name] = shard
        return parts


def placed_strategy(files: Sequence[ShardFile], origin: str) -> Strategy:
    """Return the boxes of all parameters over the parts of files, in their order.

    Raises:
        StrategyError: shards of a parameter do not tile it, or differ in what its whole shape is; names all of them.
    """
    parts = [part for file in files for part in file.parts]
    owned: dict[str, list[tuple[int, TensorSlice]]] = {}
    shapes: dict[str, Shape] = {}
    problems: list[str] = []
    for rank, part in enumerate(parts):
        for name, shard in part.items():
            owned.setdefault(name, []).append((rank, shard.box))
            if shapes.setdefault(name, shard.shape) != shard.shape:
                problems.append(f"parameter {name!r} has the shapes {list(shapes[name])} and {list(shard.shape)}")
    known: dict[ShardBoxes, ParameterLayout] = {}
    layouts = {}
    for name, boxes in owned.items():
        listed = ShardBoxes(shapes[name], tuple(boxes))
        layout = known.get(listed)
        if layout is None:
            try:
                listed.check_tiling()
            except LayoutError as error:
                problems.append(f"parameter {name!r}: {error.marked}")
                continue
            layout = known[listed] = boxes_layout(listed, len(parts))
        layouts[name] = layout
    raise_problems(StrategyError, f"{origin}: its shards do not go together", problems)
    return Strategy((StageStrategy(0, layouts, devices=len(parts)),), origin)


def placed_records(files: Sequence[ShardFile]) -> Mapping[int, CatalogRecord]:
    """Return the record of each part of files, in their order."""
    records: dict[int, CatalogRecord] = {}
    for file in files:
        for part in file.parts:
            rank = len(records)
            records[rank] = CatalogRecord(rank, file.location, file.size_bytes, file.version, _index(file, part))
    return records


def part_locations(files: Sequence[ShardFile], directory: Location) -> dict[int, Location]:
    """Return the file of each part in a checkpoint's directory, in their order."""
    paths = [file.path for file in files for _ in file.parts]
    return {rank: directory.child(*path.split("/")) for rank, path in enumerate(paths)}


def _index(file: ShardFile, part: Mapping[str, PlacedShard]) -> FileIndex:
    entries: dict[str, TensorEntry] = {}
    strided = {}
    for name, shard in part.items():
        stored = shard.stored
        extents = () if stored.extent is None else (stored.extent,)
        entries[name] = TensorEntry(name, stored.dtype, stored.shape, extents)
        if stored.strided is not None:
            strided[name] = stored.strided
    for name, extent in place_strided([entries[name] for name in strided], file.size_bytes).items():
        entries[name] = replace(entries[name], extents=(extent,))
    return FileIndex(CheckpointFormat.SAFETENSORS, file.size_bytes, entries, strided=strided)

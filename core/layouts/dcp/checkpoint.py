"""Finds the checkpoint of PyTorch's Distributed Checkpoint (DCP) at a URL: its metadata, or what takes its place.

Its files count as ranks of one stage. A file with several chunks of one tensor counts as several, each with one of
them, so that a rank has a tensor at most once.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property

import xxhash
from msgspec.structs import replace

from reshard.core.errors import CatalogError, CheckpointError, LayoutError, StorageError, TargetError
from reshard.core.files import safetensors
from reshard.core.files.any_format import read_index
from reshard.core.files.file_names import is_rank_file_of_hyper_parallel
from reshard.core.files.model import FileIndex, TensorEntry
from reshard.core.layouts.dcp.metadata import (
    Chunk,
    DcpMetadata,
    ListedTensor,
    Place,
    listed_tensor,
    parse_dcp_metadata,
)
from reshard.core.layouts.dcp.names import (
    DCP_METADATA_NAME,
    MAX_METADATA_BYTES,
    file_order,
    is_dcp,
    own_metadata_names,
    shard_names,
)
from reshard.core.layouts.dcp.steps import choose_dcp_step, list_dcp_steps
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.unified.names import is_index_name
from reshard.core.runtime.metadata import parse_json
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.listing import names_in
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.reading import open_source, read_small_file
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.boxes import ShardBoxes
from reshard.core.tensor.layout import ParameterLayout, boxes_layout
from reshard.core.tensor.slices import Shape, TensorSlice

_MAX_LISTED = 6
_SHARDING_INFO = "DCP_SHARDING_INFO"
_MAX_RANKS = 1 << 20


class FilePart(Record):
    """Chunks of one file, at most one of each tensor: what counts as a rank. `path` is below the directory."""

    path: str
    chunks: Mapping[str, Chunk]


class DcpCheckpoint(Record, dict=True):
    """A checkpoint of DCP.

    Attributes:
        url: the checkpoint, as it was named.
        location: its directory.
        metadata: what its metadata says, or what its files say together.
        names: all names in the directory.
        indexes: path -> index of a file that was opened to find the metadata.
        step: its number, if `url` is a directory of steps; `steps` are all of them, ascending.
        choice: notes on the choice of the step, and on what its writer adds to DCP.
    """

    url: str
    location: Location
    metadata: DcpMetadata
    names: tuple[str, ...]
    indexes: Mapping[str, FileIndex]
    step: int | None = None
    steps: tuple[int, ...] = ()
    choice: tuple[str, ...] = ()

    @cached_property
    def parts(self) -> tuple[FilePart, ...]:
        """The ranks, in their order."""
        chunks: dict[str, list[dict[str, Chunk]]] = {}
        for tensor in self.metadata.tensors.values():
            counts: dict[str, int] = {}
            for chunk in tensor.chunks:
                of_file = chunks.setdefault(chunk.place.path, [])
                number = counts.get(chunk.place.path, 0)
                counts[chunk.place.path] = number + 1
                if number == len(of_file):
                    of_file.append({})
                of_file[number][tensor.name] = chunk
        parts = tuple(FilePart(path, part) for path in sorted(chunks, key=file_order) for part in chunks[path])
        if len(parts) > _MAX_RANKS:
            raise CatalogError(f"{self.url}: has {len(parts)} files, more than {_MAX_RANKS}")
        return parts

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """All files of tensors and objects, in order."""
        objects = {place.path for place in self.metadata.objects.values()}
        return tuple(sorted({part.path for part in self.parts} | objects, key=file_order))

    @cached_property
    def unread(self) -> Mapping[str, Sequence[Place]]:
        """File -> the places of objects, which are not read."""
        places: dict[str, list[Place]] = {}
        for place in self.metadata.objects.values():
            places.setdefault(place.path, []).append(place)
        return places

    @cached_property
    def strategy(self) -> Strategy:
        """Every tensor's boxes over the ranks."""
        owned: dict[str, list[tuple[int, TensorSlice]]] = {name: [] for name in self.metadata.tensors}
        for rank, part in enumerate(self.parts):
            for name, chunk in part.chunks.items():
                owned[name].append((rank, chunk.box))
        known: dict[ShardBoxes, ParameterLayout] = {}
        layouts = {}
        for name, tensor in self.metadata.tensors.items():
            boxes = ShardBoxes(tensor.shape, tuple(owned[name]))
            layouts[name] = known.setdefault(boxes, boxes_layout(boxes, len(self.parts)))
        return Strategy((StageStrategy(0, layouts, devices=len(self.parts)),), self.metadata.origin)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left out of it, and what cannot be known of it, for the user."""
        objects, notes = self.metadata.objects, [*self.choice]
        if objects:
            what = f"{counted(len(objects), 'object')} of Python, which only PyTorch can read"
            notes.append(f"left out: {what}: {listed(list(objects), _MAX_LISTED)}")
        if self.indexes:
            notes.append(
                f"without {DCP_METADATA_NAME}, shapes are what the {counted(len(self.indexes), 'file')} add up to: "
                "compare them, because files of the last ranks could be missing without a trace"
            )
        return tuple(notes)


def dcp_in(location: Location, names: Sequence[str], step: str = "") -> DcpCheckpoint | None:
    """Return the checkpoint of DCP in a directory with these names; None if there is none.

    Args:
        location: the directory of the checkpoint, or of several steps.
        names: what is in it.
        step: number of the step to read, of several; by default the newest that is complete.

    Raises:
        CatalogError: it is incomplete, or its files contradict each other; there is no such step.
        CheckpointError: a file without metadata beside it cannot be read.
        StrategyError: its metadata is damaged.
        StorageError: the storage does not answer.
    """
    if any(map(is_index_name, names)):
        return None
    if is_dcp(names):
        return read_dcp(location, names)
    steps = list_dcp_steps(location, names)
    if not steps:
        return None
    number, notes = choose_dcp_step(location, steps, step)
    directory = location.child(steps[number])
    found = read_dcp(directory, names_in(directory))
    return replace(found, url=str(location), step=number, steps=tuple(steps), choice=(*notes, *found.choice))


def read_dcp(location: Location, names: Sequence[str]) -> DcpCheckpoint:
    """Read the metadata of the checkpoint in a directory with these names; raises what `dcp_in` raises."""
    if DCP_METADATA_NAME not in names:
        _check_complete(location, names)
        metadata, indexes = _read_sharding_infos(location, shard_names(names))
        return DcpCheckpoint(str(location), location, metadata, tuple(names), indexes)
    file = location.child(DCP_METADATA_NAME)
    data = _read_metadata(file)
    if STATE_DIRECTORY in names:
        _check_as_converted(location, data)
    return DcpCheckpoint(str(location), location, parse_dcp_metadata(data, str(file)), tuple(names), {})


def _check_complete(location: Location, names: Sequence[str]) -> None:
    """Refuse a directory whose metadata is missing, unless its files are those that have none."""
    own = own_metadata_names(names)
    if own:
        whose = "is hyper_parallel's; it " if any(map(is_rank_file_of_hyper_parallel, names)) else ""
        raise CatalogError(
            f"{location}: {whose}has no {DCP_METADATA_NAME}, but {listed(own, _MAX_LISTED)}: each rank saved a "
            "checkpoint of its own (use_collectives=False), and which of them make one is not recorded. Save it again "
            "with use_collectives=True"
        )
    if not shard_names(names):
        raise CatalogError(
            f"{location}: has files of a DCP checkpoint, but no {DCP_METADATA_NAME}, which is written last: it was not "
            "saved completely"
        )


def _read_metadata(location: Location) -> bytes:
    try:
        return read_small_file(location, MAX_METADATA_BYTES)
    except StorageError as error:
        if error.transient:
            raise
        raise CatalogError(error.marked) from error


def _check_as_converted(location: Location, data: bytes) -> None:
    """Refuse metadata that a conversion wrote and something changed: nothing else says which bytes are which tensor."""
    try:
        manifest = read_manifest(location)
    except TargetError as error:
        raise CatalogError(error.marked) from error
    digests = {each.file: each.digest for each in manifest.documents} if manifest else {}
    if digests.get(DCP_METADATA_NAME, "") not in ("", xxhash.xxh3_128_hexdigest(data)):
        raise CatalogError(
            f"{location.child(DCP_METADATA_NAME)}: is not the metadata that the conversion wrote: it is damaged, or "
            f"another checkpoint was saved over it. If that one is meant, remove {location.child(STATE_DIRECTORY)}"
        )


def _read_sharding_infos(location: Location, names: Sequence[str]) -> tuple[DcpMetadata, dict[str, FileIndex]]:
    """Put together what the headers of a writer without metadata say."""
    found = dict(zip(names, at_once(lambda name: _read_sharding_info(location.child(name)), names), strict=True))
    chunks: dict[str, list[tuple[TensorEntry, Chunk]]] = {}
    for name, (index, starts) in found.items():
        for entry in index.entries.values():
            start = starts.get(entry.name, (0,) * len(entry.shape))
            if len(start) != len(entry.shape):
                raise CheckpointError(
                    f"{location.child(name)}: {_SHARDING_INFO} of parameter {entry.name!r} is {list(start)[:8]}, its "
                    f"shape {list(entry.shape)}"
                )
            stop = tuple(low + length for low, length in zip(start, entry.shape, strict=True))
            place = Place(name, 0, -1, entry.name)
            chunks.setdefault(entry.name, []).append((entry, Chunk(TensorSlice(start, stop), place)))
    tensors = {name: _tensor_of(location, name, of_name) for name, of_name in chunks.items()}
    return DcpMetadata(str(location), tensors, {}), {name: index for name, (index, _) in found.items()}


def _tensor_of(location: Location, name: str, chunks: Sequence[tuple[TensorEntry, Chunk]]) -> ListedTensor:
    first = chunks[0][0]
    for entry, chunk in chunks:
        if entry.dtype is not first.dtype or len(entry.shape) != len(first.shape):
            raise CatalogError(
                f"{location}: parameter {name!r} is {first.dtype} {list(first.shape)} in {chunks[0][1].place.path}, "
                f"but {entry.dtype} {list(entry.shape)} in {chunk.place.path}"
            )
    # no file says it: a missing last shard would make a smaller tensor
    shape = tuple(max(ends) for ends in zip(*(chunk.box.stop for _, chunk in chunks), strict=True))
    try:
        return listed_tensor(name, first.dtype, shape, [chunk for _, chunk in chunks])
    except LayoutError as error:
        raise CatalogError(f"{location}: {error.marked}. Files may be missing, or of another checkpoint") from None


def _read_sharding_info(location: Location) -> tuple[FileIndex, dict[str, Shape]]:
    with closing(open_source(location)) as file:
        index = read_index(file)
        metadata = safetensors.read_metadata(file)
    text = metadata.get(_SHARDING_INFO)
    if text is None:
        raise CheckpointError(
            f"{location}: is named like a shard that DCP wrote for Hugging Face, but its header has no {_SHARDING_INFO}"
        )
    return index, _parse_starts(text, location)


def _parse_starts(text: str, location: Location) -> dict[str, Shape]:
    """Name -> where its shard begins: `{"w": {"saved_offsets": [8, 0]}}`."""
    document = parse_json(text.encode(), f"{location}: {_SHARDING_INFO}", CheckpointError)
    starts: dict[str, Shape] = {}
    for name, entry in document.items() if isinstance(document, dict) else [("", document)]:
        start = entry.get("saved_offsets") if isinstance(entry, dict) else None
        if not isinstance(start, list) or not all(type(low) is int and 0 <= low < 2**62 for low in start):
            raise CheckpointError(f"{location}: {_SHARDING_INFO} gives no saved_offsets of parameter {name!r}")
        starts[name] = tuple(start)
    return starts

"""Slices ranks' parameters out of a directory of whole ones, as `unified_safetensors` writes it.

part{i}.safetensors         parameters, each whole in one file
param_name_map.json         {"weight_map": {name: file}}, or the map alone; optional beside a single file
hyper_param.safetensors     parameters outside the strategy, whole on every rank
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.lib.stride_tricks import as_strided

from reshard.core.errors import CatalogError, LayoutError
from reshard.core.files.any_format import read_index
from reshard.core.files.model import Content, FileIndex, OutputEntry, TensorEntry
from reshard.core.files.numpy_values import Value, numpy_dtype
from reshard.core.layouts.foreign import check_not_foreign
from reshard.core.layouts.unified.names import MAP_NAME, OTHERS_NAME
from reshard.core.layouts.unified.weight_maps import read_weight_map
from reshard.core.runtime.frozen import frozen
from reshard.core.storage.listing import kind_of, list_folder
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.slices import TensorSlice, bounding_extent, contiguous_boxes, row_major_strides

_BLOCK_BYTES = 4 << 20


@frozen
class Slice:
    """A rank's slice of a parameter: a box of an entry of a file."""

    name: str
    file: SourceFile
    entry: TensorEntry
    box: TensorSlice

    def output(self) -> OutputEntry:
        """The entry of the slice in a new file."""
        return OutputEntry(self.name, self.entry.dtype, self.box.shape, self.entry.text)

    def blocks(self, start: int, stop: int) -> Iterator[memoryview]:
        """Read bytes `start` to `stop` of the slice, in blocks."""
        itemsize = self.entry.dtype.itemsize
        whole = max(1, self.entry.size_bytes // itemsize)
        # a box of parts of rows is read with the gaps between them
        limit = max(1, _BLOCK_BYTES // itemsize * self.box.size // whole)
        for box in contiguous_boxes(self.box.shape, start // itemsize, stop // itemsize, limit):
            yield self._read(box.shifted(self.box.start)).data

    def value(self) -> Value:
        """Read the slice as a value."""
        if self.entry.text is not None:
            return self.entry.text
        dtype = numpy_dtype(self.entry.dtype)
        size_bytes = self.box.size * self.entry.dtype.itemsize
        found = np.empty(size_bytes, np.uint8)
        position = 0
        for block in self.blocks(0, size_bytes):
            found[position : position + len(block)] = block
            position += len(block)
        return found.view(dtype).reshape(self.box.shape)

    def _read(self, box: TensorSlice) -> np.ndarray:
        """Read a box of the entry in C order; it must not be empty."""
        itemsize = self.entry.dtype.itemsize
        shape = self.entry.shape
        run = bounding_extent(box, shape, itemsize)
        buffer = np.empty(run.length, np.uint8)
        # a .safetensors file holds each parameter contiguously
        self.file.read_into(self.entry.extents[0].offset + run.offset, buffer.data)
        if run.length == box.size * itemsize:
            return buffer
        strides = [stride * itemsize for stride in row_major_strides(shape)]
        return np.ascontiguousarray(as_strided(buffer, (*box.shape, itemsize), (*strides, 1))).reshape(-1)


class UnifiedCheckpoint:
    """The open files of such a directory; `names`: name in the strategy -> name in the files."""

    def __init__(self, directory: Location, names: Mapping[str, str]) -> None:
        self._names = names
        self._stack = ExitStack()
        try:
            self._open(directory)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()

    @property
    def parameters(self) -> Sequence[str]:
        """The names, in the strategy, of the parameters that it may cut."""
        return list(self._files)

    def slices(self, strategy: Strategy | None, rank: int) -> list[Slice]:
        """A rank's slices of the parameters in the files; without a strategy, all of them whole.

        Raises CatalogError if the strategy has no such rank, LayoutError if a parameter does not divide evenly.
        """
        whole = ((name, TensorSlice.whole(entry.shape)) for name, (_, entry) in self._files.items())
        boxes = whole if strategy is None else self._boxes(strategy, rank)
        found = {name: Slice(name, *self._files[name], box) for name, box in boxes}
        for name, (file, entry) in self._others.items():
            found[name] = Slice(name, file, entry, TensorSlice.whole(entry.shape))
        return list(found.values())

    def _open(self, directory: Location) -> None:
        kind = kind_of(directory)
        if kind != "directory":
            raise CatalogError(f"{directory}: is {'not there' if kind is None else 'not a directory'}")
        listed = sorted(posixpath.basename(entry["name"]) for entry in list_folder(directory))
        paths = [name for name in listed if name.endswith(".safetensors")]
        if not paths:
            check_not_foreign(directory, listed)
            raise CatalogError(f"{directory}: holds no .safetensors files")
        self._open_files = {path: self._opened(directory.child(path)) for path in paths}
        if len(paths) > 1 and MAP_NAME not in listed:
            raise CatalogError(
                f"{directory}: holds several .safetensors files, but no {MAP_NAME} that lists their parameters"
            )
        # a single file has its own names; the map has those of the strategy
        new_names = {old: new for new, old in self._names.items()}
        weights = (
            {new_names.get(name, name): paths[0] for name in self._open_files[paths[0]][1].entries}
            if len(paths) == 1
            else read_weight_map(directory.child(MAP_NAME))
        )
        self._files = {
            name: self._entry(directory, path, self._names.get(name, name)) for name, path in weights.items()
        }
        file, index = self._open_files.get(OTHERS_NAME, (None, None))
        self._others = (
            {} if file is None or index is None else {name: (file, entry) for name, entry in index.entries.items()}
        )

    def _opened(self, location: Location) -> tuple[SourceFile, FileIndex]:
        file = open_source(location)
        self._stack.callback(file.close)
        return file, read_index(file)

    def _entry(self, directory: Location, path: str, name: str) -> tuple[SourceFile, TensorEntry]:
        file, index = self._open_files.get(path, (None, None))
        if file is None or index is None:
            raise CatalogError(f"{directory}: {MAP_NAME} has parameter {name!r} in {path!r}, which is not there")
        if name not in index.entries:
            raise CatalogError(f"{file.location}: lacks parameter {name!r}, which {MAP_NAME} says is in it")
        return file, index.entries[name]

    def _boxes(self, strategy: Strategy, rank: int) -> Iterator[tuple[str, TensorSlice]]:
        ranks = strategy.ranks
        if rank not in ranks:
            raise CatalogError(
                f"{strategy.origin}: is for ranks {ranks.start} to {ranks.stop - 1}, there is no rank {rank}"
            )
        stage = strategy.stage_of(rank)
        stage_rank = rank - strategy.stage_ranks(stage).start
        for name, layout in stage.layouts.items():
            if name in self._files:
                shape = self._files[name][1].shape
                try:
                    yield name, layout.shard_grid(len(shape)).box_of(stage_rank, shape)
                except LayoutError as error:
                    raise LayoutError(f"parameter {name!r}: {error}") from None


def slice_blocks(slices: Mapping[str, Slice], contents: Sequence[Content]) -> Iterator[memoryview]:
    """The contents of a file that holds `slices`."""
    for content in contents:
        yield from slices[content.name].blocks(content.start, content.stop)

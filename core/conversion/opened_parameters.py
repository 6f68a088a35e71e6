"""A checkpoint whose parameters are read by name, in blocks.

A parameter is read whole where it is known how it is sharded, else the shard of each rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.content_blocks import ElementRange
from reshard.core.checkpoint.file_shares import read_file_blocks
from reshard.core.conversion.lazy_tensors import Tensor
from reshard.core.conversion.opened import Checkpoint, opened_source
from reshard.core.errors import CheckpointError, InputError
from reshard.core.files.model import TensorEntry
from reshard.core.files.numpy_values import readable_dtype
from reshard.core.plan.names import fits_any
from reshard.core.plan.stage_shards import names_in_order
from reshard.core.request.source import OpenRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.wording import counted, quoted, ranks_text, utf8_text
from reshard.core.source.opened_files import OpenedFiles, open_files
from reshard.core.tensor.dtypes import MAP_TENSOR, DType
from reshard.core.tensor.layout import BoxGrid, ShardGrid
from reshard.core.tensor.slices import Shape
from reshard.core.text.printing import printable

_BLOCK_BYTES = 8 * 2**20


class Readable(Record):
    """A parameter, or a rank's shard of it, that can be read in blocks.

    Attributes:
        rank: the rank; None: it is whole.
        text: the value of a text; None for others.
        blocks: reads its elements, one flat array after another.
    """

    name: str
    dtype: DType
    shape: Shape
    size_bytes: int
    rank: int | None
    text: str | None
    blocks: Callable[[], Iterator[np.ndarray]]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of its arrays.

        Raises:
            CheckpointError: numpy has none.
        """
        found = readable_dtype(self.dtype)
        if self.text is not None or self.dtype is MAP_TENSOR or found is None:
            raise CheckpointError(f"parameter {self.name!r}: a {self.dtype} is not an array of numbers")
        return found


class OpenedParameters:
    """A checkpoint whose parameters are read by name."""

    def __init__(self, request: OpenRequest) -> None:
        """Open the checkpoint that a request names, whose storages and keys are in force.

        Raises:
            InputError: it cannot be used.
            StorageError: it cannot be read.
        """
        note = current_progress().note
        self.files: OpenedFiles = with_retries(lambda: open_files(request), note)
        self._entries: dict[str, TensorEntry] = {}
        for index in self.files.catalog.indexes():
            for name, entry in index.entries.items():
                self._entries.setdefault(name, entry)
        self._memory_limit_bytes = request.memory_limit_bytes
        self._checkpoint: Checkpoint | None = None

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the names that are one of some names, or fit a pattern, in the order of the files.

        Raises:
            InputError: one is no parameter's.
        """
        url, names = self.files.catalog.url, names_in_order(self.files.catalog)
        chosen: dict[str, None] = {}
        for pattern in patterns:
            found = [pattern] if pattern in self._entries else [name for name in names if fits_any(name, [pattern])]
            if not found:
                meant = did_you_mean(pattern, names)
                raise InputError(f"{url}: has no parameter {quoted(printable(pattern))}{meant}")
            chosen |= dict.fromkeys(found)
        return [name for name in names if name in chosen]

    def exact(self, name: str) -> str:
        """Return a parameter's name.

        Raises:
            InputError: there is none of this name.
        """
        if name not in self._entries:
            meant = did_you_mean(name, self._entries)
            raise InputError(f"{self.files.catalog.url}: has no parameter {quoted(printable(name))}{meant}")
        return name

    def readable(self, name: str, rank: int | None) -> list[Readable]:
        """Return a parameter as it can be read: whole, or a rank's shard, or every rank's if sharding is not known.

        Raises:
            InputError: the rank does not hold it.
        """
        records = self.records(name)
        if rank is not None:
            chosen = [record for record in records if record.rank == rank]
            if not chosen:
                ranks = ranks_text(record.rank for record in records)
                raise InputError(f"{self.files.catalog.url}: parameter {name!r} is on ranks {ranks}, not on {rank}")
            return [_of_file(record, name) for record in chosen]
        wholes = self._wholes()
        if name not in wholes or name in self.files.catalog.unconvertible:
            return [_of_file(record, name) for record in records]
        entry, tensor = self._entries[name], wholes[name]

        def blocks() -> Iterator[np.ndarray]:
            return (values for _, values in tensor.blocks(_BLOCK_BYTES))

        return [Readable(name, entry.dtype, tensor.shape, tensor.nbytes, None, entry.text, blocks)]

    def records(self, name: str) -> list[CatalogRecord]:
        """Return the records of the files that hold a parameter."""
        return [record for record in self.files.catalog.records.values() if name in record.index.entries]

    def shard_count(self, name: str) -> int:
        """Return how many different shards a parameter has in all files together."""
        return sum(len(grid.owners) for _, grid in self._grids(name)) or 1

    def sharding(self, name: str) -> str:
        """Return in words how a parameter is sharded; empty if it is not, or that is not known."""
        grids = self._grids(name)
        texts = [f"{counted(len(grid.owners), 'shard')} on {counted(grid.device_count, 'rank')}" for _, grid in grids]
        if len(grids) > 1:
            texts = [f"stage {number}: {text}" for (number, _), text in zip(grids, texts, strict=True)]
        return "; ".join(texts)

    def _grids(self, name: str) -> list[tuple[int, ShardGrid | BoxGrid]]:
        """The stages that hold a parameter, and how each shards it."""
        source = self.files.source
        if source is None or source.is_integrated or source.catalog.has_whole_tensors:
            return []
        stages = source.shards.by_name.get(name, ())
        return [(each.stage.stage, each.layout.shard_grid(len(each.entry.shape))) for each in stages]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen and found when it was opened, in sentences."""
        return tuple(map(utf8_text, self.files.catalog.notes)) if self._checkpoint is None else self._checkpoint.notes

    def close(self) -> None:
        """Close the files."""
        if self._checkpoint is not None:
            self._checkpoint.close()

    def _wholes(self) -> Mapping[str, Tensor]:
        """The whole tensors; none if it is not known how the ranks are sharded."""
        source = self.files.source
        if self._checkpoint is None and source is not None:
            self._checkpoint = opened_source(source, self._memory_limit_bytes)
        return {} if self._checkpoint is None else self._checkpoint


def _of_file(record: CatalogRecord, name: str) -> Readable:
    """What a rank's file holds of a parameter."""
    entry = record.index.entries[name]

    def blocks() -> Iterator[np.ndarray]:
        dtype = readable_dtype(entry.dtype)
        assert dtype is not None, f"{name} is not an array"
        for _, _, values in read_file_blocks(record, [ElementRange.whole(entry)]):
            yield values.reshape(-1).view(dtype)

    return Readable(name, entry.dtype, entry.shape, entry.size_bytes, record.rank, entry.text, blocks)

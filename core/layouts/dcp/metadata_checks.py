"""Compares `.metadata` of a written DCP directory with the records of its files, and with their plan."""

from collections.abc import Callable, Iterable

from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord, record_entries
from reshard.core.files.distcp import archive_extents
from reshard.core.layouts.dcp.metadata import parse_dcp_metadata
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.tensor.slices import TensorSlice
from reshard.core.text.printing import printable


def as_it_is(name: str, box: TensorSlice) -> tuple[str, TensorSlice]:
    """Return the name of a stored tensor and a box of it: those of the parameter."""
    return name, box


def dcp_metadata_problem(
    location: Location,
    index: IndexSummary,
    records: Iterable[ShardRecord],
    plan: ConversionPlan | None,
    parameter_of: Callable[[str, TensorSlice], tuple[str, TensorSlice]] = as_it_is,
) -> str | None:
    """Return the first difference from the records of all files, or their plan, as a sentence; None without one.

    `parameter_of` gives the name and the box of the parameter that a box of a stored tensor is.

    Raises:
        StrategyError: the metadata is damaged.
        StorageError: it cannot be read.
    """
    metadata = parse_dcp_metadata(read_small_file(location, max(index.size_bytes, 1)), str(location))
    chunks = {
        (chunk.place.path, chunk.place.offset): (*parameter_of(name, chunk.box), tensor.dtype, chunk.place.length)
        for name, tensor in metadata.tensors.items()
        for chunk in tensor.chunks
    }
    for record in records:
        entries = record_entries(record)
        boxes = {each.name: each.box for each in plan.rank_plan(record.rank).parameters} if plan else {}
        for entry, place in zip(entries, archive_extents(entries), strict=True):
            name, box, dtype, length = chunks.pop((record.file, place.offset), (None, None, None, 0))
            is_right = (name, dtype, length) == (entry.name, entry.dtype, place.length)
            if not is_right or box is None or box.shape != entry.shape or box != boxes.get(entry.name, box):
                planned = f", the box {boxes[entry.name]}," if entry.name in boxes else ""
                return (
                    f"{location}: is wrong about parameter {entry.name!r}, of which {printable(record.file)} has "
                    f"{entry.dtype} {list(entry.shape)}{planned} at byte {place.offset}"
                )
    if chunks:
        (file, _), (name, *_) = next(iter(chunks.items()))
        return f"{location}: lists parameter {name!r} in {printable(file)}, where it is not"
    return None

"""A catalog as JSON, for the plan file: compact lists; each distinct index once, referred to by its number.

`entries` are [name, dtype, shape, [offset, length, …]] and, for a text entry, its text; `strided` are, by name,
[offset, strides] of entries that are not in C order; `records` are
[rank, location, size_bytes, version, number of the index, digests]. `assumed` lists the ranks of assumed records apart
from these: how much of the headers was read does not change what a conversion writes. `lost` are [rank, why].
"""

import math
from collections.abc import Mapping
from typing import Any

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog, by_index
from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.model import CheckpointFormat, FileIndex, StridedContent, TensorEntry
from reshard.core.runtime.wording import NameText
from reshard.core.tensor.dtypes import dtype_from_ckpt
from reshard.core.tensor.slices import Extent


def catalog_to_json(catalog: CheckpointCatalog) -> dict[str, Any]:
    """Return the catalog as JSON data."""
    groups = by_index(catalog.records.values())
    numbers = {record.rank: number for number, alike in enumerate(groups) for record in alike}
    return {
        "url": catalog.url,
        "format": catalog.format.value,
        "step": catalog.step,
        "notes": list(catalog.notes),
        "indexes": [_index_to_json(alike[0].index) for alike in groups],
        "records": [
            [each.rank, each.location, each.size_bytes, each.version, numbers[each.rank], dict(each.digests)]
            for each in catalog.records.values()
        ],
        "lost": list(catalog.lost.items()),
        "parts": list(catalog.stage_numbers),
        "unified": catalog.has_whole_tensors,
        "outside": list(catalog.outside),
        "assumed": [record.rank for record in catalog.records.values() if record.assumed],
    }


def catalog_from_json(data: Mapping[str, Any]) -> CheckpointCatalog:
    """Restore a catalog from JSON data.

    Raises:
        CatalogError: the data is not a catalog.
    """
    try:
        indexes = [_index_from_json(index) for index in data["indexes"]]
        assumed = frozenset(data["assumed"])
        records = [_record_from_json(record, indexes, assumed) for record in data["records"]]
        return CheckpointCatalog(
            url=_place(data["url"]),
            format=CheckpointFormat(data["format"]),
            step=data["step"],
            records={record.rank: record for record in records},
            notes=tuple(data["notes"]),
            lost=dict(data["lost"]),
            stage_numbers=tuple(data["parts"]),
            # earlier versions had no such checkpoints
            has_whole_tensors=data.get("unified", False),
            outside=tuple(data.get("outside", ())),
        )
    except (AttributeError, CheckpointError, LookupError, TypeError, ValueError) as error:
        raise CatalogError(f"not a checkpoint catalog: {type(error).__name__}: {error}") from error


def _index_to_json(index: FileIndex) -> dict[str, Any]:
    return {
        "format": index.format.value,
        "size_bytes": index.size_bytes,
        "has_crc": index.has_crc,
        "redundancy_removed": index.redundancy_removed,
        "entries": [_entry_to_json(entry) for entry in index.entries.values()],
    } | ({"strided": _strided_to_json(index.strided)} if index.strided else {})


def _index_from_json(data: Mapping[str, Any]) -> FileIndex:
    entries = [_entry_from_json(*entry) for entry in data["entries"]]
    return FileIndex(
        format=CheckpointFormat(data["format"]),
        size_bytes=data["size_bytes"],
        entries={entry.name: entry for entry in entries},
        has_crc=data["has_crc"],
        redundancy_removed=data["redundancy_removed"],
        strided={
            name: StridedContent(offset, tuple(strides)) for name, (offset, strides) in data.get("strided", {}).items()
        },
    )


def _strided_to_json(strided: Mapping[str, StridedContent]) -> dict[str, Any]:
    return {name: [content.offset, content.strides] for name, content in strided.items()}


def _entry_to_json(entry: TensorEntry) -> list[Any]:
    places = [number for extent in entry.extents for number in (extent.offset, extent.length)]
    fields = [entry.name, entry.dtype.name, entry.shape, places]
    return fields if entry.text is None else [*fields, entry.text]


def _entry_from_json(
    name: str, dtype: str, shape: list[int], extents: list[int], text: str | None = None
) -> TensorEntry:
    places = tuple(Extent(offset, length) for offset, length in zip(extents[::2], extents[1::2], strict=True))
    size_bytes = sum(extents[1::2])
    return TensorEntry(name, dtype_from_ckpt(dtype, math.prod(shape), size_bytes), tuple(shape), places, text)


def _place(url: object) -> NameText:
    if not isinstance(url, str):
        raise TypeError(f"{url!r} is not a URL")
    return NameText(url)


def _record_from_json(record: list[Any], indexes: list[FileIndex], assumed: frozenset[int]) -> CatalogRecord:
    rank, location, size_bytes, version, index_number, digests = record
    return CatalogRecord(rank, _place(location), size_bytes, version, indexes[index_number], digests, rank in assumed)

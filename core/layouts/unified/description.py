"""The description of a unified checkpoint."""

from collections.abc import Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.source_layout import Document


def describe_unified(catalog: CheckpointCatalog, index_name: str | None, ignored: Sequence[str]) -> Document:
    """Describe a unified checkpoint by its files, which were opened and compared with its index."""
    return {
        "kind": "unified checkpoint",
        "url": catalog.url,
        "index": index_name,
        "files": [
            {
                "file": record.location.rpartition("/")[2],
                "size_bytes": record.size_bytes,
                "parameters": [
                    {"name": entry.name, "dtype": entry.dtype.name, "shape": list(entry.shape)}
                    for entry in record.index.entries.values()
                ],
            }
            for record in catalog.records.values()
        ],
        "in_no_strategy": sorted(set(catalog.outside)),
        "notes": list(catalog.notes),
        "ignored": list(ignored),
    }

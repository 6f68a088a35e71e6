"""Catalogs of some of a checkpoint's parameters, under other names: contents are read by offset, not by name."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog, by_index
from reshard.core.files.model import FileIndex


def with_chosen_entries(catalog: CheckpointCatalog, new_name: Callable[[str], str | None]) -> CheckpointCatalog:
    """Return a catalog of the parameters for which `new_name` returns a name, under that name."""
    records: dict[int, CatalogRecord] = {}
    for alike in by_index(catalog.records.values()):
        index = alike[0].index
        names = {new: name for name in index.entries if (new := new_name(name)) is not None}
        chosen = chosen_index(index, names)
        records |= {record.rank: replace(record, index=chosen) for record in alike}
    return replace(catalog, records=dict(sorted(records.items())))


def chosen_index(index: FileIndex, names: Mapping[str, str]) -> FileIndex:
    """Return an index of some parameters; `names`: new name -> name in the file."""
    return replace(index, entries={new: replace(index.entries[name], name=new) for new, name in names.items()})

"""Files that are parts of a checkpoint by their names, and were named alone as the source.

Without a strategy a single file counts as the whole checkpoint. One that is of a rank by its name, or by its folder's,
holds all of it only if every rank does; with others beside it, that is not guessed. One that numbers itself,
`model-00001-of-00003.safetensors`, is noted.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, StorageError
from reshard.core.files.file_names import parse_name, rank_in, rank_template
from reshard.core.layouts.numbered_shards import parse_shard
from reshard.core.layouts.place import RANK_FOLDER
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import rank_names
from reshard.core.storage.listing import names_in
from reshard.core.storage.patterns import matched_rank
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.options import source_option

_MAX_LISTED = 10


class _OneRank(Record):
    """A rank whose file or folder was named; `others` are those beside it, in the directory `place`."""

    rank: int
    others: tuple[int, ...]
    place: Location


def with_parts_beside_noted(
    catalog: CheckpointCatalog, url: str, *, is_file: bool, refuses_others: bool
) -> CheckpointCatalog:
    """The catalog of a file, or of a folder without rank folders, noted if it is of one rank or of a numbered file.

    Raises:
        CatalogError: there are other ranks beside it, and it `refuses_others`.
        StorageError: a transient failure of the storage.
    """
    if is_file and (shard := parse_shard(parse_url(url).name)):
        note = f"{url}: is one of {shard.count} files by its name: what the others hold is not read"
        return replace(catalog, notes=(*catalog.notes, note))
    one = _one_rank(catalog)
    if one is None or not (one.others or one.rank):  # rank_0 alone is what a single device saves
        return catalog
    if not one.others:
        note = f"{url}: is of rank_{one.rank} by its name, and taken for the whole checkpoint"
        return replace(catalog, notes=(*catalog.notes, note))
    what = f"{url}: is of rank_{one.rank} alone, without {rank_names(one.others, _MAX_LISTED)} beside it"
    if refuses_others:
        raise CatalogError(
            f"{what}. Name {one.place} and its strategy with "
            f"{source_option('source_strategy')}; if every rank holds whole tensors, pass "
            f"{source_option('integrated_save', 'yes')}"
        )
    return replace(catalog, notes=(*catalog.notes, what))


def _one_rank(catalog: CheckpointCatalog) -> _OneRank | None:
    if len(catalog.records) != 1:
        return None
    [record] = catalog.records.values()
    folder = parse_url(record.location).parent
    rank = matched_rank(RANK_FOLDER, folder.name)
    if rank is not None:
        there = [matched_rank(RANK_FOLDER, name) for name in _names_in(folder.parent)]
        return _OneRank(rank, _others(there, rank), folder.parent)
    name = parse_name(parse_url(record.location).name)
    rank = None if name is None else rank_in(name.prefix)
    if name is None or rank is None:
        return None
    template = rank_template(name.prefix)
    beside = [other for other in map(parse_name, _names_in(folder)) if other is not None]
    alike = [rank_in(other.prefix) for other in beside if rank_template(other.prefix) == template]
    return _OneRank(rank, _others(alike, rank), folder)


def _others(ranks: Iterable[int | None], one: int) -> tuple[int, ...]:
    return tuple(sorted({rank for rank in ranks if rank is not None and rank != one}))


def _names_in(folder: Location) -> list[str]:
    try:
        return names_in(folder)
    except StorageError as error:
        if error.transient:
            raise
        return []  # who may read a file or a folder may not be allowed to list what it is in

"""Opens a directory of whole parameters, as `unified_safetensors` writes it, and plans what ranks get of it.

part{i}.safetensors         parameters, each whole in one file
param_name_map.json         {"weight_map": {name: file}}, or the map alone; optional beside a single file
hyper_param.safetensors     parameters outside the strategy, whole on every rank
"""

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.record_reader import no_digest
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat, FileIndex
from reshard.core.layouts.cataloging import catalog_files
from reshard.core.layouts.foreign import check_not_foreign
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.layouts.unified.names import MAP_NAME
from reshard.core.layouts.weight_maps import OTHERS_NAME, read_weight_map
from reshard.core.layouts.whole_tensors import strategy_of_files
from reshard.core.mindspore_api.chosen_entries import chosen_index, with_chosen_entries
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.plan.stage_shards import names_in_order
from reshard.core.storage.listing import kind_of, list_folder
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy


class _UnmarkedFolders(RankFolders):
    """Rank folders as MindSpore's function writes them: the files do not say whether redundancy was removed."""

    marks_redundancy: ClassVar[bool] = False


def open_unified(directory: Location, names: Mapping[str, str]) -> CheckpointCatalog:
    """Catalog such a directory by the strategy's names; `names`: name in the strategy -> name in the files.

    Raises:
        CatalogError: it is not such a directory, or its map does not match its files.
        CheckpointError: a file is damaged.
    """
    files = _file_names(directory)
    locations = {rank: directory.child(name) for rank, name in enumerate(files)}
    catalog = catalog_files(str(directory), locations, digest=no_digest, check_crc=False)
    indexes = {name: catalog.records[rank].index for rank, name in enumerate(files)}
    outside = indexes[OTHERS_NAME].entries if OTHERS_NAME in indexes and len(files) > 1 else {}
    if len(files) == 1:
        new_names = {old: new for new, old in names.items()}
        places = {new_names.get(name, name): files[0] for name in indexes[files[0]].entries}
    else:
        places = read_weight_map(directory.child(MAP_NAME))
    _check_places(directory, places, names, indexes)
    chosen: dict[str, dict[str, str]] = {file: {} for file in files}
    for name, file in places.items():
        if name not in outside:
            chosen[file][name] = names.get(name, name)
    chosen |= {OTHERS_NAME: {name: name for name in outside}} if outside else {}
    records = {
        rank: replace(record, index=chosen_index(record.index, chosen[files[rank]]))
        for rank, record in catalog.records.items()
    }
    return replace(catalog, records=records, has_whole_tensors=True, outside=tuple(outside))


def sharded_names(catalog: CheckpointCatalog) -> frozenset[str]:
    """Return the names of the parameters that a strategy may shard."""
    return frozenset(names_in_order(catalog)).difference(catalog.outside)


def plan_ranks(catalog: CheckpointCatalog, strategy: Strategy | None, format: CheckpointFormat) -> ConversionPlan:
    """Plan the files of a strategy's ranks, or of one rank with whole parameters.

    Parameters that only the strategy has, or only the files, are left out.

    Raises:
        PlanError: a parameter does not divide as the strategy says.
    """
    if strategy is None:
        return build_plan(PlanInputs(catalog, strategy_of_files(catalog), None, format, layout=_UnmarkedFolders()))
    there = sharded_names(catalog)
    stages = tuple(
        replace(
            stage,
            layouts={name: layout for name, layout in stage.layouts.items() if name in there},
            devices=strategy.devices_per_stage,
        )
        for stage in strategy.stages
    )
    target = replace(strategy, stages=stages)
    kept = target.parameters.union(catalog.outside)
    known = with_chosen_entries(catalog, lambda name: name if name in kept else None)
    return build_plan(PlanInputs(known, strategy_of_files(known), target, format, layout=_UnmarkedFolders()))


def _file_names(directory: Location) -> list[str]:
    """The names of the directory's files, beside which there is a map if they are several."""
    kind = kind_of(directory)
    if kind != "directory":
        raise CatalogError(f"{directory}: is {'not there' if kind is None else 'not a directory'}")
    listed = sorted(entry.name for entry in list_folder(directory))
    files = [name for name in listed if name.endswith(".safetensors")]
    if not files:
        check_not_foreign(directory, listed)
        raise CatalogError(f"{directory}: holds no .safetensors files")
    if len(files) > 1 and MAP_NAME not in listed:
        raise CatalogError(
            f"{directory}: holds several .safetensors files, but no {MAP_NAME} that lists their parameters"
        )
    return files


def _check_places(
    directory: Location, places: Mapping[str, str], names: Mapping[str, str], indexes: Mapping[str, FileIndex]
) -> None:
    """Check that parameters are in the files that the map says."""
    for name, file in places.items():
        in_file = names.get(name, name)
        if file not in indexes:
            raise CatalogError(f"{directory}: {MAP_NAME} has parameter {in_file!r} in {file!r}, which is not there")
        if in_file not in indexes[file].entries:
            raise CatalogError(f"{directory.child(file)}: lacks parameter {in_file!r}, which {MAP_NAME} says is in it")

"""Builds the catalog of a checkpoint of ranks: each rank's file and, from its headers, the file's contents.

The survey lists, the selection decides by names, and only then are files opened, one per rank. All problems with ranks
and files are reported as one error.
"""

from collections.abc import Collection

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import NAMED_AS_FAULTY, NO_FILE, DamagePolicy, is_damage, with_advice
from reshard.core.checkpoint.record_reader import RecordReader, no_digest, read_records
from reshard.core.checkpoint.selection import FileSelection, select_files
from reshard.core.checkpoint.torn_files import torn_ranks
from reshard.core.errors import CatalogError, CheckpointError, InputError, StorageError
from reshard.core.files.file_names import parse_step
from reshard.core.layouts.cataloging import joined_errors
from reshard.core.layouts.ranks.rank_files import RankFiles, RankShape
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed, rank_names
from reshard.core.storage.urls import Location
from reshard.core.text.options import option, source_option

_MAX_STRATEGIES = 4


class _Choice(Record):
    """The files to open, chosen by names: ranks without one, and why; notes on ranks that are ignored."""

    selection: FileSelection
    lost: dict[int, str]
    notes: tuple[str, ...]


def ranks_catalog(found: RankFiles, options: CatalogOptions) -> CheckpointCatalog:
    """Find the file of each rank and index it.

    Raises:
        CatalogError: ranks are missing or too many, no choice of files is right or several are; or several files are
            unusable.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    damage = options.damage
    try:
        choice = _choose(found, options)
    except CatalogError as error:
        raise with_advice(error, _advice_without_files(found, options)) from error.__cause__
    catalog, errors = _read(found, choice, options)
    if not errors:
        return catalog
    only_damage = all(is_damage(error) for error in errors.values())
    if damage.recovers and only_damage:
        return catalog
    refusal = joined_errors(found.url, [errors[rank] for rank in sorted(errors)], len(choice.selection.names))
    raise with_advice(refusal, _advice(damage, catalog) if only_damage and catalog.records else "")


def chosen_files(found: RankFiles, options: CatalogOptions) -> list[Location]:
    """Return the file of each rank, chosen by its name.

    Raises:
        CatalogError: ranks are missing or too many, no choice of files is right, or several are.
    """
    return list(_locations(found, _choose(found, options)).values())


def _locations(found: RankFiles, choice: _Choice) -> dict[int, Location]:
    return {
        rank: next(file.location for file in found.files[rank] if file.name == name)
        for rank, name in choice.selection.names.items()
    }


def _choose(found: RankFiles, options: CatalogOptions) -> _Choice:
    """Choose each rank's file by its name."""
    needed = range(1) if options.ranks is None else options.ranks
    lost = _without_files(found, needed, options.step, options.damage)
    notes = _check_ranks(found, needed, lost, options)
    names = {rank: [file.name for file in found.files[rank]] for rank in needed if rank not in lost}
    selection = select_files(
        found.url, names, step=options.step, source_prefix=options.source_prefix, named=found.names_files
    )
    return _Choice(selection, lost, notes)


def _read(
    found: RankFiles, choice: _Choice, options: CatalogOptions
) -> tuple[CheckpointCatalog, dict[int, InputError]]:
    """Read the headers of the chosen files; ranks whose files are unusable are lost, too, and their errors returned."""
    selection, damage = choice.selection, options.damage
    locations = _locations(found, choice)
    reader = RecordReader(options.digest, options.check_crc, assume_alike=True, strategy=damage.strategy)
    records, errors = read_records(locations, reader, options.workers)
    for rank, why in torn_ranks(records, damage.strategy).items() if damage.strategy else ():
        errors[rank] = CheckpointError(f"{records.pop(rank).location}: {why}")
    unusable = {rank: str(error).removeprefix(f"{locations[rank]}: ") for rank, error in errors.items()}
    catalog = CheckpointCatalog(
        found.url,
        selection.format,
        None if selection.step is None else str(selection.step),
        records,
        (*selection.notes, *choice.notes, *reader.notes),
        dict(sorted({**choice.lost, **unusable}.items())),
        next(iter(selection.names.values())).stage_numbers,
    )
    return catalog, errors


def _without_files(found: RankFiles, needed: range, step: str | None, damage: DamagePolicy) -> dict[int, str]:
    """Ranks that are given up before any file is opened, and why."""
    strangers = [rank for rank in damage.faulty if rank not in needed]
    if strangers:
        raise CatalogError(
            f"{found.url}: {rank_names(strangers, 10)} cannot be faulty ({option('fault_ranks')}): the source has "
            f"ranks {needed.start} to {needed.stop - 1}"
        )
    lost = dict.fromkeys(damage.faulty, NAMED_AS_FAULTY)
    if damage.recovers and not found.is_one_rank:
        asked = None if step is None else parse_step(step)
        having = {
            rank for rank in found.ranks if asked is None or any(file.name.step == asked for file in found.files[rank])
        }
        found_ranks = frozenset(found.ranks)
        for rank in needed if having & {*needed} - {*lost} else ():
            if rank not in having:
                why = NO_FILE if rank not in found_ranks else f"it has no checkpoint file of step {asked}"
                lost.setdefault(rank, why)
    if len(lost) == len(needed):
        raise CatalogError(f"{found.url}: no rank is left to recover anything from")
    return lost


def _check_ranks(found: RankFiles, needed: range, lost: Collection[int], options: CatalogOptions) -> tuple[str, ...]:
    """Refuse ranks that are missing or too many; return notes on those that are ignored."""
    has_strategy, allow_extra_ranks = options.ranks is not None, options.allow_extra_ranks
    there_are = frozenset(found.ranks)
    missing = [rank for rank in needed if rank not in there_are and rank not in lost]
    extra = [rank for rank in found.ranks if rank not in needed]
    there = f"{found.url}: {counted(len(found.ranks), 'rank')}"
    wanted = f"the source strategy has {counted(len(needed), 'rank')}"
    if missing and found.is_one_rank:
        what = "a single checkpoint file" if found.shape is RankShape.FILE else "files without rank_N folders"
        raise CatalogError(
            f"{there}, {what}, but {wanted}; missing: {rank_names(missing)}. "
            "Name the directory of the rank folders, or a pattern with {rank}"
        )
    if extra and not has_strategy and not allow_extra_ranks:
        where = " in one folder" if found.shape is RankShape.RANK_FILES else ""
        raise CatalogError(
            f"{there}{where} ({rank_names(found.ranks, 3)}): several ranks need a source strategy, none is given: pass "
            f"{source_option('source_strategy')}{_strategies_there(found)}"
        )
    if missing:
        empty = [rank for rank in missing if rank in found.files]
        without_files = f" ({rank_names(empty)}: a folder without checkpoint files)" if empty else ""
        needs = wanted if has_strategy else "without a source strategy rank_0 has to hold all"
        raise CatalogError(f"{there}, but {needs}; missing: {rank_names(missing)}{without_files}")
    if not extra:
        return ()
    if not allow_extra_ranks:
        raise CatalogError(
            f"{there}, but {wanted}: it is another checkpoint's strategy, or one pipeline stage's own. "
            f"Too many: {rank_names(extra, 10)}"
        )
    return (f"ignored ranks that are not needed: {rank_names(extra, 10)}",)


def _strategies_there(found: RankFiles) -> str:
    places = [str(place) for place in found.strategies_beside()]
    return f" ({listed(places, _MAX_STRATEGIES, ' or ')}, if that is this checkpoint's)" if places else ""


def _advice_without_files(found: RankFiles, options: CatalogOptions) -> str:
    """Return advice on recovering a checkpoint that was refused before any file was opened, if that would help."""
    damage = options.damage
    if damage.recovers or damage.advice is None:
        return ""
    recovering = replace(options, digest=no_digest, check_crc=False, damage=replace(damage, recovers=True))
    try:
        catalog = ranks_catalog(found, recovering)
    except (InputError, StorageError):
        return ""
    return _advice(damage, catalog) if catalog.lost else ""


def _advice(damage: DamagePolicy, catalog: CheckpointCatalog) -> str:
    """Return advice on recovering a checkpoint whose files were opened."""
    return "" if damage.recovers or damage.advice is None else damage.advice(catalog)

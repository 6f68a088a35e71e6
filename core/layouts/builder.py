"""Builds the catalog of a checkpoint: each rank's file and, from its headers, the file's contents.

The survey lists, the selection decides by names, and only then are files opened, one per rank. All problems with ranks
and files are reported as one error.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import NAMED_AS_FAULTY, NO_FILE, DamagePolicy, is_damage, with_advice
from reshard.core.checkpoint.record_reader import RecordReader, WantsDigest, no_digest, read_records
from reshard.core.checkpoint.selection import select_files
from reshard.core.checkpoint.shared_bytes import check_bytes_apart
from reshard.core.checkpoint.torn_files import torn_ranks
from reshard.core.errors import CatalogError, CheckpointError, InputError, StorageError
from reshard.core.files.any_format import format_of
from reshard.core.files.file_names import parse_step
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.output_directory import strategies_beside
from reshard.core.layouts.survey import CheckpointShape, CheckpointSurvey, survey
from reshard.core.layouts.unified.index import check_index, names_outside
from reshard.core.runtime.option_names import source_option
from reshard.core.runtime.wording import counted, listed, listed_lines, rank_names
from reshard.core.storage.patterns import RANK_FIELD
from reshard.core.storage.urls import Location, parse_url

_MAX_FILE_ERRORS = 20

_REFUSES_DAMAGE = DamagePolicy()


def build_catalog(
    url: str,
    ranks: range | None,
    *,
    step: str | None = None,
    source_prefix: str | None = None,
    digest: WantsDigest = no_digest,
    check_crc: bool = True,
    crc_later: bool = False,
    workers: int = 8,
    allow_extra_ranks: bool = False,
    found: CheckpointSurvey | None = None,
    damage: DamagePolicy = _REFUSES_DAMAGE,
) -> CheckpointCatalog:
    """Find the checkpoint's file of each rank and index it.

    Of remote files of one size that agree in samples, the headers of one only are read; the records of the others are
    marked as assumed. Unless its own index or metadata says which rank has which slice, that links do not make one file
    of two slices has to be checked with the strategy: `check_bytes_apart`.

    Args:
        url: a directory with `rank_N` folders; a directory with checkpoint files or a checkpoint file, which are
            rank 0's; a pattern with `{rank}` that matches each rank's folder or file; a unified checkpoint; a
            Checkpoint 2.0, whose metadata says which ranks it has; or a DCP checkpoint, whose files count as ranks.
        ranks: ranks of the source strategy; None without a strategy: rank 0 holds everything.
        step: the step to use, `10_5` or `10_5_breakpoint`; None for the newest one that every rank has.
        source_prefix: the prefix of the files to use, if there are several.
        digest: selects the parameters of each rank whose contents are digested; by default none.
        check_crc: read files that carry a CRC whole to check it.
        crc_later: CRCs of single tensors, as DCP has them, are not checked here; the indexes have them for later.
        workers: files read at a time; more if they are remote.
        allow_extra_ranks: ignore ranks other than `ranks`.
        found: the survey of `url`, if there is one already.
        damage: how to treat ranks without a usable file. If it recovers, they become the catalog's lost ranks, and
            without `step` the newest step is used that is on all ranks with files, leaving aside faulty ones.

    Raises:
        CatalogError: ranks are missing or too many, no choice of files is right or several are, the directory is
            unreadable or an unfinished conversion; or several files are unusable.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    found = found or survey(url, step or "")
    if found.unfinished:
        raise CatalogError(
            f"{found.url}: an unfinished conversion (its .reshard folder has no manifest): complete it first, "
            "or name another checkpoint"
        )
    if found.shape is CheckpointShape.UNIFIED:
        _check_nothing_to_choose(found, ranks, step or source_prefix, damage)
        catalog = _unified_catalog(found, digest, check_crc, workers)
        check_bytes_apart(catalog, None)
        return catalog
    if found.dcp is not None:
        _check_saved_once(found, source_prefix or (step if found.dcp.step is None else None), damage)
        from reshard.core.layouts.dcp.catalog import dcp_catalog

        catalog = dcp_catalog(found.dcp, workers, check_crc=check_crc, crc_later=crc_later)
        check_bytes_apart(catalog, found.dcp.strategy)
        return catalog
    if found.iteration is not None:
        _check_no_prefix(found, source_prefix)
        from reshard.core.layouts.checkpoint2.catalog import iteration_catalog

        reader = RecordReader(digest, check_crc, assume_alike=False)
        catalog = iteration_catalog(found, found.iteration, reader, workers, damage)
        check_bytes_apart(catalog, found.iteration.strategy)
        return catalog
    needed = range(1) if ranks is None else ranks

    def look_again() -> CheckpointCatalog:
        return build_catalog(
            url,
            ranks,
            step=step,
            source_prefix=source_prefix,
            check_crc=False,
            workers=workers,
            allow_extra_ranks=allow_extra_ranks,
            found=found,
            damage=replace(damage, recovers=True),
        )

    try:
        lost = _without_files(found, needed, step, damage)
        notes = _check_ranks(found, needed, lost, has_strategy=ranks is not None, allow_extra_ranks=allow_extra_ranks)
        names = {rank: [file.name for file in found.files[rank]] for rank in needed if rank not in lost}
        selection = select_files(found.url, names, step=step, source_prefix=source_prefix, named=found.names_files)
    except CatalogError as error:
        raise with_advice(error, _advice(damage, look_again)) from error.__cause__
    locations = {
        rank: next(file.location for file in found.files[rank] if file.name == name)
        for rank, name in selection.names.items()
    }
    reader = RecordReader(digest, check_crc, assume_alike=True, strategy=damage.strategy)
    records, errors = read_records(locations, reader, workers)
    for rank, why in torn_ranks(records, damage.strategy).items() if damage.strategy else ():
        errors[rank] = CheckpointError(f"{records.pop(rank).location}: {why}")
    lost |= {rank: str(error).removeprefix(f"{locations[rank]}: ") for rank, error in errors.items()}
    chosen_step = None if selection.step is None else str(selection.step)
    notes = (*selection.notes, *notes, *reader.notes)
    catalog = CheckpointCatalog(
        found.url,
        selection.format,
        chosen_step,
        records,
        notes,
        {rank: lost[rank] for rank in sorted(lost)},
        next(iter(selection.names.values())).stage_numbers,
    )
    only_damage = all(is_damage(error) for error in errors.values())
    if errors and not (damage.recovers and only_damage):
        refusal = _joined(found.url, [errors[rank] for rank in sorted(errors)], len(locations))
        raise with_advice(refusal, _advice(damage, lambda: catalog) if only_damage and records else "")
    return catalog


def _unified_catalog(found: CheckpointSurvey, digest: WantsDigest, check_crc: bool, workers: int) -> CheckpointCatalog:
    """Catalog a unified checkpoint, and compare its index with its files."""
    if not found.files:
        check_index(found.url, found.index, {})
        raise CatalogError(f"{found.url}: its index names no file")
    files = {rank: file.location for rank, (file,) in found.files.items()}
    catalog = catalog_files(found.url, files, digest=digest, check_crc=check_crc, workers=workers)
    notes = check_index(found.url, found.index, catalog.records)
    if found.index is None and len(files) > 1:
        notes += (f"there is no index: its {len(files)} files are complete by the numbers in their names",)
    beside = [name for name in found.ignored if name.endswith(f".{CheckpointFormat.SAFETENSORS}")]
    if beside:
        notes += (f"beside the files of the checkpoint, and not in its index, so ignored: {listed(beside, 6)}",)
    return replace(catalog, notes=notes, unified=True, outside=names_outside(catalog.records))


def catalog_files(
    origin: str, files: Mapping[int, Location], *, digest: WantsDigest, check_crc: bool = True, workers: int = 8
) -> CheckpointCatalog:
    """Catalog given files of some ranks; the arguments are as in `build_catalog`.

    Raises:
        CatalogError: the files are of two formats, or several are unusable.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    by_format = {format_of(location): location for location in files.values()}
    if len(by_format) > 1:
        raise CatalogError(f"{origin}: files of both formats: {' and '.join(map(str, by_format.values()))}")
    records, errors = read_records(files, RecordReader(digest, check_crc, assume_alike=False), workers)
    if errors:
        raise _joined(origin, list(errors.values()), len(files))
    return CheckpointCatalog(origin, next(iter(by_format)), None, records)


def _without_files(found: CheckpointSurvey, needed: range, step: str | None, damage: DamagePolicy) -> dict[int, str]:
    """Ranks that are given up before any file is opened, and why."""
    strangers = [rank for rank in damage.faulty if rank not in needed]
    if strangers:
        raise CatalogError(
            f"{found.url}: {rank_names(strangers, 10)} cannot be faulty (--fault-ranks): the source has ranks "
            f"{needed.start} to {needed.stop - 1}"
        )
    lost = dict.fromkeys(damage.faulty, NAMED_AS_FAULTY)
    if damage.recovers and found.shape not in (CheckpointShape.FILE, CheckpointShape.FOLDER):
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


def _advice(damage: DamagePolicy, look_again: Callable[[], CheckpointCatalog]) -> str:
    """Return advice on recovering a checkpoint that was refused before any file was opened, if that would help."""
    if damage.recovers or damage.advice is None:
        return ""
    try:
        catalog = look_again()
    except (InputError, StorageError):
        return ""
    return damage.advice(catalog) if catalog.lost else ""


def _check_ranks(
    found: CheckpointSurvey, needed: range, lost: Collection[int], *, has_strategy: bool, allow_extra_ranks: bool
) -> tuple[str, ...]:
    there_are = frozenset(found.ranks)
    missing = [rank for rank in needed if rank not in there_are and rank not in lost]
    extra = [rank for rank in found.ranks if rank not in needed]
    there = f"{found.url}: {counted(len(found.ranks), 'rank')}"
    wanted = f"the source strategy has {counted(len(needed), 'rank')}"
    if missing and found.shape in (CheckpointShape.FILE, CheckpointShape.FOLDER):
        what = "a single checkpoint file" if found.shape is CheckpointShape.FILE else "files without rank_N folders"
        raise CatalogError(
            f"{there}, {what}, but {wanted}; missing: {rank_names(missing)}. "
            "Name the directory of the rank folders, or a pattern with {rank}"
        )
    if extra and not has_strategy and not allow_extra_ranks:
        where = " in one folder" if found.shape is CheckpointShape.RANK_FILES else ""
        raise CatalogError(
            f"{there}{where} ({rank_names(found.ranks, 3)}): several ranks need a source strategy, none is given: "
            f"name it with {source_option('source-strategy')}{_strategies_there(found)}"
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


def _strategies_there(found: CheckpointSurvey) -> str:
    place = None if RANK_FIELD in found.url else strategies_beside(parse_url(found.url))
    return f", {place} if those are this checkpoint's" if place else ""


def _joined(origin: str, errors: Sequence[InputError], files: int) -> InputError:
    if len(errors) == 1:
        return errors[0]
    lines = listed_lines([str(error) for error in errors], _MAX_FILE_ERRORS)
    return CatalogError("\n  ".join([f"{origin}: {len(errors)} of {files} checkpoint files cannot be used:", *lines]))


def _check_no_prefix(found: CheckpointSurvey, source_prefix: str | None) -> None:
    if source_prefix:
        raise CatalogError(
            f"{found.url}: is a Checkpoint 2.0, whose metadata names its files: leave out --source-prefix"
        )


def _check_saved_once(found: CheckpointSurvey, choice: str | None, damage: DamagePolicy) -> None:
    """Refuse options that DCP checkpoints do not have."""
    if choice:
        raise CatalogError(
            f"{found.url}: is one DCP checkpoint, it has no steps or prefixes: leave out {source_option('step')} and "
            "--source-prefix"
        )
    if damage.recovers:
        raise CatalogError(
            f"{found.url}: is a DCP checkpoint, which has each slice once: nothing can be recovered, --recover"
        )


def _check_nothing_to_choose(
    found: CheckpointSurvey, ranks: range | None, choice: str | None, damage: DamagePolicy
) -> None:
    """Refuse options that unified checkpoints do not have."""
    if ranks is not None:
        raise CatalogError(
            f"{found.url}: is unified, its tensors are whole: name no strategy for it "
            f"({source_option('source-strategy')})"
        )
    if choice:
        raise CatalogError(
            f"{found.url}: is unified, it has no steps or prefixes: leave out {source_option('step')} and "
            "--source-prefix"
        )
    if damage.recovers:
        raise CatalogError(f"{found.url}: is unified, it has everything once: nothing can be recovered, --recover")

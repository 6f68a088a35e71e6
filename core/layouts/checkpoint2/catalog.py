"""Builds the catalog of an iteration of Checkpoint 2.0, and compares its files with its metadata."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.damage_policy import NAMED_AS_FAULTY, DamagePolicy, is_damage
from reshard.core.checkpoint.record_reader import RecordReader, read_records
from reshard.core.errors import CatalogError, CheckpointError, InputError
from reshard.core.files.model import CheckpointFormat, FileIndex
from reshard.core.layouts.checkpoint2.iterations import Iteration, joint_files
from reshard.core.layouts.checkpoint2.names import METADATA_NAME, UNLISTED_PARAMETERS
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.storage.reading import read_version
from reshard.core.storage.urls import parse_url
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines

if TYPE_CHECKING:
    from reshard.core.layouts.checkpoint2.metadata import Metadata

_MAX_ERRORS = 20
_MAX_NAMES = 6


def iteration_catalog(iteration: Iteration, options: CatalogOptions) -> CheckpointCatalog:
    """Catalog the files of an iteration: for each rank those that it wrote.

    A rank that wrote none has an empty record. Missing and damaged files are left out if by the metadata they hold
    nothing but what `options.damage` excludes. If it recovers, ranks without a usable file become the catalog's lost
    ranks.

    Raises:
        CatalogError: files are missing, or several are unusable or contradict the metadata.
        CheckpointError: one file is unusable, or contradicts the metadata.
        StorageError: a transient failure of the storage.
    """
    damage = options.damage
    reader = RecordReader(options.digest, options.check_crc, assume_alike=False)
    unneeded = _unneeded_files(iteration, damage)
    iteration = _without(iteration, unneeded.difference(iteration.names), "missing")
    lost = _lost_before_reading(iteration, damage)
    iteration, records, errors = _read_needed(iteration, lost, unneeded, reader, options.workers)
    locations = joint_files(iteration)
    for rank, record in list(records.items()):
        problem = _contradiction(record, iteration.metadata)
        if problem:
            errors[rank] = CheckpointError(f"{records.pop(rank).location}: {problem}")
    lost |= {rank: str(error).removeprefix(f"{locations[rank]}: ") for rank, error in errors.items()}
    catalog = CheckpointCatalog(
        iteration.url,
        CheckpointFormat.SAFETENSORS,
        None if iteration.number is None else str(iteration.number),
        dict(sorted((records | _empty_records(iteration, lost)).items())),
        (*iteration.notes, *reader.notes),
        dict(sorted(lost.items())),
    )
    if errors and not (damage.recovers and all(map(is_damage, errors.values()))):
        raise _joined(iteration.url, [errors[rank] for rank in sorted(errors)], damage, catalog)
    return replace(catalog, notes=(*catalog.notes, *_absent_notes(catalog, iteration)))


def unheld_parameters(catalog: CheckpointCatalog, metadata: "Metadata") -> list[str]:
    """Return the parameters in the metadata that no file holds, other than those of lost ranks' files."""
    held = {name for index in catalog.indexes() for name in index.entries}
    of_lost = {name for file in metadata.files.values() if file.rank in catalog.lost for name in file.tensors}
    return [name for name in metadata.tensors if name not in held and name not in of_lost]


def _unneeded_files(iteration: Iteration, damage: DamagePolicy) -> frozenset[str]:
    """Files that by the metadata hold nothing but excluded parameters."""
    if iteration.metadata is None:
        return frozenset()
    excluded = frozenset(damage.excluded([*iteration.metadata.tensors, *UNLISTED_PARAMETERS]))
    if not excluded >= UNLISTED_PARAMETERS:  # any file may hold these
        return frozenset()
    return frozenset(name for name, file in iteration.metadata.files.items() if excluded.issuperset(file.tensors))


def _without(iteration: Iteration, files: Collection[str], problem: str) -> Iteration:
    """The iteration without some of its files, with a note."""
    left_out = [name for names in iteration.files.values() for name in names if name in files]
    if not left_out:
        return iteration
    note = (
        f"{problem}, but by {METADATA_NAME} without any parameter that is selected, so left out: "
        f"{listed(left_out, _MAX_NAMES)}"
    )
    return replace(iteration, notes=(*iteration.notes, note), left_out=iteration.left_out.union(left_out))


def _read_needed(
    iteration: Iteration, lost: Collection[int], unneeded: Collection[str], reader: RecordReader, workers: int
) -> tuple[Iteration, dict[int, CatalogRecord], dict[int, InputError]]:
    """Read the files of all ranks but lost ones; what is damaged without being needed is left out of the iteration."""
    locations = {rank: location for rank, location in joint_files(iteration).items() if rank not in lost}
    records, errors = read_records(locations, reader, workers)
    damaged = {rank for rank, error in errors.items() if is_damage(error)}
    doubtful = {name for rank in damaged for name in iteration.files[rank] if name in unneeded}
    if not doubtful:
        return iteration, records, errors
    needed = joint_files(_without(iteration, doubtful, ""))
    reread, still_damaged = read_records({rank: needed[rank] for rank in damaged & needed.keys()}, reader, workers)
    doubtful -= {name for rank in still_damaged for name in iteration.files[rank]}
    errors = {rank: error for rank, error in errors.items() if rank in still_damaged or rank not in damaged}
    return _without(iteration, doubtful, "damaged"), records | reread, errors


def _lost_before_reading(iteration: Iteration, damage: DamagePolicy) -> dict[int, str]:
    ranks = iteration.strategy.ranks if iteration.strategy else range(1)
    strangers = [rank for rank in damage.faulty if rank not in ranks]
    if strangers:
        raise CatalogError(
            f"{iteration.url}: {rank_names(strangers, 10)} cannot be faulty ({option('fault_ranks')}): the source has "
            f"ranks {ranks.start} to {ranks.stop - 1}"
        )
    missing = {rank: names for rank in iteration.files if (names := iteration.missing_from(rank))}
    lost = {rank: _missing_text(iteration.files[rank], names) for rank, names in missing.items()}
    if missing and not damage.recovers:
        files = [name for each in missing.values() for name in each]
        raise CatalogError(
            f"{iteration.url}: files that {METADATA_NAME} lists are missing: {listed(files, _MAX_NAMES)}. Get them as "
            f"well, or {option('recover', True)}, if other ranks hold what was in them ('reshard recover' tells)"
        )
    lost |= dict.fromkeys(damage.faulty, NAMED_AS_FAULTY)
    if iteration.files and not iteration.files.keys() - lost.keys():
        raise CatalogError(f"{iteration.url}: no rank is left to recover anything from")
    return lost


def _missing_text(files: Sequence[str], missing: Sequence[str]) -> str:
    """Format which files of a rank are missing, and which others that leaves unused."""
    there = [name for name in files if name not in missing]
    text = f"missing: {listed(missing, _MAX_NAMES)}"
    # a rank is one record, whole or lost: what its other file holds comes from replicas, too
    return f"{text}; unused without that: {listed(there, _MAX_NAMES)}" if there else text


def _empty_records(iteration: Iteration, lost: dict[int, str]) -> dict[int, CatalogRecord]:
    """Records of ranks that hold nothing; the metadata, which says so, takes the place of a file."""
    if iteration.metadata is None:
        return {}
    ranks = [rank for rank in iteration.metadata.strategy.ranks if rank not in iteration.files and rank not in lost]
    if not ranks:
        return {}
    location = parse_url(iteration.metadata.origin)
    version = read_version(location)
    index = FileIndex(CheckpointFormat.SAFETENSORS, 0, {})
    return {rank: CatalogRecord(rank, str(location), 0, version, index) for rank in ranks}


def _contradiction(record: CatalogRecord, metadata: "Metadata | None") -> str:
    """What in a rank's files contradicts the metadata; empty if nothing does."""
    if metadata is None:
        return ""
    for name, entry in record.index.entries.items():
        if name in UNLISTED_PARAMETERS:
            continue
        tensor = metadata.tensors.get(name)
        if tensor is None:
            return f"holds parameter {name!r}, which {METADATA_NAME} does not list: it is of another iteration"
        is_of_layout = tensor.layout is None or record.rank in tensor.ranks
        if is_of_layout and entry.shape != tensor.local_shape:
            return f"parameter {name!r} has shape {list(entry.shape)}, {METADATA_NAME} gives {list(tensor.local_shape)}"
    return ""


def _absent_notes(catalog: CheckpointCatalog, iteration: Iteration) -> tuple[str, ...]:
    """Notes on listed parameters that the files of some ranks lack, though other files have them."""
    metadata = iteration.metadata
    if metadata is None:
        return ()
    absent = dict.fromkeys(
        name
        for file in metadata.files.values()
        if file.rank in catalog.records and file.name not in iteration.left_out
        for name in file.tensors
        if name not in catalog.records[file.rank].index.entries
    )
    unheld = set(unheld_parameters(catalog, metadata))
    elsewhere = [name for name in absent if name not in unheld]
    if not elsewhere:
        return ()
    return (f"listed for several ranks, but not in the files of all of them: {listed(elsewhere, _MAX_NAMES)}",)


def _joined(url: str, errors: Sequence[InputError], damage: DamagePolicy, catalog: CheckpointCatalog) -> InputError:
    lines = listed_lines([error.marked for error in errors], _MAX_ERRORS)
    advice = ""
    if damage.advice is not None and catalog.records and all(map(is_damage, errors)):
        advice = damage.advice(catalog)
    if len(errors) == 1:
        return type(errors[0])("\n".join(filter(None, [lines[0], advice])))
    headline = f"{url}: {len(errors)} of its files cannot be used:"
    return CatalogError("\n".join(filter(None, ["\n  ".join([headline, *lines]), advice])))

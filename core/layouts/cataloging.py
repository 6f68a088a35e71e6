"""Catalogs a found checkpoint: each file's contents, from its headers.

If remote files have one size and agree in samples, the headers of only one are read; the records of the others are
marked as assumed.
"""

from collections.abc import Mapping, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.record_reader import RecordReader, WantsDigest, read_records
from reshard.core.checkpoint.shared_bytes import check_bytes_apart
from reshard.core.errors import CatalogError, InputError
from reshard.core.files.any_format import format_of
from reshard.core.layouts.source_layout import CatalogOptions, FoundCheckpoint
from reshard.core.storage.urls import Location
from reshard.core.text.options import source_option
from reshard.core.text.printing import listed_lines

_MAX_FILE_ERRORS = 20
_NO_OPTIONS = CatalogOptions()


def catalog_of(found: FoundCheckpoint, options: CatalogOptions = _NO_OPTIONS) -> CheckpointCatalog:
    """Open the files of a checkpoint and index them.

    If a checkpoint does not say itself which rank has which slice, callers that know its strategy call
    `check_bytes_apart`: links must not make one file of two slices.

    Raises:
        CatalogError: files are missing or too many, no choice of files is right or several are; it is an unfinished
            conversion, or an option makes no sense for it; or several files are unusable.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    check_usable(found, options)
    catalog = found.catalog(options)
    if found.is_self_described and not found.may_share_bytes:
        check_bytes_apart(catalog, found.strategy)
    return catalog


def check_usable(found: FoundCheckpoint, options: CatalogOptions) -> None:
    """Raise a CatalogError for an unfinished conversion, or an option that makes no sense for a checkpoint."""
    if found.unfinished:
        raise CatalogError(
            f"{found.url}: an unfinished conversion (its .reshard folder has no manifest): complete it first, "
            "or name another checkpoint"
        )
    if options.root and not found.has_trees:
        raise CatalogError(
            f"{found.url}: its tensors are not in trees of dicts, as PyTorch saves them in files that end in .pt, .pth "
            f"or .bin: leave out {source_option('root')}"
        )
    found.check_options(options)


def catalog_files(
    origin: str, files: Mapping[int, Location], *, digest: WantsDigest, check_crc: bool = True, workers: int = 8
) -> CheckpointCatalog:
    """Catalog given files of some ranks; the arguments are as in `CatalogOptions`.

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
        raise joined_errors(origin, list(errors.values()), len(files))
    return CheckpointCatalog(origin, next(iter(by_format)), None, records)


def joined_errors(origin: str, errors: Sequence[InputError], files: int) -> InputError:
    """Return one error for those of several of a number of files."""
    if len(errors) == 1:
        return errors[0]
    lines = listed_lines([error.marked for error in errors], _MAX_FILE_ERRORS)
    return CatalogError("\n  ".join([f"{origin}: {len(errors)} of {files} checkpoint files cannot be used:", *lines]))

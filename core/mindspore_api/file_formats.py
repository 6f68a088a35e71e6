"""`ckpt_to_safetensors` and `safetensors_to_ckpt`: the same contents in a file of the other format.

Contents are not loaded but streamed from file to file, so that memory does not grow with them; several files are
converted at a time by threads.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from reshard.core.errors import CatalogError, CheckpointError, ReshardError
from reshard.core.files.any_format import check_crc, read_index
from reshard.core.files.block_writing import FileKind, write_checkpoint
from reshard.core.files.model import CheckpointFormat, Content, output_entry
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.mindspore_api.failures import writing
from reshard.core.mindspore_api.loading import open_readable
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import kind_of, list_folder
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location, parse_url

NameMap = Mapping[str, str] | None


def ckpt_to_safetensors(
    file_path: str,
    save_path: str | None = None,
    name_map: NameMap = None,
    file_name_regex: str | None = None,
    processes_num: int = 1,
) -> None:
    """Convert .ckpt files to .safetensors files of the same names.

    Args:
        file_path: a file; or a directory, whose files in folders that begin with `rank` are converted.
        save_path: the directory for the new files, of a directory's in folders as there; None for beside the old ones.
        name_map: old names of parameters and their new ones; others keep theirs.
        file_name_regex: pattern in the names of the files to convert.
        processes_num: number of files converted at a time.

    Raises:
        ValueError: there is nothing at the path, or no such folders and files in it; the file is not a .ckpt, or its
            name does not fit; `save_path` has an ending; `name_map` is not a dict; a file cannot be read, or the other
            format cannot hold what it holds.
        OSError: a file cannot be written.
    """
    job = _Job(CheckpointFormat.CKPT, CheckpointFormat.SAFETENSORS, _checked_names(name_map))
    _convert(job, file_path, save_path, file_name_regex, processes_num)


def safetensors_to_ckpt(
    file_path: str,
    save_path: str | None = None,
    name_map: NameMap = None,
    file_name_regex: str | None = None,
    processes_num: int = 1,
) -> None:
    """Convert .safetensors files to .ckpt files of the same names, parameters in the order of their old names.

    Arguments and exceptions are those of `ckpt_to_safetensors`, the other way round.
    """
    job = _Job(CheckpointFormat.SAFETENSORS, CheckpointFormat.CKPT, _checked_names(name_map))
    _convert(job, file_path, save_path, file_name_regex, processes_num)


class _Job(Record):
    """A conversion: its formats, and the new names of parameters that get one."""

    source_format: CheckpointFormat
    target_format: CheckpointFormat
    names: Mapping[str, str]

    def new_name(self, file_name: str) -> str:
        # all occurrences, as MindSpore does it
        return file_name.replace(f".{self.source_format}", f".{self.target_format}")

    def takes(self, file_name: str) -> bool:
        return file_name.endswith(f".{self.source_format}")


class _FilePair(Record):
    """A file and the one that is made of it."""

    source: Location
    target: Location


def _checked_names(name_map: object) -> Mapping[str, str]:
    if name_map is None:
        return {}
    if not isinstance(name_map, Mapping):
        raise ValueError(f"'name_map' has to be a dict of names, not {type(name_map)}")
    for old, new in name_map.items():
        if not isinstance(new, str) or not new:
            raise ValueError(f"'name_map' has {new!r} for {old!r}, which is not a name")
    return name_map


def _convert(job: _Job, path: str, save_path: str | None, pattern: str | None, at_a_time: Any) -> None:
    if not isinstance(path, str):
        raise ValueError(f"'file_path' has to be a string, not {type(path)}")
    if not isinstance(at_a_time, int) or at_a_time < 1:
        raise ValueError(f"'processes_num' has to be an int of at least 1, not {at_a_time!r}")
    _check_pattern(pattern)
    if save_path is not None and not isinstance(save_path, str):
        raise ValueError(f"'save_path' has to be a string or None, not {type(save_path)}")
    if save_path and posixpath.splitext(save_path)[1]:
        raise ValueError(f"'save_path' has to be a directory, and {save_path!r} has a file's ending")
    with writing():
        source = parse_url(path)
        target = parse_url(save_path) if save_path else None
        kind = kind_of(source)
        if kind == "directory":
            pairs = _files_of_ranks(job, source, target, pattern)
        elif kind is None:
            raise CatalogError(f"{path}: is not there")
        else:
            pairs = [_single_file(job, path, source, target, pattern)]
        with ThreadPoolExecutor(at_a_time, thread_name_prefix="reshard-format") as pool:
            outcomes = list(pool.map(lambda pair: _converted(job, pair), pairs))
        for outcome in outcomes:
            if outcome is not None:
                raise outcome


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except (TypeError, re.error) as error:
        raise ValueError(f"'file_name_regex' {pattern!r} is not a regular expression: {error}") from None


def _single_file(job: _Job, path: str, source: Location, target: Location | None, pattern: str | None) -> _FilePair:
    if not job.takes(source.name):
        raise CheckpointError(f"{path}: is not a .{job.source_format} file")
    if pattern is not None and not re.search(pattern, path):
        raise CheckpointError(f"{path}: 'file_name_regex' {pattern!r} is not found in it")
    return _FilePair(source, (target or source.parent).child(job.new_name(source.name)))


def _files_of_ranks(job: _Job, root: Location, target: Location | None, pattern: str | None) -> list[_FilePair]:
    folders = [name for name, kind in _listed(root) if kind == "directory" and name.startswith("rank")]
    if not folders:
        raise CatalogError(f"{root}: has no directories whose names begin with 'rank'")
    pairs = [
        _FilePair(root.child(folder, name), (target or root).child(folder, job.new_name(name)))
        for folder in folders
        for name, kind in _listed(root.child(folder))
        if kind != "directory" and job.takes(name) and (pattern is None or re.search(pattern, name))
    ]
    if not pairs and pattern is not None:
        raise CatalogError(f"{root}: 'file_name_regex' {pattern!r} is found in no .{job.source_format} file's name")
    return pairs


def _listed(folder: Location) -> list[tuple[str, str]]:
    return sorted((entry.name, entry.kind) for entry in list_folder(folder))


def _converted(job: _Job, pair: _FilePair) -> ReshardError | None:
    """Convert a file; return the error, if any."""
    try:
        with closing(open_readable(pair.source, None, takes_key=False)) as file:
            _convert_file(job, file, pair.target)
    except ReshardError as error:
        return error
    return None


def _convert_file(job: _Job, file: SourceFile, target: Location) -> None:
    index = read_index(file)
    check_crc(file, index)
    in_order = index.entries if index.format is CheckpointFormat.CKPT else sorted(index.entries)
    found = [replace(index.entries[name], name=job.names.get(name, name)) for name in in_order]
    by_name = {entry.name: entry for entry in found}

    def blocks(contents: Sequence[Content]) -> Iterator[memoryview]:
        ranges = (
            (extent.offset, extent.length)
            for content in contents
            if content.start < content.stop
            for extent in by_name[content.name].extents_of(content.start, content.stop - content.start)
        )
        return (block for _, block in read_in_blocks(file, ranges))

    try:
        write_checkpoint(target, FileKind(job.target_format), list(map(output_entry, found)), blocks)
    except CheckpointError as error:
        raise CheckpointError(f"{file.location}: {error.marked}") from error

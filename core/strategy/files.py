"""Reads and writes strategies: a single file, or a directory with one file per rank of a job."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from reshard.core.errors import CheckpointError, LimitError, StorageError, StrategyError, is_transient
from reshard.core.runtime.metadata import check_metadata, parsing
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import is_missing, list_folder, stat
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.read_log import note_read
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.transfers import at_once
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.strategy.file_kinds import START_BYTES, guess_suffix
from reshard.core.strategy.json_file import build_json, parse_json
from reshard.core.strategy.merging import check_against_merged, merge_strategies
from reshard.core.strategy.model import Strategy

# Large real strategies, of tens of thousands of operators and parameters, have some tens of MB; a larger file is
# something else, most likely a checkpoint.
_MAX_FILE_BYTES = 128 << 20
_MERGED_MARK = "merge_succeed.txt"
"""MindFormers' empty file that tells other ranks that the strategies beside it have been merged."""


def read_strategy(url: str) -> Strategy:
    """Read the strategy in a file, or merge those in a directory.

    A file whose name ends in .json is JSON, any other protobuf. In a directory every file counts, whatever its name,
    except hidden ones, subdirectories and MindFormers' empty mark. Files of one stage must agree. A directory may also
    hold a merged strategy, which must agree with the files beside it.

    Raises:
        StrategyError: a file is missing, empty, no strategy or inconsistent; or the files of a directory do not form
            one strategy. Names the files.
    """
    location = parse_url(url)
    with storage_errors_as_strategy(location):
        return read_listed(location, list_strategy_files(location))


def list_strategy_files(location: Location) -> list[Location] | None:
    """Return the files of a directory of strategies, by name; None if the location is a file.

    Raises:
        StrategyError: it is neither, or the directory is empty.
        StorageError: it cannot be listed.
    """
    return _list_files(location) if _is_directory(location) else None


def read_listed(location: Location, files: Sequence[Location] | None) -> Strategy:
    """Read the strategy at a location, as `read_strategy` does; `files` are those of a directory, None for a file."""
    if files is None:
        return _parse(_read_file(location), location)
    return read_strategies(files, str(location))


def read_strategies(files: Sequence[Location], origin: str) -> Strategy:
    """Read the strategy that files form together, as in a directory; `origin` names them in messages."""
    _check_one_format(files)
    # the ranks of a stage write the same bytes: parse each content once, under the first file's name
    first_with: dict[bytes, Location] = {}
    with parsing(origin) as parse:
        for location, data in zip(files, at_once(_read_file, files), strict=True):
            if data not in first_with:
                parse.take(2 * len(data))  # the layouts built from it take no more
                first_with[data] = location
        strategies = [_parse(data, location) for data, location in first_with.items()]
    merged = [strategy for strategy in strategies if strategy.merged]
    own = [strategy for strategy in strategies if not strategy.merged]
    for strategy in own:
        _check_stage_known(strategy)
    if not merged:
        return replace(merge_strategies(own), origin=origin)
    agreed = check_against_merged(merged, own)
    return replace(agreed, origin=origin, notes=(_agreed_note(agreed, own),) if len(strategies) > 1 else ())


def _agreed_note(merged: Strategy, own: Sequence[Strategy]) -> str:
    alone = {stage.stage for stage in merged.stages} - {strategy.stages[0].stage for strategy in own}
    lacking = (
        f"; stages without files of their own: {listed([str(number) for number in sorted(alone)])}" if alone else ""
    )
    return f"{merged.origin} is a merged strategy, and agrees with the files beside it{lacking}"


def stages_beside(url: str) -> Iterator[int]:
    """Yield the stages whose own strategies are in the directory of a strategy file, its own included.

    Skips files that are unreadable or no stage's own strategy.
    """
    with _skip_unusable():
        # last name first: names contain ranks, and the last ones are rarely stage 0's
        for location in reversed(_list_files(parse_url(url).parent)):
            with _skip_unusable():
                strategy = read_strategy(str(location))
                if not strategy.merged:
                    yield strategy.stages[0].stage


def write_strategy(strategy: Strategy, url: str) -> None:
    """Write a strategy file: JSON if its name ends in .json, else protobuf; a StrategyError if that cannot hold it."""
    location = parse_url(url)
    if _is_json(location):
        write_bytes(location, build_json(strategy))
        return
    from reshard.core.strategy.protobuf_file import build_protobuf

    write_bytes(location, build_protobuf(strategy))


@contextmanager
def storage_errors_as_strategy(named: Location | None = None) -> Iterator[None]:
    """Turn permanent storage errors into StrategyErrors, with a suggestion if the place a user `named` is missing."""
    try:
        yield
    except (StorageError, CheckpointError) as error:  # the latter for a file that shrinks while being read
        if is_transient(error):
            raise
        is_absent = isinstance(error, StorageError) and is_missing(error)
        raise StrategyError(f"{error.marked}{did_you_mean(named) if named and is_absent else ''}") from error


@contextmanager
def _skip_unusable() -> Iterator[None]:
    with suppress(StrategyError, LimitError), storage_errors_as_strategy():
        yield


def _is_json(location: Location) -> bool:
    return location.name.endswith(".json")


def _parse(data: bytes, location: Location) -> Strategy:
    if _is_json(location):
        return parse_json(data, str(location))
    from reshard.core.strategy.protobuf_file import parse_protobuf  # loads protobuf

    return parse_protobuf(data, str(location))


def _is_directory(location: Location) -> bool:
    """True for a directory, False for a file; follows links."""
    kind = stat(location, "read the strategy").kind
    # opening a pipe would wait for a writer, and a device may never end
    if kind not in ("file", "directory"):
        raise StrategyError(f"{location}: is neither a file nor a directory")
    return bool(kind == "directory")


def _read_file(location: Location) -> bytes:
    file = open_source(location)
    try:
        if file.size_bytes > _MAX_FILE_BYTES:
            start = read_bytes(file, 0, START_BYTES)
            raise StrategyError(
                f"{location}: has {file.size_bytes} bytes, a strategy has less than {_MAX_FILE_BYTES}"
                f"{guess_suffix(start)}"
            )
        check_metadata(file.size_bytes, location)
        data = read_bytes(file, 0, file.size_bytes)
    finally:
        file.close()
    note_read(location, data)
    return data


def _list_files(directory: Location) -> list[Location]:
    files = []
    for entry in list_folder(directory, "list the strategy files"):
        location = directory.child(entry.name)
        if location.name.startswith("."):
            continue
        if location.name == _MERGED_MARK and entry.size_bytes == 0:
            continue
        # a listing follows no links: look at entries that are neither files nor directories
        if entry.kind == "file" or (entry.kind != "directory" and not _is_directory(location)):
            files.append(location)
    if not files:
        raise StrategyError(f"{directory}: holds no strategy files")
    return sorted(files, key=lambda location: location.path)


def _check_one_format(files: Sequence[Location]) -> None:
    checkpoint = next((location for location in files if location.name.endswith(".safetensors")), None)
    if checkpoint is not None:
        raise StrategyError(f"{checkpoint}: is a checkpoint's file; name the directory of the ranks' strategy files")
    json = [location for location in files if _is_json(location)]
    if json and len(json) < len(files):
        other = next(location for location in files if not _is_json(location))
        raise StrategyError(
            f"JSON and protobuf strategies are mixed in one directory: {json[0]} and {other}; such a directory "
            "may hold only the ranks' strategy files"
        )


def _check_stage_known(strategy: Strategy) -> None:
    if not strategy.merged and not strategy.stages[0].operators:
        raise StrategyError(
            f"{strategy.origin}: has no operator strategies, from which alone its stage would follow. "
            "If there is only one stage, give the file itself, not its directory"
        )

"""Reads groups of ranks with equal content from files other than strategies: MindX's `group_info`, MindSpore's own."""

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from reshard.core.errors import StrategyError
from reshard.core.runtime.metadata import check_metadata, parse_json, protobuf_bytes
from reshard.core.runtime.wording import MAX_LISTED, listed_ranks
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.files import storage_errors_as_strategy
from reshard.core.strategy.strategy_pb2 import ParallelGroupMap
from reshard.core.text.options import option

MAX_FILE_BYTES = 64 << 20
# ranks get enumerated, so an implausible number is refused first
_MAX_RANKS = 1 << 20

Groups = tuple[tuple[int, ...], ...]
"""Groups of ranks with equal content; every rank in one group, groups and ranks ascending."""


def read_groups(urls: Iterable[str]) -> Groups:
    """Read the groups in several files; a StrategyError unless every rank up to the highest is in one, and only one."""
    groups = {group for url in urls for group in _read(parse_url(url))}
    seen: dict[int, tuple[int, ...]] = {}
    for group in groups:
        for rank in group:
            if rank in seen:
                raise StrategyError(f"group info: rank {rank} is in two groups, {list(seen[rank])} and {list(group)}")
            seen[rank] = group
    if seen and len(seen) <= (highest := max(seen)):
        missing = (rank for rank in range(highest) if rank not in seen)
        raise StrategyError(
            f"group info: ranks {listed_ranks(missing, MAX_LISTED)} are in no group. MindSpore's group file "
            f"describes the group of one rank only: name the files of all ranks, by one {option('group_info')} each"
        )
    return tuple(sorted(groups))


def parse_groups(data: bytes, origin: str) -> Groups:
    """Parse a group file: a JSON list of lists of ranks, or the protobuf file of one rank's group."""
    groups = _from_json(data, origin) if data.lstrip()[:1] == b"[" else [restore_ranks(data, origin)]
    for group in groups:
        if not group or len(set(group)) != len(group):
            raise StrategyError(f"{origin}: a group is {list(group)}: it has to have ranks, each once")
        if max(group) >= _MAX_RANKS:
            raise StrategyError(
                f"{origin}: has rank {max(group)}, beyond {_MAX_RANKS}: damaged, or another kind of file"
            )
    return tuple(tuple(sorted(group)) for group in groups)


def restore_ranks(data: bytes, origin: str) -> list[int]:
    """Parse a MindSpore group file: the ranks from whose checkpoint files its rank can be restored."""
    message = ParallelGroupMap()
    try:
        check_metadata(protobuf_bytes(data), origin)
        message.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise StrategyError(f"{origin}: is neither a JSON list of groups nor a MindSpore group file") from error
    if not message.ckpt_restore_rank_list.dim:
        raise StrategyError(f"{origin}: is not a MindSpore group file: it lists no ranks to restore from")
    return list(message.ckpt_restore_rank_list.dim)


def _read(location: Location) -> Groups:
    with storage_errors_as_strategy():
        return parse_groups(read_small_file(location, MAX_FILE_BYTES), str(location))


def _from_json(data: bytes, origin: str) -> Sequence[Sequence[int]]:
    groups = parse_json(data, origin, StrategyError)
    if not groups or not all(isinstance(group, list) and all(type(rank) is int for rank in group) for group in groups):
        raise StrategyError(f"{origin}: must be a list of lists of ranks, such as [[0, 2], [1, 3]]")
    if any(rank < 0 for group in groups for rank in group):
        raise StrategyError(f"{origin}: has a negative rank")
    return list(groups)

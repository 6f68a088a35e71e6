"""Indexes many remote files with few requests: reads the headers of some, and compares the others with them.

Ranks of a pipeline stage have files of one size with the same headers; other stages' files may have the same size. So
files of one size are examined in waves: read the headers of one, compare the others with it, read the headers of some
of those that differ, and so on. Each wave handles its files concurrently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from msgspec.structs import replace

from reshard.core.errors import InputError
from reshard.core.files.ckpt import first_name
from reshard.core.files.model import FileIndex
from reshard.core.files.remote_index.templates import Template, read_template
from reshard.core.files.remote_reads import read_coalesced
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import check_not_stopped, ending_pauses
from reshard.core.storage.input_errors import storage_errors_as_input
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location

_REMOTE_FILES_AT_ONCE = 16
"""Each mostly waits for its requests."""
_START_BYTES = 256
"""Usually include the first parameter's name."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@contextmanager
def workers_on(locations: Iterable[Location], workers: int) -> Iterator["Workers"]:
    """Provide as many workers as files at these locations can use."""
    are_near = any(location.store.is_near for location in locations)
    at_once = workers if are_near else max(workers, _REMOTE_FILES_AT_ONCE)
    with ThreadPoolExecutor(at_once) as pool, ending_pauses():
        yield Workers(pool, are_near=are_near)


class Workers:
    """Threads that apply a function to many files; `are_near`: to look at these costs no requests."""

    def __init__(self, pool: ThreadPoolExecutor, *, are_near: bool = False) -> None:
        self._pool = pool
        self.are_near = are_near

    def outcomes(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer | InputError]:
        """Return per item, in order, the result of `work` or the error that makes the item unusable.

        Raises:
            StorageError: a transient failure of the storage; cancels the remaining work.
        """

        def outcome(item: Item) -> Answer | InputError:
            check_not_stopped()
            try:
                with storage_errors_as_input():
                    return work(item)
            except InputError as error:
                return error

        futures = [self._pool.submit(copy_context().run, outcome, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise


class Indexed(Record):
    """The index of a file; `assumed` if not all of its headers were read."""

    index: FileIndex
    assumed: bool = False


class _Group(Record):
    """Files of one size that may have the same headers.

    Attributes:
        name: name of their first parameter; None while unknown.
        walks: number of files, the first ones, whose headers the next wave reads.
    """

    ranks: Sequence[int]
    name: bytes | None = None
    walks: int = 1


def read_indexes(
    files: Mapping[int, SourceFile], threads: Workers, *, assume_alike: bool
) -> dict[int, Indexed | InputError]:
    """Index the remote file of each rank, or return the error that makes it unusable.

    `assume_alike`: only sample files that agree with another one in the samples.

    Raises:
        StorageError: a transient failure of the storage.
    """
    return _Waves(files, threads).done(assume_alike)


class _Waves:
    def __init__(self, files: Mapping[int, SourceFile], threads: Workers) -> None:
        self._files = files
        self._threads = threads
        self._found: dict[int, Indexed | InputError] = {}
        self._templates: dict[int, Template] = {}

    def done(self, assume_alike: bool) -> dict[int, Indexed | InputError]:
        by_size: dict[int, list[int]] = {}
        for rank, file in self._files.items():
            by_size.setdefault(file.size_bytes, []).append(rank)
        groups = [_Group(ranks, walks=1 if assume_alike else len(ranks)) for ranks in by_size.values()]
        while groups:
            self._walk([rank for group in groups for rank in group.ranks[: group.walks]])
            groups = self._left(groups)
        return self._found

    def _walk(self, ranks: Sequence[int]) -> None:
        outcomes = self._threads.outcomes(lambda rank: read_template(self._files[rank]), ranks)
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, InputError):
                self._found[rank] = outcome
                continue
            index, template = outcome
            self._found[rank] = Indexed(index)
            if template is not None:
                self._templates[rank] = template

    def _left(self, groups: Sequence[_Group]) -> list[_Group]:
        """Compare the rest of each group with its files whose headers were just read; return those that differ."""
        left: list[_Group] = []
        compared: list[tuple[int, int]] = []
        for number, group in enumerate(groups):
            walked, others = group.ranks[: group.walks], group.ranks[group.walks :]
            if any(rank in self._templates for rank in walked):
                compared += [(number, rank) for rank in others]
            elif others:
                # files unsuitable as templates come in groups; damaged ones may be single
                all_damaged = all(isinstance(self._found[rank], InputError) for rank in walked)
                left.append(replace(group, ranks=others, walks=2 * group.walks if all_damaged else len(others)))
        outcomes = self._threads.outcomes(lambda pair: self._compare(groups[pair[0]], pair[1]), compared)
        unlike: dict[tuple[int, bytes], list[int]] = {}
        for (number, rank), outcome in zip(compared, outcomes, strict=True):
            if isinstance(outcome, bytes):
                unlike.setdefault((number, outcome), []).append(rank)
            else:
                self._found[rank] = outcome
        for (number, name), ranks in unlike.items():
            group = groups[number]
            left.append(_Group(ranks, name, walks=2 * group.walks if name == group.name else 1))
        return left

    def _compare(self, group: _Group, rank: int) -> Indexed | bytes:
        """Return the index of a file that matches one of its group's templates, else its first parameter's name."""
        file = self._files[rank]
        templates = [self._templates[other] for other in group.ranks[: group.walks] if other in self._templates]
        start = (0, min(_START_BYTES, file.size_bytes))
        first, *samples = read_coalesced(file, [start, *(place for t in templates for place in t.sampled)])
        for template in templates:
            count = len(template.sampled)
            if template.fits(samples[:count]):
                return Indexed(template.index, assumed=True)
            del samples[:count]
        return first_name(first)

"""The indexes of many remote files, with few requests: the headers of some are read, the others are compared with them.

Ranks of a pipeline stage have files of one size with the same headers; other stages' files may have the same size. So
those of one size are judged in waves: the headers of one are read, the others are compared with it, of those that
differ the headers of some are read, and so on. What a wave does with files it does with all at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TypeVar

from reshard.core.checkpoint.catalog.survey import storage_errors_as_input
from reshard.core.checkpoint.formats.any_format import read_template
from reshard.core.checkpoint.formats.ckpt import first_name
from reshard.core.checkpoint.model import FileIndex
from reshard.core.checkpoint.remote_index.templates import Template
from reshard.core.checkpoint.remote_reads import read_coalesced
from reshard.core.errors import InputError
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location

_REMOTE_FILES_AT_ONCE = 16
"""Each waits for its requests most of the time."""
_START_BYTES = 256
"""Tell the first parameter's name, as a rule."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@contextmanager
def workers_on(locations: Iterable[Location], workers: int) -> Iterator["Workers"]:
    """As many workers as files at these places can use."""
    remote = not any(location.is_local for location in locations)
    with ThreadPoolExecutor(max(workers, _REMOTE_FILES_AT_ONCE) if remote else workers) as pool:
        yield Workers(pool)


class Workers:
    """Threads that do the same with each of many files."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def outcomes(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer | InputError]:
        """What `work` gives for each item, in order, or why it cannot be used.

        Raises:
            StorageError: a transient failure: the others need not be tried.
        """

        def outcome(item: Item) -> Answer | InputError:
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


@dataclass(frozen=True)
class Indexed:
    """What a file holds; `assumed` if not all of its headers were read."""

    index: FileIndex
    assumed: bool = False


@dataclass(frozen=True)
class _Group:
    """Files of one size that may have the same headers.

    Attributes:
        ranks: whose.
        name: what their first parameters are called; None while that is not known.
        walks: of how many, the first, the headers are read in the next wave.
    """

    ranks: Sequence[int]
    name: bytes | None = None
    walks: int = 1


def read_indexes(
    files: Mapping[int, SourceFile], threads: Workers, *, assume_alike: bool
) -> dict[int, Indexed | InputError]:
    """What each rank's remote file holds, or why it cannot be used.

    `assume_alike`: a file need not be read more of than samples, if in these it is like another.

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
        """Compares the rest of each group with those of it whose headers were just read; what is unlike them."""
        left: list[_Group] = []
        compared: list[tuple[int, int]] = []
        for number, group in enumerate(groups):
            walked, others = group.ranks[: group.walks], group.ranks[group.walks :]
            if any(rank in self._templates for rank in walked):
                compared += [(number, rank) for rank in others]
            elif others:
                # files that are no templates come together, damaged ones need not
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
        """What a file holds if it is like one of its group whose headers were read, else its first parameter's name."""
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

"""A checkpoint opened for reading tensors one by one: whole ones, and each rank's shards.

    with open_checkpoint(request) as checkpoint:
        checkpoint["w"][0:10]

Opening reads headers, and the samples by which a strategy is checked. The whole tensors are those of the plan of a
conversion to one rank; a rank's shards are what its file holds.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context, copy_context
from itertools import islice
from types import TracebackType
from typing import Self

import numpy as np

from reshard.core.conversion.lazy_tensors import Tensor
from reshard.core.conversion.plan_notes import INTEGRATED, differing_outside, source_notes
from reshard.core.conversion.planning import check_any_left, check_one_step
from reshard.core.errors import CatalogError, InputError, UnknownNameError
from reshard.core.files.model import TensorEntry
from reshard.core.plan.model import ParameterPlan, RankPlan, ReadItem, SourceTensor
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.resources import resources_of
from reshard.core.request.source import OpenRequest
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.wording import counted, html_text, listed, ranks_text, shortened, utf8_text
from reshard.core.source.opening import Source, open_source
from reshard.core.source.outside_samples import differing_samples
from reshard.core.source.whole_tensors import plan_wholes
from reshard.core.tensor.slices import TensorSlice
from reshard.core.text.printing import printable
from reshard.core.transfer.file_blocks import expected_entries
from reshard.core.transfer.parameter_reader import ParameterReader

_SHOWN_NAMES = 3
_SHOWN_ROWS = 10


def open_checkpoint(request: OpenRequest, resolvers: Mapping[str, Resolver] | None = None) -> "Checkpoint":
    """Open a checkpoint.

    Args:
        request: which one, by which strategy.
        resolvers: look up names of storages and keys, by kind (the part before the colon), beyond `env` and `file`.

    Raises:
        InputError: options are wrong, or the checkpoint cannot be used.
        StorageError: it cannot be read.
    """
    with resources_of(request, resolvers):
        note = current_progress().note
        source = with_retries(lambda: open_source(request), note)
        return opened_source(source, request.memory_limit_bytes)


def opened_source(source: Source, memory_limit_bytes: int) -> "Checkpoint":
    """Open the whole tensors of a source; its storages and keys have to be in force.

    Raises: as `open_checkpoint`.
    """
    note = current_progress().note
    plan = with_retries(lambda: _plan(source), note)
    notes = with_retries(lambda: tuple(map(utf8_text, _notes(plan))), note)
    return Checkpoint(plan, notes, ParameterReader(plan, memory_limit_bytes), copy_context())


def _plan(source: Source) -> ConversionPlan:
    check_any_left(source.catalog)
    plan = plan_wholes(source)
    check_one_step(plan)
    return plan


def _notes(plan: ConversionPlan) -> Iterator[str]:
    """What was chosen and found, and which of several values are read, in sentences; reads samples."""
    match = plan.match
    yield from source_notes(plan)
    if match.integrated:
        yield INTEGRATED
    if match.shared:
        yield f"held by several pipeline stages; the first one's is read: {listed(list(match.shared))}"
    outside = [each.name for each in match.passed_through if len(each.owners) > 1]
    if outside:
        yield f"not in any strategy; the lowest rank's is read: {listed(outside)}"
    differing = [*differing_outside(plan), *differing_samples(plan.inputs.catalog, match.passed_through)]
    if differing:
        yield (
            f"not in any strategy, but different on different ranks: {listed(differing)}. If they are sharded, they "
            "are missing in the strategy"
        )


class Tensors(Mapping[str, Tensor]):
    """Tensors by name, in the order of the files."""

    def __init__(self, tensors: Iterable[Tensor], title: str) -> None:
        """`title` names them in messages."""
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._title = title

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of a name.

        Raises:
            UnknownNameError: there is none; it is a KeyError as well.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            meant = did_you_mean(str(name), self._tensors)
            raise UnknownNameError(f"{self._title}: has no tensor {shortened(repr(name))}{meant}")
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        shown = [repr(shortened(name)) for name in islice(self, _SHOWN_NAMES)]
        more = f" and {len(self) - len(shown)} more" if len(self) > len(shown) else ""
        count = counted(len(self), "tensor")
        return f"<{type(self).__name__} {printable(self._title)}: {count}: {listed(shown)}{more}>"

    def _repr_html_(self) -> str:
        rows = [_table_row("td", *tensor.facts) for tensor in islice(self.values(), _SHOWN_ROWS)]
        table = "".join((_table_row("th", "tensor", "dtype", "shape", "size"), *rows))
        more = f"<p>and {len(self) - len(rows)} more</p>" if len(self) > len(rows) else ""
        return f"<p>{html_text(self._title)}: {counted(len(self), 'tensor')}</p><table>{table}</table>{more}"


def _table_row(cell: str, *texts: str) -> str:
    return f"<tr>{''.join(f'<{cell}>{html_text(text)}</{cell}>' for text in texts)}</tr>"


class RankTensors(Tensors):
    """What one rank's file holds: the shards of its tensors, by name.

    Attributes:
        rank: the rank.
        file: its file.
    """

    def __init__(self, tensors: Iterable[Tensor], title: str, rank: int, file: str) -> None:
        super().__init__(tensors, title)
        self.rank = rank
        self.file = file


class Checkpoint(Tensors):
    """A checkpoint open for reading: a read-only mapping of the names of its whole tensors.

    ::

        with reshard.open("checkpoint", strategy="strategy") as checkpoint:
            checkpoint["embedding.weight"][0:10]      # ten rows, from whichever files hold them
            checkpoint.rank(3)["embedding.weight"]    # the shard of it in rank 3's file

    Threads may share it. It keeps files open, and is usable without `with` as well.

    Attributes:
        notes: what was chosen and found when it was opened, in sentences.
    """

    def __init__(self, plan: ConversionPlan, notes: tuple[str, ...], reader: ParameterReader, context: Context) -> None:
        """`plan` is that of its whole tensors; `context` holds the storages and keys of its files."""
        self.notes = notes
        self._plan = plan
        self._reader = reader
        self._context = context
        catalog = plan.inputs.catalog
        super().__init__(self._tensors_of(plan.rank_plan(0), catalog.unconvertible), catalog.url)

    @property
    def step(self) -> str | None:
        """Epoch and step, such as `10_5`, or an iteration; None if it has none."""
        return self._plan.inputs.catalog.step

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a file of their own; none where files hold whole tensors, or say their own shards."""
        inputs = self._plan.inputs
        return () if inputs.counts_source_files else tuple(inputs.catalog.records)

    def rank(self, rank: int) -> RankTensors:
        """Return what a rank's file holds: its shards, or its whole tensors, as they were saved.

        Raises:
            CatalogError: the rank's file cannot be used.
            InputError: the checkpoint has no such rank, or its files are not those of ranks.
        """
        catalog = self._plan.inputs.catalog
        if self._plan.inputs.counts_source_files:
            raise InputError(
                f"{catalog.url}: its files are not one for each rank: read its whole tensors, or, sharded by a "
                "strategy, load a rank's with reshard.plan_load"
            )
        if rank in catalog.lost:
            raise CatalogError(f"{catalog.url}: rank_{rank} has no usable file: {catalog.lost[rank]}")
        if rank not in catalog.records:
            raise InputError(f"{catalog.url}: has ranks {ranks_text(self.ranks)}, not {rank}")
        record = catalog.records[rank]
        plan = RankPlan(rank, tuple(_shard_plan(rank, entry) for entry in record.index.entries.values()), None)
        return RankTensors(self._tensors_of(plan, {}), f"rank_{rank} of {catalog.url}", rank, record.location)

    def close(self) -> None:
        """Close the files; reading is refused from now on."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, plan: ParameterPlan) -> np.ndarray:
        # of each thread its own copy: a context can be entered once at a time
        return self._context.copy().run(self._reader.read, plan)

    def _tensors_of(self, plan: RankPlan, unreadable: Mapping[str, str]) -> Iterator[Tensor]:
        url = self._plan.inputs.catalog.url
        for entry, parameter in zip(expected_entries(self._plan, plan), plan.parameters, strict=True):
            why = unreadable.get(entry.name)
            refusal = f"{url}: tensor {entry.name!r} cannot be read as a whole: {why}" if why else ""
            yield Tensor(entry, parameter, self._read, refusal)


def _shard_plan(rank: int, entry: TensorEntry) -> ParameterPlan:
    """The plan of what a rank's file holds of a parameter."""
    shard = TensorSlice.whole(entry.shape)
    source = SourceTensor(entry.name, entry.dtype, entry.shape, ())
    return ParameterPlan(entry.name, entry.dtype, shard, (ReadItem(rank, shard, shard),), (source,))

"""Loads target ranks' parameters straight from the source: the arrays that `convert` would write, without files.

For programs that load a model, such as servers: each process gets the parameters of its own rank, resharded, selected,
renamed and cast as it needs them.

    plan_load(source, source_strategy, target_strategy).load(rank)

Options have a conversion's names and error messages; those about writing a target are refused.
"""

import math
import warnings
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import Context, copy_context
from itertools import islice

import numpy as np

from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError
from reshard.core.files.model import OutputEntry
from reshard.core.files.numpy_values import Value
from reshard.core.layouts.all_options import LAYOUT_OPTIONS
from reshard.core.layouts.options import own_names
from reshard.core.options.validation import build_options
from reshard.core.plan.adapter import beside_adapter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.planning import PlanRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.wording import listed
from reshard.core.text.printing import printable
from reshard.core.transfer.fetches import RankBlock, change_of
from reshard.core.transfer.file_blocks import expected_entries, transposed_parameters
from reshard.core.transfer.overflows import OverflowTally, overflow_notes
from reshard.core.transfer.parameter_reader import block_reader, open_sources, parts_of, value_of
from reshard.core.transfer.reader import BlockReader
from reshard.core.transfer.scales import ScaleReader
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles

_NamedValue = tuple[str, Value]
_ABOUT_WRITING = frozenset(
    (
        *("target", "format", "layout", "verify", "sha256", "sign", "sign_passphrase", "sign_certificate"),
        *("encrypt_key", "encrypt_mode", "write_crc"),
        *("remove_redundancy", "replicas", "dask_scheduler", "concurrency_limit", "ranks", "overwrite"),
        *own_names(LAYOUT_OPTIONS),
    )
)
_MAX_BATCH_BYTES = 16 * 2**20
"""Parameters are read together up to this size: small ones lie side by side in files."""
_MAX_LISTED = 8


def plan_load(
    source: str,
    source_strategy: str | None = None,
    target_strategy: str | None = None,
    *,
    resolvers: Mapping[str, Resolver] | None = None,
    **options: object,
) -> "LoadPlan":
    """Plan the loading of any number of target ranks with one look at the source.

    Args:
        source: the checkpoint, as for a conversion.
        source_strategy: how it is cut; None or empty: not at all.
        target_strategy: how the target is cut; None or empty: whole.
        resolvers: look up names of storages and keys, by kind (the part before the colon), beyond `env` and `file`.
        options: of a conversion (`memory_limit`, `step`, `cast`, `source_storage`, `decrypt_key` …).

    Raises:
        InputError: options are wrong, or the source does not fit them.
    """
    wrong = [name for name in options if name in _ABOUT_WRITING]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: only for writing a target, and loading writes none: leave it out")
    given = {"source": source, "source_strategy": source_strategy or "", "target_strategy": target_strategy or ""}
    # .ckpt holds whatever can be loaded; other formats do not
    request = build_options(PlanRequest, format="ckpt", **given, **options)
    with resources_of(request, resolvers):
        plan = with_retries(lambda: make_plan(request), current_progress().note)
        return LoadPlan(request, plan, copy_context())


class LoadPlan:
    """A planned source whose target ranks can be loaded; thread-safe."""

    def __init__(self, request: ConversionRequest, plan: ConversionPlan, context: Context) -> None:
        """`context` holds the storages and keys that the request names.

        Raises:
            PlanError: an adapter takes more memory than there may be.
        """
        self._request = request
        self._plan = plan
        self._limit_bytes = request.memory_limit_bytes
        if plan.inputs.adapter:
            _, self._limit_bytes = beside_adapter(plan.inputs.adapter, 1, self._limit_bytes)
        self._context = context

    @property
    def ranks(self) -> range:
        """The target's ranks."""
        return self._plan.target_ranks

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen, in sentences, as in a conversion's report."""
        return plan_notes(self._plan)

    def names(self, rank: int) -> tuple[str, ...]:
        """The parameters of a target rank, in the order of its file."""
        return tuple(parameter.name for parameter in self._plan.rank_plan(rank).parameters)

    def load(self, rank: int, names: Collection[str] | None = None) -> Iterator[tuple[str, Value]]:
        """Load a target rank's parameters, or those of these `names`, in the order of the rank's file.

        `reshard.core.files.numpy_values` lists the arrays of each dtype: bfloat16 is `ml_dtypes.bfloat16`, a text
        is a `str`. Arrays belong to the caller, are read as they are requested, and take at most `memory_limit` beyond
        the last one; after it, the source's files are checked for changes.

        Raises:
            InputError: the target has no such rank, or the rank no parameter of one of these names.
            CatalogError: a source file changed; arrays may be from before or after.
            CastError: values became infinite when cast, and that was not allowed.
        """
        parameters = self._plan.rank_plan(rank).parameters
        unknown = sorted(set(names or ()) - {parameter.name for parameter in parameters})
        if unknown:
            names_text = listed([repr(name) for name in unknown], _MAX_LISTED)
            source = printable(self._request.source)
            raise InputError(f"{source}: rank_{rank} of the target has no parameter {names_text}")
        return self._in_context(_RankLoad(self._plan, rank, names, self._limit_bytes).values())

    def _in_context(self, values: Generator[_NamedValue, None, None]) -> Iterator[_NamedValue]:
        # a generator runs in its caller's context, which may lack these storages and keys
        context = self._context.copy()
        try:
            while item := context.run(lambda: list(islice(values, 1))):
                yield item.pop()  # keeps no reference to the array
        finally:
            context.run(values.close)


class _Loaded(Record):
    """A parameter being loaded, and the bytes of its contents; empty for a text."""

    entry: OutputEntry
    buffer: np.ndarray

    @property
    def named_value(self) -> _NamedValue:
        return self.entry.name, value_of(self.entry, self.buffer)


class _RankLoad:
    """The loading of one rank."""

    def __init__(self, plan: ConversionPlan, rank: int, names: Collection[str] | None, limit_bytes: int) -> None:
        rank_plan = plan.rank_plan(rank)
        chosen = [parameter for parameter in rank_plan.parameters if names is None or parameter.name in names]
        self._plan = plan
        self._parameters = {parameter.name: parameter for parameter in chosen}
        self._transposed = transposed_parameters(chosen)
        self._entries = [entry for entry in expected_entries(plan, rank_plan) if entry.name in self._parameters]
        self._tally = OverflowTally(plan, self._parameters)
        self._limit_bytes = limit_bytes

    def values(self) -> Generator[_NamedValue, None, None]:
        """The values in order; the source is closed at the end, or when the generator is closed."""
        with closing(self._open_sources()) as sources:
            reader = self._block_reader(sources)
            for entries in self._batches():
                loaded = deque(_Loaded(entry, _buffer_of(entry)) for entry in entries)
                self._fill(reader, loaded)
                while loaded:
                    yield loaded.popleft().named_value
            with_retries(sources.check_unchanged, current_progress().note)
        for note in overflow_notes({name: overflow.count for name, overflow in self._tally.by_name.items()}):
            warnings.warn(note, stacklevel=3)

    def _open_sources(self) -> LocalFiles | RemoteFiles:
        ranks = (read.source_rank for parameter in self._parameters.values() for read in parameter.reads)
        return open_sources(self._plan, ranks)

    def _block_reader(self, sources: LocalFiles | RemoteFiles) -> BlockReader:
        factors_of = ScaleReader(self._plan).factors
        changes = change_of(self._plan)
        return block_reader(self._plan, self._parameters, sources, self._limit_bytes, factors_of, changes)

    def _batches(self) -> Iterator[list[OutputEntry]]:
        """The parameters in order, small ones together."""
        most_bytes = min(_MAX_BATCH_BYTES, self._limit_bytes // 4)
        batch: list[OutputEntry] = []
        batch_bytes = 0
        for entry in self._entries:
            if batch and batch_bytes + entry.size_bytes > most_bytes:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(entry)
            batch_bytes += entry.size_bytes
        if batch:
            yield batch

    def _fill(self, reader: BlockReader, loaded: Iterable[_Loaded]) -> None:
        """Read the contents of parameters into their buffers."""
        batch: list[RankBlock] = []
        for each in loaded:
            entry = each.entry
            if entry.literal:
                each.buffer[:] = np.frombuffer(entry.literal, np.uint8)
                continue
            # a transposed one at once: each part would need all of the source
            most = math.prod(entry.shape) if entry.name in self._transposed else None
            parts = list(parts_of(self._parameters, entry.name, each.buffer, most))
            if len(parts) == 1:
                batch += parts
            else:
                for part in parts:
                    self._fill_blocks(reader, [part])
        self._fill_blocks(reader, [block for block in batch if block.buffer.size])
        for each in loaded:
            self._tally.check(each.entry.name)

    def _fill_blocks(self, reader: BlockReader, blocks: Sequence[RankBlock]) -> None:
        def fill() -> None:
            for block in blocks:
                block.overflows.clear()  # of a failed attempt
            reader.fill(blocks)

        with_retries(fill, current_progress().note)
        for block in blocks:
            self._tally.add(block.overflows)


def _buffer_of(entry: OutputEntry) -> np.ndarray:
    return np.empty(0 if entry.text is not None else entry.size_bytes, np.uint8)

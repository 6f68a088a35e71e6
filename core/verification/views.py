"""A checkpoint as one side of a comparison: its whole tensors, and what its files say is in them.

A side is planned as the source of a conversion to whole tensors, which nobody carries out: so everything that can be
converted can be compared, and what is no whole checkpoint is refused. Then its files are read, every copy of every
slice, and fingerprinted where they lie.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.checkpoint.content_blocks import worker_ranges
from reshard.core.errors import InputError, PlanError
from reshard.core.plan.matching import holding_file
from reshard.core.plan.model import ParameterPlan, PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.plan.recipes import excluded_names
from reshard.core.plan.unified_source import strategy_of
from reshard.core.request.changes import Selection
from reshard.core.request.changes_file import declared_changes
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import advancing, current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import printable, utf8_text
from reshard.core.source.opening import catalog_source, load_strategy
from reshard.core.source.strategy_warnings import asked_integrated_save, integrated_save_warnings
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import DType, dtype_from_record
from reshard.core.tensor.fingerprint import ELEMENT_BYTES, box_fingerprint, combined, fingerprint_text
from reshard.core.tensor.numpy_types import cast_bits
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes
from reshard.core.verification.accumulator import CheckpointFingerprints, Contents
from reshard.core.verification.fingerprint_file import (
    ModelFingerprint,
    ParameterFingerprint,
    fingerprint_of_all,
    read_model_fingerprint,
)
from reshard.core.verification.shard_fingerprints import BLOCK_BYTES, sum_contributions
from reshard.core.verification.whole_reader import WholeReader

WORKER_BYTES = 32 * 2**20
"""What the buffers of one worker take at most: of a remote file, half of it is under way."""
_REMOTE_FILES_AT_ONCE = 4
_SHARE_BYTES = 64 * 2**20
"""Of a local file, at least, that one worker reads in one go."""
_MOST_SHARES = 4
"""Of one file, for each worker: few, and yet enough for all to end at about the same time."""


@dataclass(frozen=True)
class Tensor:
    """A whole tensor, by what the headers of files say."""

    dtype: DType
    shape: Shape
    size_bytes: int


class Side(Protocol):
    """One side of a comparison: a checkpoint, or what was told of one."""

    is_readable: bool
    """Whether there are files to read."""

    @property
    def url(self) -> str:
        """The checkpoint, or the document, as it was named."""

    @property
    def step(self) -> str | None:
        """The step chosen; None if the names of the checkpoint's files carry none."""

    @property
    def ranks(self) -> int:
        """How many the checkpoint has."""

    @property
    def stages(self) -> int:
        """How many pipeline stages its ranks are in."""

    @property
    def ranks_of_stage(self) -> int:
        """How many ranks each of them has; of a unified one 1."""

    @property
    def is_unified(self) -> bool:
        """Whether these are files of whole tensors."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen, in sentences."""

    @property
    def unused(self) -> frozenset[str]:
        """Patterns of the selection that no parameter's name fits."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The parameters that were asked for, by name.

        Raises:
            PlanError: one has elements that cannot be compared.
        """

    def stored_bytes(self, names: Collection[str]) -> int:
        """How much there is to read of parameters, all copies of them."""

    def contents(self, names: Collection[str], casts: Mapping[str, DType] | None = None) -> Contents:
        """Reads every copy of parameters; those in `casts` are cast to other floating-point types first.

        Raises:
            CatalogError: a file is not the one that was catalogued.
            CheckpointError: one ends too early.
            StorageError: one cannot be read.
        """


def open_side(request: ConversionRequest, resolvers: Mapping[str, Resolver] | None = None) -> "CheckpointSide":
    """The checkpoint that is the source of a request; only headers and samples are read.

    Raises:
        InputError: it is no whole checkpoint, its strategy does not fit, or a name cannot be resolved.
        StorageError: it cannot be read.
    """
    with resources_of(request, resolvers):
        plan = with_retries(lambda: _plan(request), current_progress().note)
        return CheckpointSide(request, plan, copy_context())


def open_document(request: ConversionRequest, resolvers: Mapping[str, Resolver] | None = None) -> "DocumentSide":
    """The document of fingerprints that is the source of a request.

    Raises:
        InputError: it is none, or a strategy is named for it.
        StorageError: it cannot be read.
    """
    if request.source_strategy or request.step or request.decrypt_key:
        raise InputError(
            f"{printable(request.source)}: fingerprints have no strategy, no other steps and no key: name none for them"
        )
    with resources_of(request, resolvers):
        return DocumentSide(request, read_model_fingerprint(request.source))


def _plan(request: ConversionRequest) -> ConversionPlan:
    # what is chosen of it does not matter to what is in it
    request = request.model_copy(update={"select": Selection.ALL, "include": [], "exclude": []})
    given = load_strategy(request.source_strategy, request.source)
    catalog = catalog_source(request, given, None)
    strategy = strategy_of(catalog) or given
    asked = asked_integrated_save(request)
    plan = build_plan(
        PlanInputs(
            catalog=catalog,
            source_strategy=strategy,
            target_strategy=None,
            format=catalog.format,
            integrated_save=asked,
        )
    )
    if strategy is not None:
        integrated_save_warnings(catalog, strategy, plan.match, asked)
    return plan


class CheckpointSide:
    """A checkpoint whose files can be read, with the keys and storages that were in force when it was opened."""

    is_readable = True

    def __init__(self, request: ConversionRequest, plan: ConversionPlan, context: Context) -> None:
        self._request = request
        self._plan = plan
        self._context = context

    @property
    def url(self) -> str:
        """The checkpoint, as it was named."""
        return self._plan.inputs.catalog.url

    @property
    def step(self) -> str | None:
        """The step chosen; None if the names of its files carry none."""
        return self._plan.inputs.catalog.step

    @property
    def ranks(self) -> int:
        """How many it has."""
        return self._plan.inputs.catalog.world_size

    @property
    def stages(self) -> int:
        """How many pipeline stages its ranks are in."""
        strategy = self._plan.inputs.source_strategy
        return len(strategy.stages) if strategy else 1

    @property
    def ranks_of_stage(self) -> int:
        """How many ranks each of them has; of a unified one 1."""
        return 1 if self.is_unified else self.ranks // self.stages

    @property
    def is_unified(self) -> bool:
        """Whether these are files of whole tensors."""
        return self._plan.inputs.catalog.unified

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen, in sentences."""
        return tuple(map(utf8_text, self._plan.inputs.catalog.notes))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters that were asked for, by name, in the order of the files.

        Raises:
            PlanError: one has elements that cannot be compared.
        """
        plans = self._whole_plans
        chosen = _chosen(self._request, plans)[0]
        for name in chosen:
            if plans[name].dtype.itemsize not in ELEMENT_BYTES:
                raise PlanError(
                    f"{self.url}: parameter {name!r} ({holding_file(self._plan.inputs.catalog, name)}) has dtype "
                    f"{plans[name].dtype}, which reshard cannot compare; leave it out: --exclude {name}"
                )
        return {name: Tensor(plans[name].dtype, plans[name].box.shape, plans[name].size_bytes) for name in chosen}

    @property
    def unused(self) -> frozenset[str]:
        """Patterns of the selection that no parameter's name fits."""
        return _chosen(self._request, self._whole_plans)[1]

    @cached_property
    def _whole_plans(self) -> dict[str, ParameterPlan]:
        return {parameter.name: parameter for parameter in self._plan.rank_plan(0).parameters}

    def stored_bytes(self, names: Collection[str]) -> int:
        """How much there is to read of parameters, all copies of them."""
        wanted = frozenset(names)
        sizes: dict[int, int] = {}
        total = 0
        for record in self._plan.inputs.catalog.records.values():
            size = sizes.get(id(record.index))
            if size is None:
                entries = record.index.entries.values()
                size = sizes[id(record.index)] = sum(each.size_bytes for each in entries if each.name in wanted)
            total += size
        return total

    def contents(self, names: Collection[str], casts: Mapping[str, DType] | None = None) -> Contents:
        """Reads every copy of parameters; those in `casts` are cast to other floating-point types first.

        Raises:
            CatalogError: a file is not the one that was catalogued.
            CheckpointError: one ends too early.
            StorageError: one cannot be read.
        """
        progress, stop = current_progress(), threading.Event()
        advance = advancing(progress, stop)
        casts = casts or {}
        accumulator = CheckpointFingerprints(self._plan, frozenset(names), casts)

        def read(work: tuple[CatalogRecord, int, int]) -> None:
            record, number, count = work
            contributions = accumulator.contributions(record)
            ranges = worker_ranges([record.index.entries[name] for name in contributions], number, count)
            sums = with_retries(lambda: sum_contributions(record, contributions, advance, ranges), progress.note)
            accumulator.add(record.rank, sums)

        records = self._plan.inputs.catalog.records.values()
        are_local = all(parse_url(record.location).is_local for record in records)
        workers = self.workers if are_local else min(self.workers, _REMOTE_FILES_AT_ONCE)
        # several may work on a large file at once; a remote one is asked for what is ahead by one
        counts = {record.rank: self._shares_of(record, workers) if are_local else 1 for record in records}
        work = ((record, number, counts[record.rank]) for record in records for number in range(counts[record.rank]))
        self._context.copy().run(in_threads, read, work, workers, stop)
        contents = accumulator.contents()
        put_together = {
            name: (self._assembled(name, casts.get(name)),)
            for name, found in contents.fingerprints.items()
            if not found
        }
        return replace(contents, fingerprints={**contents.fingerprints, **put_together})

    @staticmethod
    def _shares_of(record: CatalogRecord, workers: int) -> int:
        """How many shares a local file is read in."""
        return max(1, min(_MOST_SHARES * workers, record.size_bytes // _SHARE_BYTES))

    def _assembled(self, name: str, cast: DType | None) -> int:
        """The fingerprint of a parameter of which each stage has a part only."""
        tensor = self.tensors[name]
        with self.reading(name) as read:
            boxes = contiguous_boxes(tensor.shape, 0, math.prod(tensor.shape), BLOCK_BYTES // tensor.dtype.itemsize)
            return combined(_box_part(read(box), box, tensor.dtype, cast) for box in boxes)

    @property
    def workers(self) -> int:
        """How many threads may work on it at once."""
        return max(1, min(self._request.worker_count, self._request.memory_limit_bytes // WORKER_BYTES))

    def text(self, name: str) -> str | None:
        """The value of a parameter that is a text; None of all others."""
        read = self._whole_plans[name].reads[0]
        return self._plan.source_entry(read.source_rank, name).text

    @contextmanager
    def reading(
        self, name: str, advance: Callable[[int], None] = lambda _: None
    ) -> Iterator[Callable[[TensorSlice], np.ndarray]]:
        """Reads boxes of a whole parameter that are contiguous in it: their elements, as unsigned integers.

        What was read is good until the next box is; a box has at most as many bytes as `BLOCK_BYTES`.
        """
        plan = self._whole_plans[name]
        context = self._context.copy()
        reader = context.run(WholeReader, self._plan, plan)

        def read(box: TensorSlice) -> np.ndarray:
            block = context.run(reader.read, box)
            advance(block.nbytes)
            return block.view(f"<u{plan.dtype.itemsize}").reshape(box.shape)

        try:
            yield read
        finally:
            reader.close()

    def document(self, contents: Contents) -> ModelFingerprint:
        """What was read of all its parameters, as a document."""
        parameters = tuple(
            ParameterFingerprint(
                name=name,
                dtype=tensor.dtype.name,
                shape=tensor.shape,
                fingerprint=fingerprint_text(contents.fingerprints[name][0]),
                others=tuple(map(fingerprint_text, contents.fingerprints[name][1:])),
            )
            for name, tensor in sorted(self.tensors.items())
        )
        return ModelFingerprint(
            checkpoint=self.url,
            step=self.step,
            ranks=self.ranks,
            stages=self.stages,
            unified=self.is_unified,
            size_bytes=sum(tensor.size_bytes for tensor in self.tensors.values()),
            fingerprint=fingerprint_of_all(parameters),
            parameters=parameters,
            differing=contents.differing,
            notes=self.notes,
        )


class DocumentSide:
    """What was told of a checkpoint that is not here."""

    is_readable = False

    def __init__(self, request: ConversionRequest, document: ModelFingerprint) -> None:
        self._document = document
        self.url = request.source
        self.step = document.step
        self.ranks = document.ranks
        self.stages = document.stages
        self.ranks_of_stage = 1 if document.unified else document.ranks // document.stages
        self.notes = document.notes
        self.is_unified = document.unified
        parameters = {each.name: each for each in document.parameters}
        chosen, self.unused = _chosen(request, parameters)
        self._parameters = {name: parameters[name] for name in chosen}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:  # noqa: D102
        tensors = {}
        for name, each in self._parameters.items():
            dtype = dtype_from_record(each.dtype)
            tensors[name] = Tensor(dtype, each.shape, math.prod(each.shape) * dtype.itemsize)
        return tensors

    def stored_bytes(self, _: Collection[str]) -> int:  # noqa: D102
        return 0

    def contents(self, names: Collection[str], casts: Mapping[str, DType] | None = None) -> Contents:  # noqa: D102
        if casts:
            raise ValueError("fingerprints cannot be cast")
        told = {name: self._parameters[name] for name in names}
        fingerprints = {
            name: tuple(int(each, 16) for each in (known.fingerprint, *known.others)) for name, known in told.items()
        }
        return Contents(fingerprints, self._document.differing)


def _chosen(request: ConversionRequest, names: Collection[str]) -> tuple[list[str], frozenset[str]]:
    """The names that a request's selection takes, in their order, and those of its patterns that none fits."""
    fitting: set[object] = set()
    excluded = excluded_names(list(names), declared_changes(request), fitting)
    patterns = {("include", pattern) for pattern in request.include} | {("exclude", each) for each in request.exclude}
    unused = frozenset(f"--{option} {pattern}" for option, pattern in patterns if (option, pattern) not in fitting)
    return [name for name in names if name not in excluded], unused


def _box_part(values: np.ndarray, box: TensorSlice, dtype: DType, cast: DType | None) -> int:
    return box_fingerprint(values if cast is None else cast_bits(values, dtype, cast), box.start)

"""A checkpoint as one side of a comparison: its whole tensors, and the fingerprints of their contents.

The files of a side are planned as the source of a conversion to whole tensors that is never carried out: so everything
that can be converted can be compared, and an incomplete checkpoint is refused. Then every replica of every slice is
read and fingerprinted rank by rank. A side may also be known by a document of fingerprints alone.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context

import numpy as np
from msgspec.structs import replace

from reshard.core.changes.changes import Changes
from reshard.core.checkpoint.file_shares import BLOCK_BYTES, FileShare, affordable_workers, file_shares
from reshard.core.errors import InputError, PlanError
from reshard.core.layouts.any_layout import numbers_beside
from reshard.core.layouts.state_numbers import Number
from reshard.core.plan.matching import holding_file
from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.recipes import excluded_names
from reshard.core.request.resources import resources_of
from reshard.core.request.source import FingerprintRequest
from reshard.core.runtime.log import timed
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import advancing, current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import utf8_text
from reshard.core.source.opening import Source, open_source
from reshard.core.source.whole_tensors import plan_wholes
from reshard.core.tensor.casting import cast_bits
from reshard.core.tensor.dtypes import DType, dtype_from_ckpt
from reshard.core.tensor.fingerprint import ELEMENT_BYTES, box_fingerprint, combined, fingerprint_text
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes
from reshard.core.text.options import option
from reshard.core.text.printing import printable
from reshard.core.transfer.whole_reader import WholeReader
from reshard.core.verification.accumulator import CheckpointFingerprints, Contents, stored_bytes
from reshard.core.verification.fingerprint_file import (
    ModelFingerprint,
    ParameterFingerprint,
    fingerprint_of_all,
    read_model_fingerprint,
)
from reshard.core.verification.shard_fingerprints import sum_contributions


class Tensor(Record):
    """A whole tensor, from the headers of files."""

    dtype: DType
    shape: Shape
    size_bytes: int


class _Facts(Record):
    """What is known of a side before its contents are read.

    Attributes:
        url: the checkpoint or the document.
        step: the step chosen; None if file names carry none.
        ranks: how many ranks the checkpoint has; files, if tensors are whole.
        stages: how many pipeline stages its ranks are in.
        has_whole_tensors: True for files of whole tensors.
        notes: what was chosen, in sentences.
        tensors: the selected parameters by name, in the order of the files.
        unused: patterns of the selection that match no parameter.
        common: numbers of the training's state beside the tensors, by name.
    """

    url: str
    step: str | None
    ranks: int
    stages: int
    has_whole_tensors: bool
    notes: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    unused: frozenset[str]
    common: Mapping[str, Number]

    @property
    def counts_files(self) -> bool:
        """True if `ranks` counts files."""
        return self.has_whole_tensors

    @property
    def ranks_of_stage(self) -> int:
        """Ranks in each stage; 1 for files of whole tensors."""
        return 1 if self.has_whole_tensors else self.ranks // self.stages

    @property
    def size_bytes(self) -> int:
        """Bytes of all whole tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())


def open_checkpoint_view(
    request: FingerprintRequest, resolvers: Mapping[str, Resolver] | None = None
) -> "CheckpointView":
    """Plan the reading of a checkpoint; only headers and samples are read."""
    with resources_of(request, resolvers):
        source = with_retries(lambda: open_source(request), current_progress().note)
        return _checkpoint_view(request, source, with_retries(lambda: plan_wholes(source), current_progress().note))


def open_fingerprints(
    request: FingerprintRequest, resolvers: Mapping[str, Resolver] | None = None
) -> "FingerprintsView":
    """Read a document of fingerprints."""
    if request.source_strategy or request.step or request.root or request.decrypt_key:
        raise InputError(
            f"{printable(request.source)}: fingerprints have no strategy, no other steps, no root and no key: name "
            "none for them"
        )
    with resources_of(request, resolvers):
        document = read_model_fingerprint(request.source)
    return view_of(document, request, request.source)


def view_of(document: ModelFingerprint, request: FingerprintRequest, url: str) -> "FingerprintsView":
    """The view of a document of fingerprints, with the parameters that a request selects."""
    parameters = {each.name: each for each in document.parameters}
    chosen, unused = chosen_names(request, parameters)
    return FingerprintsView(
        url=url,
        step=document.step,
        ranks=document.ranks,
        stages=document.stages,
        has_whole_tensors=document.unified,
        notes=document.notes,
        tensors={name: _recorded_tensor(parameters[name]) for name in chosen},
        unused=unused,
        common=document.common,
        document=document,
    )


def _recorded_tensor(parameter: ParameterFingerprint) -> Tensor:
    dtype = dtype_from_ckpt(parameter.dtype)
    return Tensor(dtype, parameter.shape, math.prod(parameter.shape) * dtype.itemsize)


def _checkpoint_view(request: FingerprintRequest, source: Source, plan: ConversionPlan) -> "CheckpointView":
    catalog = plan.inputs.catalog
    wholes = {parameter.name: parameter for parameter in plan.rank_plan(0).parameters}
    chosen, unused = chosen_names(request, wholes)
    view = CheckpointView(
        url=catalog.url,
        step=catalog.step,
        ranks=catalog.world_size,
        stages=len(source.strategy.stages) if source.strategy else 1,
        has_whole_tensors=catalog.has_whole_tensors,
        notes=tuple(map(utf8_text, catalog.notes)),
        tensors={},
        unused=unused,
        common=numbers_beside(catalog) or {},
        workers=affordable_workers(request.worker_count, request.memory_limit_bytes),
        plan=plan,
        wholes=wholes,
        context=copy_context(),
    )
    return view.selecting(chosen)


class CheckpointView(_Facts):
    """A checkpoint whose files can be read.

    Attributes:
        workers: how many threads may read it at once.
        plan: the conversion to whole tensors.
        wholes: all its parameters, by name.
        context: knows the keys and storages in force when it was opened.
    """

    workers: int
    plan: ConversionPlan
    wholes: Mapping[str, ParameterPlan]
    context: Context

    @property
    def counts_files(self) -> bool:
        """True if `ranks` counts files."""
        return self.plan.inputs.counts_source_files

    @property
    def all_tensors(self) -> Mapping[str, Tensor]:
        """All parameters, selected or not."""
        return {name: Tensor(each.dtype, each.box.shape, each.size_bytes) for name, each in self.wholes.items()}

    def selecting(self, names: Iterable[str]) -> "CheckpointView":
        """The view with these parameters; a PlanError if one cannot be compared."""
        everything, chosen = self.all_tensors, list(names)
        for name in chosen:
            if everything[name].dtype.itemsize not in ELEMENT_BYTES:
                raise PlanError(
                    f"{self.url}: parameter {name!r} ({holding_file(self.plan.inputs.catalog, name)}) has dtype "
                    f"{everything[name].dtype}, which reshard cannot compare; leave it out: {option('exclude', [name])}"
                )
        return replace(self, tensors={name: everything[name] for name in chosen})

    def stored_bytes(self, names: Collection[str]) -> int:
        """Bytes to read of parameters, all replicas of them."""
        return stored_bytes(self.plan.inputs.catalog.records.values(), names)

    def contents(self, names: Collection[str], casts: Mapping[str, DType] | None = None) -> Contents:
        """Read every replica of parameters; those in `casts` are cast to other floating-point types first."""
        progress, stop = current_progress(), threading.Event()
        advance = advancing(progress, stop)
        casts = casts or {}
        accumulator = CheckpointFingerprints(self.plan, frozenset(names), casts)

        def read(share: FileShare) -> None:
            record = share.record
            contributions = accumulator.contributions(record)
            ranges = share.ranges([record.index.entries[name] for name in contributions])
            with timed(f"{share} read"):
                sums = with_retries(lambda: sum_contributions(record, contributions, advance, ranges), progress.note)
            accumulator.add(record.rank, sums)

        work = file_shares(self.plan.inputs.catalog, self.workers)
        self.context.copy().run(in_threads, read, work.shares, work.workers, stop)
        contents = accumulator.contents()
        put_together = {
            name: (self._assembled(name, casts.get(name)),)
            for name, found in contents.fingerprints.items()
            if not found
        }
        return replace(contents, fingerprints={**contents.fingerprints, **put_together})

    def _assembled(self, name: str, cast: DType | None) -> int:
        """The fingerprint of a parameter of which each stage has a part only."""
        tensor = self.tensors[name]
        with self.reading(name) as read:
            boxes = contiguous_boxes(tensor.shape, 0, math.prod(tensor.shape), BLOCK_BYTES // tensor.dtype.itemsize)
            blocks = ((box, read(box)) for box in boxes)
            return combined(
                box_fingerprint(block if cast is None else cast_bits(block, tensor.dtype, cast), box.start)
                for box, block in blocks
            )

    def text(self, name: str) -> str | None:
        """The value of a text parameter; None for others."""
        read = self.wholes[name].reads[0]
        return self.plan.source_entry(read.source_rank, name).text

    @contextmanager
    def reading(
        self, name: str, advance: Callable[[int], None] = lambda _: None
    ) -> Iterator[Callable[[TensorSlice], np.ndarray]]:
        """Read contiguous boxes of a whole parameter: their elements, as unsigned integers.

        An array is valid until the next box is read; a box has at most `BLOCK_BYTES` bytes.
        """
        plan = self.wholes[name]
        context = self.context.copy()
        reader = context.run(WholeReader, self.plan, plan)

        def read(box: TensorSlice) -> np.ndarray:
            block = context.run(reader.read, box)
            advance(block.nbytes)
            return block.view(f"<u{plan.dtype.itemsize}").reshape(box.shape)

        try:
            yield read
        finally:
            reader.close()

    def document_of(self, contents: Contents) -> ModelFingerprint:
        """The fingerprints of all its parameters, as a document."""
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
            unified=self.has_whole_tensors,
            size_bytes=self.size_bytes,
            fingerprint=fingerprint_of_all(parameters),
            parameters=parameters,
            differing=contents.differing,
            notes=self.notes,
            common=self.common,
        )


class FingerprintsView(_Facts):
    """A checkpoint known only by its fingerprints."""

    document: ModelFingerprint

    @property
    def all_tensors(self) -> Mapping[str, Tensor]:
        """All parameters, selected or not."""
        return {each.name: _recorded_tensor(each) for each in self.document.parameters}

    def selecting(self, names: Iterable[str]) -> "FingerprintsView":
        """The view with these parameters."""
        everything = self.all_tensors
        return replace(self, tensors={name: everything[name] for name in names})

    def stored_bytes(self, names: Collection[str]) -> int:
        """Bytes to read of parameters: there are no files."""
        return 0

    def contents(self, names: Collection[str]) -> Contents:
        """The fingerprints of parameters."""
        fingerprints = {
            each.name: tuple(int(digits, 16) for digits in (each.fingerprint, *each.others))
            for each in self.document.parameters
            if each.name in names
        }
        return Contents(fingerprints, self.document.differing)


View = CheckpointView | FingerprintsView
"""One side of a comparison."""


def chosen_names(request: FingerprintRequest, names: Collection[str]) -> tuple[list[str], frozenset[str]]:
    """The selected names, in their order, and the request's patterns that match none."""
    fitting: set[object] = set()
    selection = Changes(select=request.select, include=tuple(request.include), exclude=tuple(request.exclude))
    excluded = excluded_names(list(names), selection, fitting)
    patterns = {("include", pattern) for pattern in request.include} | {("exclude", each) for each in request.exclude}
    unused = frozenset(option(name, [pattern]) for name, pattern in patterns if (name, pattern) not in fitting)
    return [name for name in names if name not in excluded], unused

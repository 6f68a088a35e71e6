"""The documents beside a target's files, such as an index: made from the plan, written with the manifest, checked."""

import math
from collections.abc import Iterable
from functools import cached_property
from itertools import chain

import xxhash

from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord, record_entries
from reshard.core.errors import CatalogError, CheckpointError, StorageError, StrategyError, is_transient
from reshard.core.layouts.checkpoint2.common import Common, build_common
from reshard.core.layouts.checkpoint2.names import COMMON_NAME, MAX_METADATA_BYTES, METADATA_NAME, UNLISTED_PARAMETERS
from reshard.core.layouts.dcp.metadata import MAX_METADATA_BYTES as MAX_DCP_METADATA_BYTES
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.unified.companions import MAX_COMPANION_BYTES
from reshard.core.layouts.unified.names import COMPANION_NAMES, INDEX_NAME, OTHERS_NAME, index_name
from reshard.core.layouts.unified.weight_maps import (
    MAX_INDEX_BYTES,
    dump_sorted_weight_map,
    dump_weight_map,
    read_weight_map,
)
from reshard.core.plan.appended import AppendedParameter
from reshard.core.plan.model import ReshardedParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.wording import printable
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location
from reshard.core.tensor.dtypes import TEXT

_KINDS = {
    METADATA_NAME: "metadata",
    DCP_METADATA_NAME: "metadata",
    COMMON_NAME: "state of the training",
    **dict.fromkeys(COMPANION_NAMES, "file"),
}
"""Names of documents and companions -> what they are; others are indexes."""
_MAX_BYTES = {
    METADATA_NAME: MAX_METADATA_BYTES,
    DCP_METADATA_NAME: MAX_DCP_METADATA_BYTES,
    **dict.fromkeys(COMPANION_NAMES, MAX_COMPANION_BYTES),
}
"""Limits of their sizes; others have that of indexes."""


@frozen
class IndexFile:
    """A document's file name, relative to the target, and its content."""

    name: str
    data: bytes

    @cached_property
    def summary(self) -> IndexSummary:
        """The document's entry in the manifest."""
        return IndexSummary(file=self.name, size_bytes=len(self.data), digest=xxhash.xxh3_128_hexdigest(self.data))


@frozen
class Documents:
    """The documents that a target has beside its files.

    Attributes:
        index: which tensor is in which file; None for a single file.
        common: the state of the training, of an iteration of Checkpoint 2.0; None for other layouts.
    """

    index: IndexFile | None = None
    common: IndexFile | None = None

    @property
    def each(self) -> tuple[IndexFile, ...]:
        """The documents that there are."""
        return tuple(document for document in (self.index, self.common) if document is not None)


def document_names(plan: ConversionPlan) -> tuple[str, ...]:
    """Return the names of the documents of a plan's target."""
    index = _index_name(plan)
    return (*([index] if index else []), *([COMMON_NAME] if plan.inputs.iteration else []))


def documents_of(plan: ConversionPlan) -> Documents:
    """Return the documents of a plan's target."""
    name = _index_name(plan)
    if plan.inputs.dcp is not None:
        from reshard.core.layouts.dcp.metadata_writing import build_dcp_metadata

        return Documents(IndexFile(name, build_dcp_metadata(plan)))
    iteration = plan.inputs.iteration
    if iteration is None:
        return Documents(IndexFile(name, _weight_map(plan)) if name else None)
    # other targets do without its library
    from reshard.core.layouts.checkpoint2.metadata_writing import build_metadata

    common = IndexFile(COMMON_NAME, build_common(Common(dict(iteration.common))))
    return Documents(IndexFile(name, build_metadata(plan)) if name else None, common)


def _index_name(plan: ConversionPlan) -> str:
    """The index's name; empty if the target has none."""
    inputs = plan.inputs
    if inputs.dcp is not None:
        return DCP_METADATA_NAME
    if inputs.iteration is not None:
        is_single_card = inputs.target_strategy is None or len(inputs.target_strategy.ranks) == 1
        return "" if is_single_card else METADATA_NAME
    return index_name(inputs.unified.naming, len(plan.match.files)) if inputs.unified else ""


def _weight_map(plan: ConversionPlan) -> bytes:
    """The index of a unified target.

    It lists tensors only: texts are in the files' metadata, where no loader looks for them.
    """
    files = plan.match.files
    weights: dict[str, str] = {}
    total_bytes = element_count = 0
    # without the ranks' plans, which would compute the boxes of all parameters
    resharded = ((each, files[number]) for each in plan.match.resharded for number in each.target_layouts)
    appended = ((each, files[-1]) for each in plan.match.appended)
    for each, file in chain[tuple[ReshardedParameter | AppendedParameter, str]](resharded, appended):
        if each.dtype is not TEXT and file != OTHERS_NAME:  # MindSpore finds that file by itself
            weights[each.name] = file
            element_count += math.prod(each.shape)
            total_bytes += math.prod(each.shape) * each.dtype.itemsize
    if _index_name(plan) == INDEX_NAME:
        return dump_sorted_weight_map(weights, total_bytes, element_count)
    return dump_weight_map(weights, total_bytes)


def document_problem(directory: Location, document: IndexSummary) -> str | None:
    """Return the problem with a document or companion in a directory, as a sentence; None if there is none."""
    location = directory.child(document.file)
    most_bytes = _MAX_BYTES.get(document.file, MAX_INDEX_BYTES)
    try:
        data = read_small_file(location, min(max(document.size_bytes, 1), most_bytes))
    except CheckpointError:
        return f"{location}: is larger than what was written, which has {document.size_bytes} bytes"
    except StorageError as error:
        if is_transient(error):
            raise
        return str(error)
    if len(data) != document.size_bytes or xxhash.xxh3_128_hexdigest(data) != document.digest:
        return f"{location}: is not the {_KINDS.get(document.file, 'index')} that was written"
    return None


def places_problem(
    directory: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: ConversionPlan | None = None
) -> str | None:
    """Return the first wrong entry of the index in a directory, as a sentence; None if there is none.

    The index is compared with the `records` of all files. Only the `plan` knows which boxes of their tensors the shards
    of a DCP checkpoint are.
    """
    location = directory.child(index.file)
    try:
        if index.file == METADATA_NAME:
            return _listing_problem(location, index, records)
        if index.file == DCP_METADATA_NAME:
            return _dcp_problem(location, index, records, plan)
        weights = read_weight_map(location)
    except (CatalogError, StrategyError) as error:
        return str(error)
    for record in records:
        for parameter in () if record.file == OTHERS_NAME else record.parameters:
            said = weights.pop(parameter.name, None) if parameter.dtype != TEXT.name else record.file
            if said != record.file:
                entry = f"is in {said}" if said else "is nowhere"
                return f"{location}: says that parameter {parameter.name!r} {entry}, it is in {printable(record.file)}"
    return f"{location}: names {next(iter(weights))!r}, which is in no file" if weights else None


def _listing_problem(location: Location, index: IndexSummary, records: Iterable[ShardRecord]) -> str | None:
    """The first difference between metadata.json and the records of all files; None if there is none."""
    from reshard.core.layouts.checkpoint2.metadata import parse_metadata

    metadata = parse_metadata(read_small_file(location, max(index.size_bytes, 1)), str(location))
    files = dict(metadata.files)
    for record in records:
        listed = files.pop(record.file, None)
        names = {parameter.name for parameter in record.parameters} - UNLISTED_PARAMETERS
        wrong = sorted(names.symmetric_difference(listed.tensors if listed else ()))
        if wrong:
            there = "is in" if wrong[0] in names else "is not in"
            return f"{location}: is wrong about parameter {wrong[0]!r}, which {there} {printable(record.file)}"
    return f"{location}: lists {printable(next(iter(files)))}, which is not a file of the checkpoint" if files else None


def _dcp_problem(
    location: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: ConversionPlan | None
) -> str | None:
    """The first difference between `.metadata` and the records of all files, or their plan; None if there is none."""
    from reshard.core.files.distcp import archive_extents
    from reshard.core.layouts.dcp.metadata import parse_dcp_metadata

    metadata = parse_dcp_metadata(read_small_file(location, max(index.size_bytes, 1)), str(location))
    chunks = {
        (chunk.place.path, chunk.place.offset): (name, tensor.dtype, chunk.box, chunk.place.length)
        for name, tensor in metadata.tensors.items()
        for chunk in tensor.chunks
    }
    for record in records:
        entries = record_entries(record)
        boxes = {each.name: each.box for each in plan.rank_plan(record.rank).parameters} if plan else {}
        for entry, place in zip(entries, archive_extents(entries), strict=True):
            name, dtype, box, length = chunks.pop((record.file, place.offset), (None, None, None, 0))
            is_right = (name, dtype, length) == (entry.name, entry.dtype, place.length)
            if not is_right or box is None or box.shape != entry.shape or box != boxes.get(entry.name, box):
                planned = f", the box {boxes[entry.name]}," if entry.name in boxes else ""
                return (
                    f"{location}: is wrong about parameter {entry.name!r}, of which {printable(record.file)} has "
                    f"{entry.dtype} {list(entry.shape)}{planned} at byte {place.offset}"
                )
    if chunks:
        (file, _), (name, *_) = next(iter(chunks.items()))
        return f"{location}: lists parameter {name!r} in {printable(file)}, where it is not"
    return None

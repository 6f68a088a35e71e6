"""Looks into the contents of a checkpoint's parameters: how they lie in its files, and what their numbers are."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from reshard.core.conversion.inspection_report import (
    MAX_PLACES,
    Contents,
    InspectedParameter,
    InspectionReport,
    Place,
)
from reshard.core.conversion.opened_parameters import OpenedParameters, Readable
from reshard.core.files.numpy_values import readable_dtype
from reshard.core.request.source import OpenRequest
from reshard.core.runtime.progress import current_progress
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR
from reshard.core.tensor.statistics import Statistics
from reshard.core.text.options import source_option, spelled

_FIRST = 8


def inspect_parameters(request: OpenRequest, patterns: Sequence[str], rank: int | None = None) -> InspectionReport:
    """Read parameters, and tell what they hold; the request's storages and keys have to be in force.

    Args:
        request: which checkpoint, by which strategy.
        patterns: names of parameters, or patterns.
        rank: only this rank's shards; None: whole parameters, where it is known how they are sharded.

    Raises:
        InputError: the checkpoint cannot be used, or has no such parameter or rank.
        StorageError: it cannot be read.
    """
    opened = OpenedParameters(request)
    try:
        names = opened.matching(patterns)
        some = {name: opened.readable(name, rank) for name in names}
        current_progress().begin("reading", sum(each.size_bytes for those in some.values() for each in those))
        catalog = opened.files.catalog
        return InspectionReport(
            checkpoint=catalog.url,
            step=catalog.step,
            parameters=tuple(_inspected(opened, name, some[name]) for name in names),
            notes=(*opened.notes, *_notes(opened, names, rank)),
        )
    finally:
        opened.close()


def _notes(opened: OpenedParameters, names: Sequence[str], rank: int | None) -> Iterator[str]:
    if opened.files.source is None and rank is None:
        yield spelled(
            "how the ranks are sharded is not known, so each rank's shard is shown: give the strategy with "
            f"{source_option('source_strategy')}"
        )
    elif rank is None and any(len(opened.records(name)) > opened.shard_count(name) for name in names):
        yield "only the lowest rank's replica is read; 'reshard scan' reads all of them"


def _inspected(opened: OpenedParameters, name: str, readable: Sequence[Readable]) -> InspectedParameter:
    records = opened.records(name)
    places = [
        Place(rank=each.rank, file=opened.files.file_of(each.rank), shape=each.index.entries[name].shape)
        for each in islice(records, MAX_PLACES)
    ]
    return InspectedParameter(
        name=name,
        dtype=readable[0].dtype.name,
        sharding=opened.sharding(name),
        files=len(records),
        places=tuple(places),
        contents=tuple(map(_contents, readable)),
    )


def _contents(readable: Readable) -> Contents:
    facts: dict[str, Any] = {"rank": readable.rank, "shape": readable.shape, "size_bytes": readable.size_bytes}
    if readable.text is not None:
        return Contents(**facts, text=readable.text)
    if readable_dtype(readable.dtype) is None or readable.dtype is MAP_TENSOR:
        return Contents(**facts)
    statistics = Statistics()
    first: list[Any] = []
    is_number = readable.numpy_dtype.kind != "c" and readable.dtype is not INT4
    for values in readable.blocks():
        if len(first) < _FIRST:
            first += [_plain(value) for value in values[: _FIRST - len(first)]]
        if is_number:
            statistics.add(values)
        current_progress().advance(values.nbytes)
    if is_number:
        names = ("count", "nan", "positive_inf", "negative_inf", "zeros", "least", "greatest", "mean", "deviation")
        facts |= {name: getattr(statistics, name) for name in names}
    return Contents(**facts, first=tuple(first))


def _plain(value: Any) -> bool | int | float | str:
    """An element as one of Python's own types; a complex number as a text."""
    item = value.item()
    return item if isinstance(item, bool | int | float) else str(item)

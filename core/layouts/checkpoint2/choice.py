"""Which iteration of MindFormers' Checkpoint 2.0 a request asks for, and what its common.json says."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.content_samples import read_samples
from reshard.core.errors import CatalogError, InputError, PlanError
from reshard.core.files.file_names import NO_EPOCH, parse_step
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.any_layout import numbers_beside
from reshard.core.layouts.checkpoint2.assignment import GLOBAL_STEP
from reshard.core.layouts.checkpoint2.common import NEWER_KEYS, common_beside
from reshard.core.layouts.checkpoint2.names import COMMON_KEYS, parse_iteration
from reshard.core.layouts.checkpoint2.options import CommonOptions, iteration_of
from reshard.core.layouts.checkpoint2.target import IterationTarget
from reshard.core.layouts.iteration_option import IterationOptions
from reshard.core.layouts.options import own_options
from reshard.core.layouts.state_numbers import Number
from reshard.core.layouts.survey import find_number, survey
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.casting import NUMPY_TYPES
from reshard.core.text.options import option


def choose_number(request: Any) -> dict[str, str]:
    """Return the number of the iteration, and the step of a source that has iterations.

    Raises:
        InputError: neither the request nor the source says which iteration it is.
        CatalogError: the source has no such iteration, or none that is complete.
        StorageError: the source cannot be listed.
    """
    found = find_number(request.source, request.step)
    step = request.step if found is None else str(found)
    named = parse_iteration(parse_url(request.target).name) if request.target else None
    given = own_options(request, IterationOptions).iteration
    number = int(given) if given else found if named is None else named
    if number is None:
        survey(request.source, request.step)  # it may be that there is no source
        raise InputError(
            f"{parse_url(request.source)}: does not say which iteration it is, as a Checkpoint 2.0 does: give its "
            f"number with {option('iteration')}"
        )
    return {"step": step, "iteration": str(number)}


def choose_iteration(request: Any, catalog: CheckpointCatalog) -> IterationTarget:
    """Return the iteration that a request asks for, whose number is known.

    Raises:
        CatalogError: the source's common.json is damaged, or its files hold something else than numbers.
        PlanError: the global step is unknown.
        StorageError: a file cannot be read.
    """
    values = {**_source_values(catalog), **own_options(request, CommonOptions).common_values}
    if values.get(GLOBAL_STEP) is None:
        raise PlanError(
            f"{catalog.url}: neither its files nor its common.json say at which {GLOBAL_STEP} it was saved, and "
            f"MindFormers resumes from there: give it with {option('common', [f'{GLOBAL_STEP}=N'])}"
        )
    common = tuple((key, values[key]) for key in (*COMMON_KEYS, *NEWER_KEYS) if key in values)
    number = int(own_options(request, IterationOptions).iteration)
    return IterationTarget(number, common, iteration_of(request.target) is None)


def _source_values(catalog: CheckpointCatalog) -> Mapping[str, Number]:
    common = common_beside(catalog)
    if common is not None:
        return common
    values: dict[str, Number] = dict(numbers_beside(catalog) or {})
    step = parse_step(catalog.step) if catalog.step else None
    if step is not None and step.epoch != NO_EPOCH:
        values |= {"epoch_num": step.epoch, "step_num": step.step}
    for key in COMMON_KEYS:
        record = next((each for each in catalog.records.values() if key in each.index.entries), None)
        if record is not None:
            values[key] = _number(catalog, record, record.index.entries[key])
    return values


def _number(catalog: CheckpointCatalog, record: CatalogRecord, entry: TensorEntry) -> int | float:
    dtype = NUMPY_TYPES.get(entry.dtype.name)
    if entry.text is not None or dtype is None or entry.size_bytes != dtype.itemsize or len(entry.extents) != 1:
        raise CatalogError(
            f"{record.location}: {entry.name!r} is {entry.dtype} {list(entry.shape)}, not the number that it is in "
            f"common.json: leave it out, {option('exclude')}, and give the number with {option('common')}"
        )
    [content] = read_samples(catalog, [record.rank], entry.name, entry.size_bytes)
    value: int | float = np.frombuffer(content, dtype).item()
    return value

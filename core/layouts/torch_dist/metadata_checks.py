"""Compares `.metadata` of a written `torch_dist` directory with the records of its files, and with their plan."""

from collections.abc import Iterable

from reshard.core.checkpoint.manifest import IndexSummary, ShardRecord
from reshard.core.layouts.dcp.metadata_checks import dcp_metadata_problem
from reshard.core.layouts.torch_dist.names import parse_stored
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import Location
from reshard.core.tensor.slices import TensorSlice


def torch_dist_metadata_problem(
    location: Location, index: IndexSummary, records: Iterable[ShardRecord], plan: ConversionPlan | None
) -> str | None:
    """Return the first difference from the records of all files, or their plan, as a sentence; None without one.

    Raises:
        StrategyError: the metadata is damaged.
        StorageError: it cannot be read.
    """
    return dcp_metadata_problem(location, index, records, plan, _parameter_of)


def _parameter_of(name: str, box: TensorSlice) -> tuple[str, TensorSlice]:
    """The parameter of one layer and one expert, which is planned with one element along their axes."""
    stored = parse_stored(name)
    axes = stored.stacked_axes
    start, stop = (0,) * axes + box.start[axes:], tuple(box.shape[:axes]) + box.stop[axes:]
    return stored.parameter(box.start[:axes]), TensorSlice(start, stop)

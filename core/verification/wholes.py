"""Compares whole parameters of a source, whatever their sharding: as bytes, a block of each at a time.

first_difference        where two parameters of one shape differ
check_dropped_copies    refuses to leave parameters out as copies that are none
"""

from contextlib import closing

import numpy as np

from reshard.core.errors import PlanError, raise_problems
from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.wholes import whole_plan
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import listed
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.slices import TensorSlice
from reshard.core.transfer.whole_reader import WholeReader


def check_dropped_copies(plan: ConversionPlan, on_differing: str = "") -> None:
    """Check that the parameters left out as copies of others have their bytes; the error has the advice `on_differing`.

    Raises:
        PlanError: one differs; the message says where.
        CatalogError: a source file changed since the plan was made.
        StorageError: one cannot be read.
    """
    pairs = plan.match.left_out.copies
    if not pairs:
        return
    current_progress().note(f"comparing copies to be left out: {listed([copy.name for copy, _ in pairs], 3)}")
    problems = []
    for copy, original in pairs:
        one, other = (whole_plan(source, source.copies) for source in (copy, original))
        difference = first_difference(plan, one, other)
        if difference is not None:
            problems.append(
                f"{copy.name!r} is to be dropped, and is not a copy of {original.name!r}: they differ in "
                f"{difference} of the whole tensor"
            )
    advice = f": {on_differing}" if on_differing else ""
    raise_problems(PlanError, f"{plan.inputs.catalog.url}: these changes cannot be applied{advice}", problems)


def first_difference(plan: ConversionPlan, one: ParameterPlan, other: ParameterPlan) -> TensorSlice | None:
    """Return the first box in which two whole parameters of one shape and element type differ; None if they do not."""
    if not (one.reads and other.reads):
        return None  # they have no elements
    if one.dtype in (TEXT, MAP_TENSOR):
        first, second = (plan.source_entry(each.reads[0].source_rank, each.sources[0].name) for each in (one, other))
        if (first.shape, first.text) != (second.shape, second.text):
            return one.box
        if one.dtype is TEXT:
            return None
    with closing(WholeReader(plan, one)) as one_reader, closing(WholeReader(plan, other)) as other_reader:
        for box in one_reader.boxes():
            if not np.array_equal(one_reader.read(box), other_reader.read(box)):
                return box
    return None

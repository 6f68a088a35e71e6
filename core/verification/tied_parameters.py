"""Parameters that several pipeline stages of the source hold, such as tied embeddings: whether their copies are alike.

Training keeps them equal; where it did not, one copy is taken, and that others differ has to be said. Stages may cut a
parameter differently, so both copies are read as the whole tensor, in its order, a block of each at a time.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from reshard.core.errors import PlanError
from reshard.core.plan.geometry import ClassGeometry
from reshard.core.plan.layout_classes import LayoutClass
from reshard.core.plan.matching import distinct_sources
from reshard.core.plan.model import ParameterPlan, ReshardedParameter
from reshard.core.plan.ownership import SourceCopy, lacks_shards
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.resharding import unchanged
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import listed
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import whole_layout
from reshard.core.verification.whole_reader import WholeReader


@dataclass(frozen=True)
class Differing:
    """A shared parameter whose copies are not alike: the stage whose copy is taken, and those that have another."""

    name: str
    taken: int
    others: tuple[int, ...]


def with_shared_compared(plan: ConversionPlan, fails: bool) -> ConversionPlan:
    """The plan, whose notes say which parameters have different contents on the source stages that share them.

    Raises:
        PlanError: there are such, and that is to fail.
        CatalogError: a source file is not the one that was planned with.
        StorageError: one cannot be read.
    """
    if not plan.match.shared:
        return plan
    current_progress().note(f"comparing what several source stages hold: {listed(list(plan.match.shared), 3)}")
    differing = list(differing_parameters(plan))
    if not differing:
        return plan
    text = differing_text(differing)
    if fails:
        raise PlanError(
            f"{plan.inputs.catalog.url}: pipeline stages hold different copies of parameters that they share: {text}. "
            "Name the stage whose copies are right: --shared-parameters STAGE, or first"
        )
    return plan.with_notes(differing_note(text))


def differing_parameters(plan: ConversionPlan) -> Iterator[Differing]:
    """The shared parameters whose copies are not alike; a copy of which files lack something is not compared."""
    sources = {source.name: source for source in distinct_sources(plan.match.resharded)}
    for name, copies in plan.match.shared.items():
        parameter = unchanged(sources[name], {})
        whole = [(stage, copy) for stage, copy in copies if not lacks_shards(copy, len(parameter.shape))]
        if len(whole) < 2:
            continue
        (taken, first), *others = whole
        different = [stage for stage, copy in others if not _are_alike(plan, parameter, first, copy)]
        if different:
            yield Differing(name, taken, tuple(different))


def differing_text(differing: Iterable[Differing]) -> str:
    """Message text: each parameter, the stage whose copy is taken, and the stages with another; empty if none."""
    return listed([_taken_text(each) for each in differing], 20)


def differing_note(text: str) -> str:
    """The note about differing copies; `text` is that of `differing_text`."""
    return f"pipeline stages hold DIFFERENT copies of parameters that they share: {text}"


def _taken_text(differing: Differing) -> str:
    stages = f"stage{'s' if len(differing.others) > 1 else ''} {listed(list(map(str, differing.others)))}"
    return f"{differing.name} (stage {differing.taken}'s is taken, unlike that of {stages})"


def _are_alike(plan: ConversionPlan, parameter: ReshardedParameter, first: SourceCopy, other: SourceCopy) -> bool:
    copies = [_whole(parameter, copy) for copy in (first, other)]
    if not all(copy.reads for copy in copies):
        return True  # there is nothing in it
    entries = [plan.source_entry(copy.reads[0].source_rank, parameter.sources[0].name) for copy in copies]
    if parameter.dtype in (TEXT, MAP_TENSOR) and (entries[0].shape, entries[0].text) != (
        entries[1].shape,
        entries[1].text,
    ):
        return False
    if parameter.dtype is TEXT:
        return True
    with closing(WholeReader(plan, copies[0])) as one, closing(WholeReader(plan, copies[1])) as two:
        return all(np.array_equal(one.read(box), two.read(box)) for box in one.boxes())


def _whole(parameter: ReshardedParameter, copy: SourceCopy) -> ParameterPlan:
    """The whole tensor, as if it were to be written from one stage's copy."""
    uncut = whole_layout(len(parameter.shape)).shard_grid(len(parameter.shape))
    geometry = ClassGeometry.of_whole([copy], uncut, parameter.shape)
    [plan] = LayoutClass(geometry, copy.first_rank, (parameter,)).plans(0)
    return plan

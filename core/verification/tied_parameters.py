"""Tied parameters: those that several pipeline stages of the source hold, such as shared embeddings.

Training keeps their copies equal. Where it did not, one stage's copy is used, and the difference is reported. Stages
may shard a parameter differently, so both copies are read as whole tensors, a block of each at a time; of parts that
were converted apart, the digests are compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.errors import PlanError
from reshard.core.plan.matching import distinct_sources
from reshard.core.plan.ownership import lacks_shards
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.wholes import whole_plan
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option
from reshard.core.verification.values import target_starts
from reshard.core.verification.wholes import first_difference


class Differing(Record):
    """A tied parameter whose copies differ: the stage whose copy is used, and the stages with another."""

    name: str
    used: int
    others: tuple[int, ...]


def with_tied_compared(plan: ConversionPlan, fails: bool) -> ConversionPlan:
    """Compare tied parameters, and return the plan with a note of those that differ.

    Raises:
        PlanError: copies differ, and `fails` is set.
        CatalogError: a source file changed since the plan was made.
        StorageError: one cannot be read.
    """
    if not plan.match.shared:
        return plan
    current_progress().note(f"comparing tied parameters of several source stages: {listed(list(plan.match.shared), 3)}")
    differing = list(differing_parameters(plan))
    if not differing:
        return plan
    text = differing_text(differing)
    if fails:
        raise PlanError(
            f"{plan.inputs.catalog.url}: pipeline stages hold different copies of tied parameters: {text}. "
            f"Name the stage whose copies are right: {option('shared_parameters', 'STAGE')}, or first"
        )
    return plan.with_notes(differing_note(text))


def differing_parameters(plan: ConversionPlan) -> Iterator[Differing]:
    """The tied parameters whose copies differ; incomplete copies are not compared."""
    sources = {source.name: source for source in distinct_sources(plan.match.resharded)}
    for name, copies in plan.match.shared.items():
        source = sources[name]
        whole = [(stage, copy) for stage, copy in copies if not lacks_shards(copy, len(source.shape))]
        if len(whole) < 2:
            continue
        (used, first), *others = whole
        used_plan = whole_plan(source, [first])
        different = [stage for stage, copy in others if first_difference(plan, used_plan, whole_plan(source, [copy]))]
        if different:
            yield Differing(name, used, tuple(different))


class PartCopies:
    """Digests of tied parameters in joined parts; `shared` maps these to their stages, whose first one's copy is used.

    All parts have the same sharding, so equal boxes of a tensor have equal digests on any rank.
    """

    def __init__(self, shared: Mapping[str, Sequence[int]]) -> None:
        self._shared = shared
        self._shards: dict[tuple[str, int], dict[tuple[Shape, Shape], tuple[str, str]]] = {
            (name, stage): {} for name, stages in shared.items() for stage in stages
        }

    def add(self, stage: int, plan: ConversionPlan, record: ShardRecord) -> None:
        """Add the record of a rank of a stage's part; thread-safe."""
        starts = target_starts(plan, record.rank)
        for parameter in record.parameters:
            if parameter.name in self._shared:
                box = starts[parameter.name], parameter.shape
                self._shards[parameter.name, stage][box] = parameter.dtype, parameter.digest

    def differing(self) -> Iterator[Differing]:
        """The parameters whose copies differ."""
        for name, (used, *others) in self._shared.items():
            different = [stage for stage in others if self._shards[name, stage] != self._shards[name, used]]
            if different:
                yield Differing(name, used, tuple(different))


def differing_text(differing: Iterable[Differing]) -> str:
    """List parameters, each with the stage whose copy is used and the stages with another."""
    return listed([_difference_text(each) for each in differing], 20)


def differing_note(text: str) -> str:
    """The note about differing copies; `text` is from `differing_text`."""
    return f"pipeline stages hold DIFFERENT copies of tied parameters: {text}"


def _difference_text(differing: Differing) -> str:
    stages = f"stage{'s' if len(differing.others) > 1 else ''} {listed(list(map(str, differing.others)))}"
    return f"{differing.name} (stage {differing.used}'s is used; it differs from that of {stages})"

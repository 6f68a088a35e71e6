"""Compares the copies that parts of a checkpoint have of parameters that their stages share, such as tied embeddings.

The parts were cut alike, so that the same boxes of a tensor have the same digests, on whichever rank they are.
"""

from collections.abc import Iterator, Mapping, Sequence

from core.content import target_starts
from core.manifest import ShardRecord
from core.plan import ConversionPlan
from core.shared import Differing
from core.slices import Shape


class PartCopies:
    """Digests of the parameters `shared`: each one's stages, that whose copy is taken first."""

    def __init__(self, shared: Mapping[str, Sequence[int]]) -> None:
        self._shared = shared
        self._shards: dict[tuple[str, int], dict[tuple[Shape, Shape], tuple[str, str]]] = {
            (name, stage): {} for name, stages in shared.items() for stage in stages
        }

    def add(self, stage: int, plan: ConversionPlan, record: ShardRecord) -> None:
        """Takes in a rank of a stage's part; safe for use by many threads."""
        starts = target_starts(plan, record.rank)
        for parameter in record.parameters:
            if parameter.name in self._shared:
                box = starts[parameter.name], parameter.shape
                self._shards[parameter.name, stage][box] = parameter.dtype, parameter.digest

    def differing(self) -> Iterator[Differing]:
        """The parameters of which stages have other contents than the stage whose copy is taken."""
        for name, (taken, *others) in self._shared.items():
            different = [stage for stage in others if self._shards[name, stage] != self._shards[name, taken]]
            if different:
                yield Differing(name, taken, tuple(different))

"""Compares the copies of parameters that pipeline stages share, such as tied embeddings, between joined parts.

All parts are cut alike, so equal boxes of a tensor have equal digests, on whichever rank they are.
"""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.slices import Shape
from reshard.core.verification.tied_parameters import Differing
from reshard.core.verification.values import target_starts


class PartCopies:
    """Digests of the parameters `shared`, a map to their stages; the first stage's copy is taken."""

    def __init__(self, shared: Mapping[str, Sequence[int]]) -> None:
        self._shared = shared
        self._shards: dict[tuple[str, int], dict[tuple[Shape, Shape], tuple[str, str]]] = {
            (name, stage): {} for name, stages in shared.items() for stage in stages
        }

    def add(self, stage: int, plan: ConversionPlan, record: ShardRecord) -> None:
        """Adds the record of a rank of a stage's part; thread-safe."""
        starts = target_starts(plan, record.rank)
        for parameter in record.parameters:
            if parameter.name in self._shared:
                box = starts[parameter.name], parameter.shape
                self._shards[parameter.name, stage][box] = parameter.dtype, parameter.digest

    def differing(self) -> Iterator[Differing]:
        """The parameters whose copies differ from the one that is taken, with the stages that hold those."""
        for name, (taken, *others) in self._shared.items():
            different = [stage for stage in others if self._shards[name, stage] != self._shards[name, taken]]
            if different:
                yield Differing(name, taken, tuple(different))

"""Tied parameters of joined parts, such as shared embeddings: compares the stages' copies.

All parts have the same sharding, so equal boxes of a tensor have equal digests on any rank.
"""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.slices import Shape
from reshard.core.verification.tied_parameters import Differing
from reshard.core.verification.values import target_starts


class PartCopies:
    """Digests of tied parameters; `shared` maps them to their stages, whose first one's copy is used."""

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

"""Finite values that a cast made infinite: counted by parameter, then refused or reported."""

from collections.abc import Iterable, Mapping, Sequence

from reshard.core.changes.changes import OverflowPolicy
from reshard.core.errors import CastError
from reshard.core.plan.model import ParameterPlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import counted, listed
from reshard.core.tensor.overflow import Overflow
from reshard.core.tensor.slices import TensorSlice
from reshard.core.text.options import option

_MAX_LISTED = 6


class OverflowTally:
    """Overflows in one target rank's parameters, added block by block."""

    def __init__(self, plan: ConversionPlan, parameters: Mapping[str, ParameterPlan]) -> None:
        self.by_name: dict[str, Overflow] = {}
        self._parameters = parameters
        self._fails = plan.inputs.changes.cast_overflow is OverflowPolicy.FAIL

    def add(self, found: Iterable[tuple[str, Overflow]]) -> None:
        """Add the overflows of a block."""
        for name, overflow in found:
            known = self.by_name.get(name)
            self.by_name[name] = overflow if known is None else known.joined(overflow)

    def check(self, name: str) -> None:
        """Check a complete parameter against the overflow policy.

        Raises:
            CastError: its values overflowed, and the policy is to fail.
        """
        overflow = self.by_name.get(name)
        if overflow is None or not self._fails:
            return
        parameter = self._parameters[name]
        source = parameter.sources[0].dtype
        became = "value becomes" if overflow.count == 1 else "values become"
        raise CastError(
            f"parameter {name!r}: {overflow.count} finite {source} {became} infinite as {parameter.dtype}; the first "
            f"is at {list(overflow.first)}, the largest is {overflow.largest:.6g}. Cast it to a dtype that holds them "
            "(bfloat16 has the range of float32), leave it as it is, or let them become infinite: "
            f"{option('cast_overflow', 'allow')}. A conversion that has begun otherwise is replaced with "
            f"{option('overwrite', True)}"
        )


def total_overflows(plan: ConversionPlan, counts: Sequence[tuple[int, Mapping[str, int]]]) -> dict[str, int]:
    """Count the overflowed values of each whole parameter from the ranks' counts; replicas count once.

    Stages that hold the same parameter may shard it differently: the largest count wins.
    """
    by_rank = {rank: by_name for rank, by_name in counts if by_name}
    totals: dict[str, int] = {}
    for stage in plan.stages:
        of_boxes: dict[str, dict[TensorSlice, int]] = {}
        for rank in stage.ranks:
            if rank in by_rank:
                boxes = {parameter.name: parameter.box for parameter in plan.rank_plan(rank).parameters}
                for name, count in by_rank[rank].items():
                    of_boxes.setdefault(name, {}).setdefault(boxes[name], count)
        for name, here in of_boxes.items():
            totals[name] = max(totals.get(name, 0), sum(here.values()))
    return totals


def overflow_notes(totals: Mapping[str, int]) -> tuple[str, ...]:
    """Sentences on overflows, for a report; none without any."""
    if not totals:
        return ()
    by_count = sorted(totals.items(), key=lambda item: -item[1])
    names = listed([f"{name}: {count}" for name, count in by_count], _MAX_LISTED)
    count = counted(sum(totals.values()), "finite value")
    return (f"cast, as allowed, although too large: {count} became INFINITE ({names})",)

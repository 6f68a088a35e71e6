"""One pipeline stage converted by itself: its part of a target that all stages make together.

A stage's own strategy, whose parameters are some of the target's only, says that the others are converted elsewhere,
perhaps on other machines. What comes of it is a part: files named `…_part{stage}`, which MindSpore's
`load_segmented_checkpoints` and all commands here read together with the other stages' as one.
"""

from collections.abc import Collection, Sequence

from reshard.core.plan.names import fits_any
from reshard.core.strategy.model import Strategy

_ASIDE = ("accu_grads", "adam_m", "adam_v")
"""Names of training state, which either side may have or not, begin so: it says nothing about stages."""


def part_of_target(
    source: Strategy | None,
    target: Strategy | None,
    allow_missing: Sequence[str] = (),
    *,
    names: Collection[str] | None = None,
    left_out: Collection[str] = (),
) -> int | None:
    """The stage that a conversion is the part of; None if it makes all of the target, or is to.

    `allow_missing` are patterns of parameters that the target can do without, `left_out` are names of them; `names` are
    what the source strategy's parameters are called in the target: as in the source, unless they are given.
    """
    if source is None or source.merged or target is None or len(target.stages) > 1:
        return None
    telling = _telling(target.parameters)
    wanted = {name for name in telling if name not in left_out and not fits_any(name, allow_missing)}
    # parameters that the target may lack say nothing about the stage
    own = _telling(source.parameters if names is None else names) - (telling - wanted)
    return source.stages[0].stage if own < wanted else None


def _telling(names: Collection[str]) -> set[str]:
    return {name for name in names if not name.startswith(_ASIDE)}

"""One pipeline stage converted by itself: its part of a target that all stages make together.

A stage's own strategy, whose parameters are some of the target's only, says that the others are converted elsewhere,
perhaps on other machines. What comes of it is a part: files named `…_part{stage}`, which MindSpore's
`load_segmented_checkpoints` and all commands here read together with the other stages' as one.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from core.strategy.model import Strategy

_ASIDE = ("accu_grads", "adam_m", "adam_v")
"""Names of training state, which either side may have or not, begin so: it says nothing about stages."""


def part_of_target(source: Strategy | None, target: Strategy | None, allow_missing: Sequence[str] = ()) -> int | None:
    """The stage that a conversion is the part of; None if it makes all of the target, or is to.

    `allow_missing` are patterns of parameters that the target can do without.
    """
    if source is None or source.merged or target is None or len(target.stages) > 1:
        return None
    wanted = {name for name in _telling(target) if not any(fnmatchcase(name, pattern) for pattern in allow_missing)}
    return source.stages[0].stage if _telling(source) < wanted else None


def _telling(strategy: Strategy) -> set[str]:
    return {name for name in strategy.parameters if not name.startswith(_ASIDE)}

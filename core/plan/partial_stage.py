"""One pipeline stage converted by itself: its part of a target that all stages make together.

If the source strategy is one stage's own and has only some of the target's parameters, the others are converted
elsewhere, perhaps on other machines. The result is a part: files named `…_part{stage}`, which MindSpore's
`load_segmented_checkpoints` and all commands here read together with the other stages' parts.
"""

from collections.abc import Collection, Sequence

from reshard.core.plan.names import fits_any
from reshard.core.plan.other_stages import is_one_stage
from reshard.core.strategy.model import Strategy

_STATE_PREFIXES = ("accu_grads", "adam_m", "adam_v")
"""Prefixes of training state, which either side may lack: it does not identify stages."""


def part_of_target(
    source: Strategy | None,
    target: Strategy | None,
    allow_missing: Sequence[str] = (),
    *,
    names: Collection[str] | None = None,
    left_out: Collection[str] = (),
) -> int | None:
    """Return the stage whose part a conversion makes; None if it makes the whole target.

    `allow_missing` are patterns of parameters that the target may lack, `left_out` are names of such. `names` are the
    target names of the source strategy's parameters, by default their own.
    """
    if source is None or target is None or not is_one_stage(source, target):
        return None
    own_names = source.parameters if names is None else names
    if target.parameters.issubset(own_names):
        return None
    identifying = _identifying(target.parameters)
    wanted = identifying.difference(left_out)
    if allow_missing:
        wanted = {name for name in wanted if not fits_any(name, allow_missing)}
    # parameters that the target may lack do not identify the stage
    own = _identifying(own_names) - (identifying - wanted)
    return source.stages[0].stage if own < wanted else None


def _identifying(names: Collection[str]) -> set[str]:
    return {name for name in names if not name.startswith(_STATE_PREFIXES)}

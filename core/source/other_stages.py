"""Checks for other pipeline stages before one stage is converted by itself.

The first stage's own strategy looks like that of a checkpoint without stages, whose target must not lack parameters.
Without a sign of other stages, a part of the target could pass for all of it.
"""

from reshard.core.errors import PlanError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import listed
from reshard.core.source.opening import Source
from reshard.core.strategy.files import stages_beside
from reshard.core.text.options import option
from reshard.core.text.printing import printable


def check_part(source: Source, plan: ConversionPlan) -> None:
    """Check that a plan which leaves parameters to other stages is of one stage among several.

    Signs are the stage's number, ranks of the source beyond its own, or other stages' strategies beside its own.

    Raises:
        PlanError: there is no sign of other stages.
        StorageError: a transient failure.
    """
    request = source.request
    if plan.part is None or plan.part > 0 or source.other_ranks:
        return
    if any(number != plan.part for number in stages_beside(request.source_strategy)):
        return
    absent = plan.match.elsewhere
    url, strategy_url = printable(request.source), printable(request.source_strategy)
    raise PlanError(
        f"{url}: cannot be converted: {len(absent)} parameters of the target's strategy are in no source file "
        f"({listed(absent, 6)}). Allow it with {option('allow_missing', ['PATTERN'])} if the target can do without. If "
        f"{strategy_url} is the first of several pipeline stages' and its part of the target is wanted, put another "
        "stage's strategy beside it; to convert all stages at once, name the directory of all strategies"
    )

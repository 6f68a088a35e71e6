"""Whether there are other pipeline stages than the one that is converted by itself.

The first stage's own strategy looks like that of a checkpoint without stages. What the latter's target has beyond it
is missing, and a part of that target would be taken for all of it: that there are other stages has to be seen.
"""

from reshard.core.errors import PlanError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import listed, printable
from reshard.core.source.opening import Source
from reshard.core.strategy.files import stages_beside


def check_part(source: Source, plan: ConversionPlan) -> None:
    """Makes sure that a plan that leaves parameters to other stages is one stage's of several.

    That is seen from the stage's number, from ranks of the source that are not its own, or from other stages'
    strategies in the directory of its own.

    Raises:
        PlanError: nothing shows that there are others.
        StorageError: the storage failed in a way that may go away.
    """
    request = source.request
    if plan.part is None or plan.part > 0 or source.other_ranks:
        return
    if any(number != plan.part for number in stages_beside(request.source_strategy)):
        return
    absent = plan.match.elsewhere
    url, strategy_url = printable(request.source), printable(request.source_strategy)
    raise PlanError(
        f"{url}: cannot be converted: {len(absent)} parameters of the target's strategy are in no source "
        f"file ({listed(absent, 6)}). Allow it with --allow-missing PATTERN if the target can do without. If "
        f"{strategy_url} is the first of several pipeline stages' and its part of the target is wanted, put "
        "another stage's strategy beside it; to convert all stages at once, name the directory of all strategies"
    )

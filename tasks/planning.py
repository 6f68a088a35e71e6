"""A task that makes the plan."""

from prefect import task

from reshard.core.conversion import planning
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.source.opening import Source, TargetOutline
from reshard.tasks.policies import UNCACHED


@task(name="plan", task_run_name="plan", **UNCACHED)
def plan_conversion(request: ConversionRequest, source: Source, target: TargetOutline) -> ConversionPlan:
    """Return the plan; nothing is written.

    Raises:
        CatalogError: the source's ranks disagree about a parameter.
        PlanError: source, target and options do not fit together.
    """
    return planning.plan_conversion(request, source, target)

"""The plan, as a task."""

from prefect import task

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.conversion import planning
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.source.other_stages import check_part
from reshard.core.strategy.model import Strategy
from reshard.tasks.policies import UNCACHED


@task(name="plan", task_run_name="plan", **UNCACHED)
def plan_conversion(
    request: ConversionRequest, catalog: CheckpointCatalog, source: Strategy | None, target: Strategy | None
) -> ConversionPlan:
    """The plan; nothing is written.

    Raises:
        CatalogError: the source's ranks disagree about a parameter.
        PlanError: source, target and options do not fit together.
    """
    plan = planning.plan_conversion(request, catalog, source, target)
    check_part(request, plan)
    return plan

"""The plan of a source's whole tensors, whatever its sharding: of a conversion that is never carried out."""

from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.source.match_checks import match_warnings
from reshard.core.source.opening import Source


def plan_wholes(source: Source) -> ConversionPlan:
    """Return the plan of all whole tensors, which its one rank holds; reads only samples.

    Raises:
        CatalogError: the source's ranks disagree about a parameter.
        StrategyError: the source's contents contradict its strategy.
        PlanError: slices of a parameter are in no file.
    """
    catalog = source.catalog
    inputs = PlanInputs(catalog, source.strategy, None, catalog.format, integrated_save=source.integrated_save)
    plan = build_plan(inputs, source.shards)
    return plan.with_notes(*match_warnings(source, plan.match))

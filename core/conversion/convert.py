"""The whole conversion in this process."""

from collections.abc import Callable
from contextlib import nullcontext

from reshard.core.conversion.driver import drive
from reshard.core.conversion.executor import Threads
from reshard.core.conversion.report import ConversionReport
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.progress import Progress, SilentProgress, reporting_to
from reshard.core.runtime.retry import counting_retries, stoppable
from reshard.core.runtime.threads import rare_collections


def convert(
    request: ConversionRequest,
    progress: Progress | None = None,
    plan_of: Callable[[ConversionRequest], ConversionPlan] | None = None,
) -> ConversionReport:
    """Convert a checkpoint in this process; raises what `drive` raises. `plan_of` replaces `make_plan`."""
    with (
        reporting_to(progress or SilentProgress()),
        resources_of(request),
        counting_retries(),
        stoppable() as stop,
        rare_collections(),
    ):
        return drive(request, lambda _: nullcontext(Threads(stop)), plan_of)

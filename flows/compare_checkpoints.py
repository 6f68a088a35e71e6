"""The flow `compare-checkpoints`: whether two checkpoints, however they are cut and stored, are the same model."""

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.errors import DifferenceError
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.flows.outcome import carried_out, tail_of
from reshard.tasks.artifacts import publish_comparison
from reshard.tasks.comparison import compare_checkpoints as compare_sides
from reshard.tasks.progress import RunProgress

_MOST_TOLD = 20


def title_of(request: ComparisonRequest) -> str:
    """What a run is called."""
    return f"compare {tail_of(request.a)} with {tail_of(request.b)}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="compare-checkpoints", flow_run_name=_run_name, persist_result=False)
def compare_checkpoints(request: ComparisonRequest) -> ComparisonReport:
    """Compares two checkpoints; nothing is written.

    Raises:
        InputError: one of them cannot be read as it was named.
        DifferenceError: they are not the same model; the message says where they differ.
        ConversionError: it failed all the same.
    """
    return carried_out(title_of(request), lambda progress: _compare(request, progress))


def _compare(request: ComparisonRequest, progress: RunProgress) -> ComparisonReport:
    report = compare_sides(request)
    publish_comparison(report)
    if not report.same:
        told = [": ".join(filter(None, row)) for row in report.rows[:_MOST_TOLD]]
        more = len(report.rows) - len(told)
        raise DifferenceError("\n".join([report.verdict, *told, *([f"and {more} more"] if more else [])]))
    progress.note(report.verdict)
    return report

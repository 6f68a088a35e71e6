"""The flow `compare-checkpoints`: compares two checkpoints as models, however they are sharded and stored."""

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.errors import DifferenceError
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.text.printing import listed_lines
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.flows.outcome import carried_out, completed, tail_of
from reshard.tasks.artifacts import publish_comparison
from reshard.tasks.comparison import compare_checkpoints as compare_sides
from reshard.tasks.progress import RunProgress


def title_of(request: ComparisonRequest) -> str:
    """Name a run."""
    return f"compare {tail_of(request.a)} with {tail_of(request.b)}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="compare-checkpoints", flow_run_name=_run_name, persist_result=False)
def compare_checkpoints(request: ComparisonRequest) -> ComparisonReport:
    """Compare two checkpoints; nothing is written.

    Raises:
        InputError: a checkpoint cannot be read as named.
        DifferenceError: they are not the same model; the message lists the differences.
        ConversionError: runtime failure.
    """
    return carried_out(title_of(request), lambda progress: _compare(request, progress))


def _compare(request: ComparisonRequest, progress: RunProgress) -> ComparisonReport:
    report = compare_sides(request)
    publish_comparison(report)
    if not report.same:
        lines = listed_lines([": ".join(filter(None, row)) for row in report.rows])
        raise DifferenceError("\n".join([report.verdict, *lines]))
    progress.note(report.verdict)
    return completed(report, report.verdict)

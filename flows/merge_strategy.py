"""The flow `merge-strategy`: merges the strategy files of one job's ranks into one file."""

from prefect import flow
from prefect.runtime import flow_run

from reshard.core.conversion.merge_strategy import MergeReport, MergeRequest
from reshard.core.storage.named_options import named_storages
from reshard.core.text.printing import printable
from reshard.flows.outcome import carried_out, check_output, completed, tail_of
from reshard.tasks.artifacts import publish_merge
from reshard.tasks.progress import RunProgress
from reshard.tasks.storages import RESOLVERS
from reshard.tasks.strategies import merge_files


def title_of(request: MergeRequest) -> str:
    """Name a run."""
    return f"merge {tail_of(request.source)} -> {tail_of(request.target)}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="merge-strategy", flow_run_name=_run_name, persist_result=False)
def merge_strategy(request: MergeRequest) -> MergeReport:
    """Merge the strategy files of a job's ranks into one file.

    Raises:
        InputError: the files cannot be merged, or the target exists already.
        ConversionError: runtime failure.
    """
    return carried_out(title_of(request), lambda progress: _merge(request, progress))


def _merge(request: MergeRequest, progress: RunProgress) -> MergeReport:
    check_output(request.target)
    with named_storages([(url, request.storage) for url in (request.source, request.target)], RESOLVERS):
        report = merge_files(request)
    stages = f"{report.stages} stages of {report.devices_per_stage}"
    merged = f"{printable(report.url)}: {stages}, {report.parameters} parameters"
    progress.note(merged)
    publish_merge(report)
    return completed(report, merged)

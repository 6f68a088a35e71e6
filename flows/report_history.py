"""The flow `report-history`: keeps the page of a server's conversions up to date."""

import httpx
from prefect import flow
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from reshard.core.conversion.history import Totals
from reshard.core.errors import ConversionError
from reshard.core.request.history import HistoryRequest
from reshard.core.runtime.wording import counted
from reshard.flows.outcome import carried_out
from reshard.tasks.history_page import publish_history
from reshard.tasks.progress import RunProgress


def title_of(request: HistoryRequest) -> str:
    """Name a run."""
    return f"history of {counted(request.days, 'day')}"


def _run_name() -> str:
    return title_of(flow_run.parameters["request"])


@flow(name="report-history", flow_run_name=_run_name, persist_result=False)
def report_history(request: HistoryRequest) -> Totals:
    """Publish the conversions of the server as one page, the artifact `reshard-history`; return their totals.

    Raises:
        ConversionError: the server does not answer.
    """
    return carried_out(title_of(request), lambda progress: _report(request, progress))


def _report(request: HistoryRequest, progress: RunProgress) -> Totals:
    try:
        totals = publish_history(request.days, request.rows)
    except (httpx.HTTPError, PrefectException) as error:
        raise ConversionError(
            f"the server's conversions could not be read, or their page not stored: {error}"
        ) from error
    progress.note(f"{counted(totals.conversions, 'conversion')} in {counted(request.days, 'day')}")
    return totals

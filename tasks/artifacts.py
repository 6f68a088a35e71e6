"""What a run leaves for its readers in Prefect's UI: the plan, the summary, and a table with a row for each rank.

Each has a key of its own, so that the UI shows it with its history. An artifact that cannot be stored is a warning in
the run's log: the conversion is what counts.
"""

from collections.abc import Callable

import httpx
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from reshard.core.conversion.latest import LatestReport
from reshard.core.conversion.merge_strategy import MergeReport
from reshard.core.conversion.report import ConversionReport, PlanSummary
from reshard.core.conversion.views.picture import draw_feeds, feeds_of
from reshard.core.errors import ReshardError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.report import VerificationReport
from reshard.tasks.pages import (
    as_paragraph,
    comparison_page,
    difference_rows,
    failure_page,
    latest_page,
    merge_page,
    plan_page,
    rank_rows,
    report_page,
    verification_page,
)

PLAN_KEY = "conversion-plan"
SUMMARY_KEY = "conversion-summary"
RANKS_KEY = "conversion-ranks"
LATEST_KEY = "latest-conversion"
VERIFICATION_KEY = "verification"
MERGE_KEY = "merged-strategy"
COMPARISON_KEY = "comparison"
DIFFERENCES_KEY = "differences"
_KEYS_OF_FLOWS = {
    "convert-latest-checkpoint": LATEST_KEY,
    "verify-checkpoint": VERIFICATION_KEY,
    "merge-strategy": MERGE_KEY,
    "compare-checkpoints": COMPARISON_KEY,
}
"""Under which key a flow's runs say how they ended, if it is no conversion."""


def publish_plan(plan: ConversionPlan, summary: PlanSummary, target: str) -> None:
    """Leaves the plan for `target`, with a picture if anything is cut, before the work begins."""
    feeds = feeds_of(plan)
    picture = draw_feeds(feeds) if feeds.counts_bytes.any() else ""
    _keep_page(PLAN_KEY, plan_page(summary, target, picture))


def publish_report(report: ConversionReport) -> None:
    """Leaves the summary of a conversion, and a table of its ranks."""
    rows = rank_rows(report.ranks)
    _keep_page(SUMMARY_KEY, report_page(report))
    _keep(lambda: create_table_artifact(key=RANKS_KEY, table=rows, description="What was done for each target rank"))


def publish_failure(title: str, error: ReshardError) -> None:
    """Leaves the page of a run that failed, where its summary would be; `title` says which run."""
    key = _KEYS_OF_FLOWS.get(flow_run.flow_name or "", SUMMARY_KEY)
    _keep_page(key, failure_page(title, error))


def publish_latest(report: LatestReport) -> None:
    """Leaves what a scheduled conversion chose; the conversion's own run has its plan and its ranks."""
    _keep_page(LATEST_KEY, latest_page(report))


def publish_verification(report: VerificationReport) -> None:
    """Leaves what a check looked at that found nothing wrong."""
    _keep_page(VERIFICATION_KEY, verification_page(report))


def publish_merge(report: MergeReport) -> None:
    """Leaves what a merged strategy is for."""
    _keep_page(MERGE_KEY, merge_page(report))


def publish_comparison(report: ComparisonReport) -> None:
    """Leaves that two checkpoints are the same model, or a table of what differs; that they do fails the run."""
    if report.same:
        _keep_page(COMPARISON_KEY, comparison_page(report))
    else:
        rows = difference_rows(report.rows)
        _keep(lambda: create_table_artifact(key=DIFFERENCES_KEY, table=rows, description=as_paragraph(report.verdict)))


def _keep_page(key: str, markdown: str) -> None:
    heading = markdown.partition("\n")[0].removeprefix("# ")  # stands on the card in the list of a run's artifacts
    _keep(lambda: create_markdown_artifact(key=key, markdown=markdown, description=heading))


def _keep(create: Callable[[], object]) -> None:
    try:
        create()
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("an artifact could not be stored: %s", error)

"""Artifacts of a run in Prefect's UI: the plan, the summary, and a table with a row for each rank.

Each artifact has its own key, so that the UI shows its history. An artifact that cannot be stored is a warning in the
run's log, and does not fail the conversion.
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
"""Keys of the summaries of runs that are not conversions, by flow."""


def publish_plan(plan: ConversionPlan, summary: PlanSummary, target: str) -> None:
    """Publish the plan for `target` before the work begins, with a picture if parameters are sharded."""
    feeds = feeds_of(plan)
    picture = draw_feeds(feeds) if feeds.counts_bytes.any() else ""
    _keep_page(PLAN_KEY, plan_page(summary, target, picture))


def publish_report(report: ConversionReport) -> None:
    """Publish the summary of a conversion, and a table of its ranks."""
    rows = rank_rows(report.ranks)
    _keep_page(SUMMARY_KEY, report_page(report))
    _keep(lambda: create_table_artifact(key=RANKS_KEY, table=rows, description="What was done for each target rank"))


def publish_failure(title: str, error: ReshardError) -> None:
    """Publish the page of a failed run in place of its summary; `title` names the run."""
    key = _KEYS_OF_FLOWS.get(flow_run.flow_name or "", SUMMARY_KEY)
    _keep_page(key, failure_page(title, error))


def publish_latest(report: LatestReport) -> None:
    """Publish the choice of a scheduled conversion; the conversion's own run has its plan and its ranks."""
    _keep_page(LATEST_KEY, latest_page(report))


def publish_verification(report: VerificationReport) -> None:
    """Publish the summary of a successful check."""
    _keep_page(VERIFICATION_KEY, verification_page(report))


def publish_merge(report: MergeReport) -> None:
    """Publish the summary of a merged strategy."""
    _keep_page(MERGE_KEY, merge_page(report))


def publish_comparison(report: ComparisonReport) -> None:
    """Publish that two checkpoints hold the same model, or a table of differences, which fail the run."""
    if report.same:
        _keep_page(COMPARISON_KEY, comparison_page(report))
    else:
        rows = difference_rows(report.rows)
        _keep(lambda: create_table_artifact(key=DIFFERENCES_KEY, table=rows, description=as_paragraph(report.verdict)))


def _keep_page(key: str, markdown: str) -> None:
    heading = markdown.partition("\n")[0].removeprefix("# ")  # shown on the artifact's card
    _keep(lambda: create_markdown_artifact(key=key, markdown=markdown, description=heading))


def _keep(create: Callable[[], object]) -> None:
    try:
        create()
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("an artifact could not be stored: %s", error)

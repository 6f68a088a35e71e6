"""What a run leaves for its readers in Prefect's UI: the plan, the summary, and a table with a row for each rank.

Each has a key of its own, so that the UI shows it with its history. A manager reads a page's head, an engineer its
tables. An artifact that cannot be stored is a warning in the run's log: the conversion is what counts.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from core.errors import ReshardError
from core.report import ConversionReport, PlanSummary, RankReport
from core.request import VerifyLevel

PLAN_KEY = "conversion-plan"
SUMMARY_KEY = "conversion-summary"
RANKS_KEY = "conversion-ranks"

LARGEST_TABLE_ROWS = 5000
"""The UI's tables stay quick up to here."""
_LARGEST_MARKDOWN_ROWS = 100
_LARGEST_MESSAGE_CHARACTERS = 100_000

_VERIFIED = {
    VerifyLevel.NONE: "Not verified.",
    VerifyLevel.STRUCTURE: "Verified: every file's parameters, dtypes and shapes.",
    VerifyLevel.CHECKSUM: "Verified: every byte was read back and is what was written.",
}


def publish_plan(summary: PlanSummary) -> None:
    """Leaves the plan, before the work begins."""
    _keep(lambda: create_markdown_artifact(key=PLAN_KEY, markdown=plan_page(summary), description="What is to be done"))


def publish_report(report: ConversionReport) -> None:
    """Leaves the summary of a conversion, and a table of its ranks."""
    page, rows = report_page(report), rank_rows(report.ranks)
    _keep(lambda: create_markdown_artifact(key=SUMMARY_KEY, markdown=page, description="What was done"))
    _keep(lambda: create_table_artifact(key=RANKS_KEY, table=rows, description="What was done for each target rank"))


def publish_failure(title: str, error: ReshardError) -> None:
    """Leaves the summary of a conversion that failed; `title` says which."""
    page = failure_page(title, error)
    _keep(lambda: create_markdown_artifact(key=SUMMARY_KEY, markdown=page, description="What failed"))


def plan_page(summary: PlanSummary) -> str:
    """The page of a plan."""
    copies = sum(rank.copy_of is not None for rank in summary.ranks)
    facts = {
        "Source": _code(summary.source),
        "Step": summary.step or "-",
        "Ranks": f"{summary.source_world_size} → {summary.target_world_size}"
        + (f", {copies} of them copies of another" if copies else ""),
        "Parameters": f"{summary.parameters} cut anew, in {summary.layout_classes} ways"
        + (f"; {len(summary.carried)} copied to every rank" if summary.carried else ""),
        "Format": summary.format,
        "Needed of the source": format_bytes(summary.read_bytes),
        "To write": format_bytes(summary.written_bytes),
        "Workers": f"{summary.workers}, with {format_bytes(summary.buffer_bytes)} of buffers",
    }
    head = (
        f"# Plan: {summary.source_world_size} → {summary.target_world_size} ranks\n\n"
        f"{format_bytes(summary.written_bytes)} will be written."
    )
    rows = (
        (rank.rank, _code(rank.file), format_bytes(rank.shard_bytes), _listed(rank.source_ranks), _copy(rank.copy_of))
        for rank in summary.ranks[:_LARGEST_MARKDOWN_ROWS]
    )
    ranks = _table(("Rank", "File", "Shards", "Source ranks", "Copy of"), rows)
    return _page(head, _facts(facts), _notes(summary.notes), "## Target ranks", ranks, _rest(len(summary.ranks)))


def report_page(report: ConversionReport) -> str:
    """The page of a finished conversion."""
    rate = format_bytes(report.written_bytes / report.seconds) if report.seconds else "-"
    missing = f"**Not complete yet: target ranks {_listed(report.missing_ranks)} are still to be converted.**"
    head = (
        f"# {'Converted' if report.committed else 'Converted in part'}: {len(report.ranks)} ranks\n\n"
        f"{format_bytes(report.written_bytes)} written in {report.seconds:.1f} s ({rate}/s). "
        f"{_VERIFIED[report.verified]}"
    )
    facts = {
        "Source": _code(report.source),
        "Target": _code(report.target),
        "Step": report.step or "-",
        "Read": format_bytes(report.read_bytes),
        "Read to check CRCs": format_bytes(report.crc_bytes),
        "Written": format_bytes(report.written_bytes),
        "Read back": format_bytes(report.verified_bytes),
        "Repeated requests": str(report.retried_requests),
        "Verification": str(report.verified),
        "Dropped": str(len(report.dropped)),
        "Missing, as allowed": str(len(report.excused)),
        "Plan": _code(report.identity),
    }
    columns = ("Rank", "Outcome", "File", "Size", "Read", "Seconds", "Verified")
    rows = (
        (
            rank.rank,
            rank.outcome,
            _code(rank.file),
            format_bytes(rank.size_bytes),
            format_bytes(rank.read_bytes),
            f"{rank.seconds:.2f}",
            rank.verified,
        )
        for rank in report.ranks[:_LARGEST_MARKDOWN_ROWS]
    )
    return _page(
        head,
        "" if report.committed else missing,
        _facts(facts),
        _notes(report.notes),
        "## Target ranks",
        _table(columns, rows),
        _rest(len(report.ranks), f"; the artifact {RANKS_KEY} has them"),
    )


def failure_page(title: str, error: ReshardError) -> str:
    """The page of a conversion that failed."""
    message = str(error)[:_LARGEST_MESSAGE_CHARACTERS].replace("```", "'''")
    return _page(f"# Failed: {title}", f"{type(error).__name__}:", f"```\n{message}\n```")


def rank_rows(ranks: Sequence[RankReport]) -> list[dict[str, Any]]:
    """The table of the ranks: plain numbers, to be sorted and searched."""
    return [
        {
            "rank": rank.rank,
            "outcome": str(rank.outcome),
            "file": rank.file,
            "size_bytes": rank.size_bytes,
            "read_bytes": rank.read_bytes,
            "seconds": rank.seconds,
            "source_ranks": _listed(rank.source_ranks),
            "verified": str(rank.verified),
        }
        for rank in ranks[:LARGEST_TABLE_ROWS]
    ]


def format_bytes(count: float) -> str:
    """A number of bytes for a reader: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _keep(create: Callable[[], object]) -> None:
    try:
        create()
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("an artifact could not be stored: %s", error)


def _page(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(facts: dict[str, str]) -> str:
    return _table(("", ""), facts.items())


def _notes(notes: Sequence[str]) -> str:
    return "\n".join(f"- {note}" for note in notes)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _rest(count: int, where: str = "") -> str:
    hidden = count - _LARGEST_MARKDOWN_ROWS
    return f"… and {hidden} more{where}." if hidden > 0 else ""


def _code(text: str) -> str:
    return f"`{text}`"


def _copy(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}"


def _listed(ranks: Sequence[int]) -> str:
    told = ", ".join(map(str, ranks[:16]))
    return told + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")

"""The pages that a run leaves: what stands on them, and that they stay small."""

from core.budget import Budget
from core.convert import convert, make_plan
from core.errors import ConversionError
from core.report import ConversionReport, summarize_plan
from tasks.artifacts import LARGEST_TABLE_ROWS, failure_page, format_bytes, plan_page, rank_rows, report_page
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


def report_of(tmp_path) -> ConversionReport:
    return convert(FOUR_TO_THREE.request(tmp_path / "out"))


def test_the_plan_tells_what_will_be_done(tmp_path) -> None:
    plan = make_plan(FOUR_TO_THREE.request(tmp_path / "out"))
    page = plan_page(summarize_plan(plan, Budget(2, 2**21, 64), [(0,)], 1))
    assert page.startswith("# Plan: 4 → 3 ranks\n\n")
    assert f"| To write | {format_bytes(plan.written_bytes)} |" in page
    assert "| Workers | 2, with 4.0 MiB of buffers |" in page
    assert "| 2 | `rank_2/checkpoint_2.ckpt` |" in page


def test_the_summary_begins_with_what_a_manager_asks(tmp_path) -> None:
    report = report_of(tmp_path)
    head = report_page(report).split("\n\n")[:2]
    assert head[0] == "# Converted: 3 ranks"
    assert format_bytes(report.written_bytes) in head[1]
    assert "every byte was read back" in head[1]


def test_an_incomplete_target_is_told_as_such(tmp_path) -> None:
    page = report_page(convert(FOUR_TO_THREE.request(tmp_path / "out", ranks="1")))
    assert page.startswith("# Converted in part: 1 ranks")
    assert "target ranks 0, 2 are still to be converted" in page


def test_the_table_holds_plain_numbers(tmp_path) -> None:
    report = report_of(tmp_path)
    row = rank_rows(report.ranks)[1]
    assert row["rank"] == 1
    assert row["size_bytes"] == report.ranks[1].size_bytes
    assert row["verified"] == "checksum"


def test_thousands_of_ranks_make_no_endless_page(tmp_path) -> None:
    report = report_of(tmp_path)
    many = report.model_copy(update={"ranks": report.ranks * 4000})
    assert len(rank_rows(many.ranks)) == LARGEST_TABLE_ROWS
    page = report_page(many)
    assert len(page) < 20_000
    assert "… and 11900 more" in page


def test_a_failure_shows_its_message_as_it_is() -> None:
    page = failure_page("convert a -> b", ConversionError("2 of 3 target ranks failed\n  rank_1: a | ```pipe```"))
    assert "```\n2 of 3 target ranks failed\n  rank_1: a | '''pipe'''\n```" in page
    assert page.startswith("# Failed: convert a -> b\n\nConversionError:")
    long = failure_page("convert a -> b", ConversionError("x" * 10**6))
    assert len(long) < 200_000


def test_a_bar_in_a_name_does_not_break_a_table(tmp_path) -> None:
    report = report_of(tmp_path)
    page = report_page(report.model_copy(update={"target": "/a|b"}))
    assert "| Target | `/a\\|b` |" in page

"""The pages that a run leaves: their content, and that they stay small."""

import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import LatestOutcome, LatestReport
from reshard.core.conversion.merge_strategy import MergeReport
from reshard.core.conversion.planning import make_plan, summarize
from reshard.core.conversion.report import ConversionReport, summarize_plan
from reshard.core.errors import (
    ConversionError,
    DifferenceError,
    InputError,
    ReshardError,
    StorageError,
    TargetBusyError,
    TargetError,
    VerificationError,
)
from reshard.core.request.comparison import build_comparison
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.wording import shortened_in_middle, size_text
from reshard.core.source.damage import Substitute
from reshard.core.storage.publishing import check_room
from reshard.core.storage.urls import parse_url
from reshard.core.text.options import spelled_by
from reshard.core.text.printing import printable, printable_lines
from reshard.core.verification.compare import compare_checkpoints
from reshard.core.verification.published import verify_target
from reshard.core.verification.report import VerificationReport
from reshard.tasks.pages import (
    MAX_TABLE_ROWS,
    approval_page,
    as_paragraph,
    comparison_page,
    difference_rows,
    failure_page,
    latest_page,
    merge_page,
    plan_page,
    question_text,
    rank_rows,
    report_page,
    report_text,
    verification_page,
)
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)
UNTIL = datetime(2026, 11, 29, 17, 45, 3, 999, tzinfo=UTC)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def report(target: Path) -> ConversionReport:
    return convert(FOUR_TO_THREE.request(target))


def test_the_plan_tells_what_will_be_done_and_shows_it(target: Path) -> None:
    plan = make_plan(FOUR_TO_THREE.request(target))
    page = plan_page(summarize_plan(plan, Budget(2, 2**21, 64), [(0,)], 1), str(target), "<svg/>")
    assert page.startswith("# Plan: 4 → 3 ranks\n\n")
    assert f"| Target | `{target}` |" in page
    assert f"| To write | {size_text(plan.written_bytes)} |" in page
    assert "| Workers | 2, with 4.0 MiB of buffers |" in page
    assert "| 2 | `rank_2/checkpoint_2.ckpt` |" in page
    assert "](data:image/svg+xml;base64,PHN2Zy8+)" in page


def test_the_pages_of_a_unified_target(target: Path) -> None:
    request = FOUR_TO_THREE.request(target, target_strategy="", layout="unified", max_shard_size="100KB")
    page = plan_page(summarize_plan(make_plan(request), Budget(2, 2**21, 64), [(0,)], 1), str(target), "")
    assert page.startswith("# Plan: 4 ranks → 3 files\n\n")
    assert "| Parameters | 7 made whole |" in page
    assert "## Target files\n\n| Number | File |" in page
    assert report_page(convert(request)).startswith("# Converted: 4 ranks → 3 files\n")
    assert "all" in verification_page(verify_target(str(target), VerifyLevel.STRUCTURE)).lower()


def test_the_plan_shows_what_changes_do(target: Path) -> None:
    changes = {"exclude": ["adam_m.*"], "rename": ["layers.0.weight_0=first"]}
    request = FOUR_TO_THREE.request(target, target_strategy="", **changes)
    summary = summarize_plan(make_plan(request), Budget(2, 2**21, 64), [(0,)], 1)
    page = plan_page(summary, str(target), "")
    assert "## What is changed\n\n| Parameter | Made from | How | Dtype | Shape |" in page
    assert "| `first` | `layers.0.weight_0` | renamed |" in page
    assert "| `adam_m.layers.4.weight_4` | `exclude adam_m.*` |" in page
    assert "What is changed" not in plan_page(
        summarize_plan(make_plan(FOUR_TO_THREE.request(target)), Budget(2, 2**21, 64), [(0,)], 1), str(target), ""
    )


def test_what_is_to_be_approved_says_what_is_written_read_dropped_and_replaced(target: Path) -> None:
    request = FOUR_TO_THREE.request(target, exclude=["adam_m.*"], ranks="0-1")
    summary = summarize(request, make_plan(request))
    traffic = summary.traffic
    assert traffic is not None
    page = approval_page(summary, request, UNTIL, replaces=False, changed=False)
    assert page.startswith(f"**{size_text(summary.written_bytes)} to write** into `{target}`: 4 → 3 ranks, ckpt.")
    assert f"{size_text(summary.read_bytes)} to read from `" in page
    assert "Only target ranks 0-1 are converted." in page
    assert "adam\\_m.layers.4.weight_4" in page or "adam_m.layers.4.weight_4" in page
    moved = size_text(sum(2 * rank.shard_bytes for rank in summary.ranks[:2]) + traffic.read_bytes)
    assert re.search(rf"At 1\.0 GiB/s, {moved} take \d.*: read, written and read back\.", page)
    assert "replaced" not in page
    assert "|" not in page
    needed, free = size_text(summary.needed_bytes or 0), size_text(summary.free_bytes or 0)
    assert f"\n\nRoom at the target: {needed} needed, {free} free.\n\n" in page
    assert "The run waits until 2026-11-29 17:45 UTC, then fails." in page
    page = approval_page(summary, request, UNTIL, replaces=True, changed=True)
    assert page.startswith(
        "**Source, strategies or target have changed since you were last asked. This is the new plan.**"
    )
    assert "\n\nThe checkpoint that is at the target now **will be replaced**.\n\n" in page


def test_the_question_in_plain_text_says_what_is_asked_where_and_until_when(target: Path) -> None:
    request = FOUR_TO_THREE.request(target)
    summary = summarize(request, make_plan(request))
    size, free = size_text(summary.written_bytes), size_text(summary.free_bytes or 0)
    assert question_text(summary, request, UNTIL, replaces=True) == (
        f"Convert {request.source} to {target}? 4 → 3 ranks, ckpt, {size} to write. "
        "The checkpoint that is at the target now will be replaced. "
        f"Room at the target: {size_text(summary.needed_bytes or 0)} needed, {free} free. "
        "Answer on the run's page, menu ⋮, Resume: convert or refuse. "
        "The run waits until 2026-11-29 17:45 UTC, then fails."
    )
    assert "replaced" not in question_text(summary, request, UNTIL, replaces=False)
    full = summary.model_copy(update={"needed_bytes": 3 * 2**20, "free_bytes": 2**20})
    short = "The target has no room: 3.0 MiB are needed, 1.0 MiB are free"
    text = question_text(full, request, UNTIL, replaces=False)
    assert f" to write. {short}. Free some space before you approve: the run would fail at once. Answer " in text
    assert f"**{short}.**" in approval_page(full, request, UNTIL, replaces=False, changed=False)
    remote = summary.model_copy(update={"free_bytes": None})
    assert "oom" not in question_text(remote, request, UNTIL, replaces=False)


def test_a_plan_that_cuts_nothing_has_no_picture(target: Path) -> None:
    plan = make_plan(FOUR_TO_THREE.request(target))
    assert "feed" not in plan_page(summarize_plan(plan, Budget(2, 2**21, 64), [(0,)], 1), str(target), "")


def test_the_summary_begins_with_what_a_manager_asks(report: ConversionReport) -> None:
    head = report_page(report).split("\n\n")[:2]
    assert head[0] == "# Converted: 4 → 3 ranks"
    assert f"**{size_text(report.written_bytes)}** written in" in head[1]
    assert "every byte was read back" in head[1]


def test_a_resumed_run_says_what_was_there(target: Path, report: ConversionReport) -> None:
    assert report.committed
    page = report_page(convert(FOUR_TO_THREE.request(target)))
    assert page.startswith("# Converted already: 4 → 3 ranks\n\nNothing was left to do: 3 ranks (")
    assert "0 B" not in page
    assert ": 3 from an earlier run |" in page


def test_a_partly_resumed_run_says_what_was_there(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, ranks="1"))
    page = report_page(convert(FOUR_TO_THREE.request(target)))
    assert "1 rank (" in page
    assert "had been done by an earlier run" in page
    assert ": 2 written, 1 from an earlier run |" in page


def test_an_incomplete_target_is_told_as_such(target: Path) -> None:
    page = report_page(convert(FOUR_TO_THREE.request(target, ranks="1")))
    assert page.startswith("# Converted in part: 1 of 3 ranks")
    assert "target ranks 0,2 are still to be converted" in page


def test_the_state_of_a_run_says_in_plain_text_what_was_done(target: Path, report: ConversionReport) -> None:
    written = size_text(report.written_bytes)
    assert report_text(report).startswith(f"Converted: 4 → 3 ranks. {written} written in ")
    assert "*" not in report_text(report)
    assert report_text(convert(FOUR_TO_THREE.request(target))).startswith(
        "Converted already: 4 → 3 ranks. Nothing was left to do: 3 ranks ("
    )


def test_the_table_has_a_row_for_each_rank_that_fits_the_page(target: Path, report: ConversionReport) -> None:
    row = rank_rows(report.ranks)[1]
    assert list(row) == ["rank", "outcome", "sources", "size", "seconds", "file"]
    assert row["rank"] == 1
    assert row["size"] == size_text(report.ranks[1].size_bytes)
    assert row["file"] == "rank_1/checkpoint_1.ckpt"
    long = report.ranks[1].model_copy(update={"file": f"rank_1/{'x' * 60}_1.ckpt"})
    assert rank_rows([long])[0]["file"] == f"rank_1/{'x' * 13}…{'x' * 12}_1.ckpt"


def test_thousands_of_ranks_make_no_endless_page(target: Path, report: ConversionReport) -> None:
    many = report.model_copy(update={"ranks": report.ranks * 4000})
    rows = rank_rows(many.ranks)
    assert len(rows) == MAX_TABLE_ROWS + 1
    assert rows[-1].keys() == rows[0].keys()
    assert rows[-1]["rank"] == f"and {len(many.ranks) - MAX_TABLE_ROWS} more"
    scattered = report.ranks[0].model_copy(update={"source_ranks": (*range(64), *range(100, 4000, 2))})
    [row] = rank_rows([scattered])
    assert row["sources"] == f"0-63,{','.join(map(str, range(100, 130, 2)))} and 1935 more"
    assert len(report_page(many)) < 20_000
    plan = make_plan(FOUR_TO_THREE.request(target))
    summary = summarize_plan(plan, Budget(2, 2**21, 64), [(0,)], 1)
    page = plan_page(summary.model_copy(update={"ranks": summary.ranks * 4000}), str(target), "")
    assert len(page) < 20_000
    assert "… and 11900 more" in page


def test_a_failure_shows_its_message_as_it_is() -> None:
    message = "2 of 3 target ranks failed\n  rank_1: a | ```pipe```\n\nrerun"
    page = failure_page("convert a -> b", ConversionError(message))
    shown = "2 of 3 target ranks failed\n\n- rank_1: a \\| \\`\\`\\`pipe\\`\\`\\`\n\nrerun\n\n"
    assert page.startswith(f"# Failed: convert a -> b\n\n{shown}## What to do next\n")
    long = failure_page("convert a -> b", ConversionError("x" * 10**6))
    assert len(long) < 200_000


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (InputError("no"), "start a new run"),
        (TargetError("no"), "start a new run"),
        (TargetBusyError("no"), "When it has ended, retry this run"),
        (VerificationError("no"), "writes the others again"),
        (ConversionError("no"), "Fix what the message says, then retry this run"),
    ],
)
def test_a_failure_says_what_to_do_next(error: ReshardError, advice: str) -> None:
    assert advice in failure_page("convert a -> b", error).partition("## What to do next")[2]


def test_a_failure_says_what_it_left_behind() -> None:
    error = ConversionError("no")
    error.add_note("left in /data/out.reshard-partial: 1.0 MiB")
    page = failure_page("convert a -> b", error)
    assert "no\n\nleft in /data/out.reshard-partial: 1.0 MiB\n\n## What to do next" in page


def test_who_has_no_room_is_told_to_make_room(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as raised:
        check_room(parse_url(str(tmp_path)), 2**80)
    assert "Free the missing space, then retry" in failure_page("convert a -> b", raised.value)


def test_a_check_and_a_merge_say_what_they_found() -> None:
    checked = VerificationReport(
        target="/data/x", level=VerifyLevel.CHECKSUM, ranks=3, read_bytes=2048, seconds=61, problems=()
    )
    page = verification_page(checked)
    assert page.startswith("# All is as written: 3 ranks\n\nEvery byte was read")
    assert "| Took | 1 min 01 s |" in page
    merged = MergeReport(url="/data/s.json", stages=2, devices_per_stage=4, parameters=7)
    assert merge_page(merged).startswith("# Merged: a strategy for 8 ranks\n")


def test_a_dry_run_with_nothing_new_removes_nothing() -> None:
    """Retention may remove older conversions although the newest step is converted already."""
    outcome = LatestOutcome.NOTHING_NEW
    report = LatestReport(outcome=outcome, source="a", step="1_2", target="b/1_2", removed=("1_1",), dry_run=True)
    assert "Would be removed" in latest_page(report)
    assert "Would be removed" not in latest_page(report.model_copy(update={"dry_run": False}))


def test_a_bar_in_a_name_does_not_break_a_table(report: ConversionReport) -> None:
    page = report_page(report.model_copy(update={"target": "/a|b"}))
    assert "| Target | `/a\\|b` |" in page


def test_what_stood_in_for_lost_ranks_is_said_first(report: ConversionReport) -> None:
    lost = Substitute(rank=3, why="it ends at byte 5", stand_in=7, slices=412)
    recovered = report.model_copy(update={"stand_ins": (lost,)})
    head = "**Recovered: rank_3 had no usable file: 412 slices taken from rank_7 instead.**\n\n| Lost rank | Why |"
    assert head in report_page(recovered)
    assert "\n| 3 | it ends at byte 5 | 7 | 412 |" in report_page(recovered)
    assert "Recovered" not in report_page(report)


def test_the_page_of_the_same_model_names_both_sides() -> None:
    source, strategy = FOUR_TO_THREE.directory / "src", str(FOUR_TO_THREE.directory / "src_strategy.ckpt")
    request = build_comparison(a=str(source), b=str(FOUR_TO_THREE.directory / "full"), strategy_a=strategy)
    page = comparison_page(compare_checkpoints(request))
    assert page.startswith("# The same model\n\nEvery copy of every slice was read")
    assert f"| A | `{source}` |" in page
    assert "| Parameters | 7, 205.5 KiB |" in page


def test_the_table_of_differences_has_an_end() -> None:
    rows = difference_rows([("w", "content", "1 of 2 elements")] * (MAX_TABLE_ROWS + 2))
    assert rows[0] == {"parameter": "w", "differs in": "content", "what": "1 of 2 elements"}
    assert rows[-1]["parameter"] == "and 2 more"
    assert len(rows) == MAX_TABLE_ROWS + 1


def test_what_to_do_about_a_difference_is_no_advice_to_convert_again() -> None:
    page = failure_page("compare a with b", DifferenceError("NOT the same"))
    assert "such as optimizer state, use 'select', 'include', 'exclude', 'ignore_dtype'." in page
    with spelled_by(lambda option: f"'{option.name.capitalize().replace('_', ' ')}'"):
        page = failure_page("compare a with b", DifferenceError("NOT the same"))
    assert "such as optimizer state, use 'Select', 'Include', 'Exclude', 'Ignore dtype'." in page


HOSTILE = "a\x1b[2J\n![x](http://evil)|<b>_x_ **y** `z` [l](http://evil) &lt; <http://evil> \\| ``` \udc80.ckpt"


def is_shown(page: str) -> str:
    """The text that a page shows; checks that it has no foreign links, images or HTML."""
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(page)
    assert not re.findall(r"<(a|img|b|em|h1|del)\b(?! id)", html.replace("<h1>", "", 1)), html
    assert not re.findall(r"(?<!\\)http:(?!\\)//", re.sub(r"(`+).*?\1", "", page, flags=re.DOTALL)), page
    assert all(line.isprintable() for line in page.split("\n"))
    return unescape(re.sub(r"<[^>]*>", "", html))


def test_names_are_shown_as_text_and_never_as_markdown(report: ConversionReport) -> None:
    text = printable(HOSTILE)
    hostile = {"source": HOSTILE, "target": HOSTILE, "notes": (HOSTILE, "# no head")}
    page = report_page(report.model_copy(update=hostile))
    shown = is_shown(page)
    assert f"\n{text}\n" in shown
    assert "# no head" in shown
    failure = is_shown(failure_page(HOSTILE, InputError(HOSTILE)))
    assert all(line in failure for line in printable_lines(HOSTILE).split("\n"))
    stand_in = Substitute(rank=3, why=HOSTILE, stand_in=7, slices=4)
    assert text in is_shown(report_page(report.model_copy(update={"stand_ins": (stand_in,)})))
    assert len(re.findall(r"^\| Source \|", page, re.MULTILINE)) == 1
    merged = MergeReport(url=HOSTILE, stages=2, devices_per_stage=4, parameters=7)
    assert "reshard inspect" in is_shown(merge_page(merged))


@pytest.mark.parametrize("text", ["# a", "- a", "1. a", "12) a", "> a", "+ a", "=== a", "1.5 GiB", "0-3", "adam_*"])
def test_what_begins_a_line_begins_no_heading_and_no_list(text: str) -> None:
    assert is_shown(as_paragraph(text)) == f"{text}\n"
    assert MarkdownIt().render(as_paragraph(text)).startswith("<p>")


def test_cells_of_table_artifacts_are_no_markdown_either(report: ConversionReport) -> None:
    (row,) = difference_rows([(HOSTILE, "content", "# no head")])
    assert printable(HOSTILE) in is_shown(row["parameter"])
    assert "# no head" in is_shown(row["what"])
    rank = report.ranks[0].model_copy(update={"file": HOSTILE})
    assert shortened_in_middle(printable(HOSTILE), 40) in is_shown(rank_rows([rank])[0]["file"])


def test_a_page_repeats_no_secret(report: ConversionReport) -> None:
    url = "https://h/x?token=hunter2"
    page = report_page(report.model_copy(update={"source": url, "notes": (url,)}))
    assert "hunter2" not in page + failure_page(url, InputError(url))

"""Entries of conversions: which are wanted, their order and sums, and what of others' texts is kept."""

from datetime import UTC, date, datetime, timedelta

import pytest

from reshard.core.conversion.history import (
    ConversionState,
    HistoryEntry,
    HistoryFilter,
    MemoryBasis,
    cost_text,
    make_history,
    parse_since,
    totals_by_day,
    totals_by_week,
)
from reshard.core.errors import InputError
from reshard.core.text.foreign import MAX_TEXT_CHARACTERS, shown_text

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)  # a Thursday


def entry(state: ConversionState = ConversionState.COMMITTED, **fields: object) -> HistoryEntry:
    return HistoryEntry.model_validate({"state": state, "begun": NOW} | fields)


def test_the_cost_is_memory_times_time_and_unknown_without_either() -> None:
    assert entry(memory_bytes=4 * 10**9, seconds=1800).cost_gb_hours == 2
    assert entry(memory_bytes=4 * 10**9).cost_gb_hours is None
    assert entry(seconds=1800).cost_gb_hours is None
    assert entry(memory_bytes=10**9, memory_basis=MemoryBasis.PEAK, seconds=0).cost_gb_hours == 0
    assert '"cost_gb_hours":2.0' in entry(memory_bytes=4 * 10**9, seconds=1800).model_dump_json()


@pytest.mark.parametrize(
    ("cost", "text"), [(0, "0.000"), (1e-9, "<0.001"), (0.0014, "0.001"), (2, "2.000"), (1234.5, "1,234")]
)
def test_costs_have_three_digits_where_they_tell_something(cost: float, text: str) -> None:
    assert cost_text(cost) == text


def test_those_that_began_last_come_first_and_what_is_cut_is_said() -> None:
    hour = timedelta(hours=1)
    early, late = entry(target="/early", begun=NOW - hour), entry(target="/late")
    queued = entry(ConversionState.QUEUED, target="/queued", begun=None, queued=NOW + hour)
    unknown = entry(ConversionState.UNREADABLE, target="/unknown", begun=None)
    history = make_history([early, unknown, late, queued], 3)
    assert [each.target for each in history.entries] == ["/queued", "/late", "/early"]
    assert history.is_cut
    assert not make_history([early, late], 2).is_cut


def test_wanted_is_what_matches_everything_that_is_asked_for() -> None:
    one = entry(ConversionState.FAILED, source="s3://models/llama/run", target="/out/3_1200")
    assert HistoryFilter().matches(one)
    assert HistoryFilter(since=NOW).matches(one)
    assert not HistoryFilter(since=NOW + timedelta(seconds=1)).matches(one)
    assert HistoryFilter(states={ConversionState.FAILED, ConversionState.CRASHED}).matches(one)
    assert not HistoryFilter(states={ConversionState.COMMITTED}).matches(one)
    for pattern in ("llama", "s3://*/run", "s3://models/llama/ru?"):
        assert HistoryFilter(source=pattern).matches(one), pattern
    for pattern in ("qwen", "*/llama", "LLAMA"):
        assert not HistoryFilter(source=pattern).matches(one), pattern
    assert not HistoryFilter(source="llama", target="/other").matches(one)
    assert not HistoryFilter(source="llama").matches(entry())


def test_sums_are_over_what_is_known() -> None:
    entries = [
        entry(written_bytes=5, read_bytes=7, seconds=3600, memory_bytes=10**9),
        entry(ConversionState.FAILED, seconds=1800),
        entry(ConversionState.CRASHED, begun=NOW - timedelta(days=1), written_bytes=1),
    ]
    totals = make_history(entries).totals
    assert (totals.conversions, totals.failed, totals.written_bytes, totals.read_bytes) == (3, 2, 6, 7)
    assert (totals.seconds, totals.cost_gb_hours) == (5400, 1)
    assert totals.states == {ConversionState.COMMITTED: 1, ConversionState.FAILED: 1, ConversionState.CRASHED: 1}


def test_sums_by_day_and_by_week_have_the_latest_first() -> None:
    days = (0, 0, 3, 4, 11)  # back from a Thursday: this week's Monday is 3 days before
    entries = [entry(begun=NOW - timedelta(days=back), written_bytes=1) for back in days]
    assert [(each.begin, each.conversions) for each in totals_by_day(entries)] == [
        (date(2026, 11, 26), 2),
        (date(2026, 11, 23), 1),
        (date(2026, 11, 22), 1),
        (date(2026, 11, 15), 1),
    ]
    assert [(each.begin, each.conversions) for each in totals_by_week(entries)] == [
        (date(2026, 11, 23), 3),
        (date(2026, 11, 16), 1),
        (date(2026, 11, 9), 1),
    ]
    assert totals_by_week([entry(ConversionState.UNREADABLE, begun=None)])[0].conversions == 1


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("90m", NOW - timedelta(minutes=90)),
        ("12h", NOW - timedelta(hours=12)),
        ("7d", NOW - timedelta(days=7)),
        (" 4w ", NOW - timedelta(weeks=4)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20 06:30", datetime(2026, 11, 20, 6, 30, tzinfo=UTC)),
        ("2026-11-20T06:30+02:00", datetime(2026, 11, 20, 4, 30, tzinfo=UTC)),
        ("999999999w", datetime.min.replace(tzinfo=UTC)),
        ("999999d", datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_a_begin_is_a_time_before_now_or_a_date(text: str, begin: datetime) -> None:
    assert parse_since(text, NOW) == begin


@pytest.mark.parametrize("text", ["yesterday", "7", "7 d", "-7d", "7y", "2026-13-01", "1\n"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="is not a time; give one before now, such as 12h, 7d or 4w, or a date"):
        parse_since(text, NOW)


def test_texts_of_others_are_one_short_line_without_secrets() -> None:
    assert shown_text("a\n\x1b[31mb") == r"a\n\x1b[31mb"
    assert "hunter2" not in shown_text("s3://user:hunter2@bucket/key")
    assert len(shown_text("\x00" * 10**6)) == MAX_TEXT_CHARACTERS

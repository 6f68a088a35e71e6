"""Tables of results, and the limits that the results are held against; plain text, to be printed or published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders import CHECKSUM, CONTENDERS, CP, FLOW, MINDSPORE_CKPT, NONE
from benchmarks.results import Result, Spread, extra, peak_bytes, ratio, seconds
from benchmarks.scenarios import SCENARIOS, Scenario

NONE_TIMES_CP = 1.5
CHECKSUM_TIMES_CP = 2.2
TIMES_FASTER_THAN_MINDSPORE = 15
_PEAK_BYTES = 500 * 2**20
_PLAN_SECONDS = 60
_PLAN_BYTES = 2 * 2**30
_FLOW_SECONDS = 3.0
_FLOW_SECONDS_PER_RANK = 0.02
_RESHARD = (NONE.name, CHECKSUM.name, FLOW.name)

_COMPARED = {CP.name: "x `cp -r`", MINDSPORE_CKPT.name: "faster than MindSpore's `.ckpt`"}
_TITLES = {scenario.name: scenario.title for scenario in SCENARIOS}


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names, the others are figures."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def contenders_table(result: Result) -> Table:
    """Everybody who took part in a scenario."""
    others = [base for base in (CP.name, MINDSPORE_CKPT.name) if result.has(base)]
    headers = ["", "seconds", *(_COMPARED[base] for base in others), "peak memory", "read", "written"]
    counts_apart = any(run.seconds != run.process_seconds for run in result.runs)
    if counts_apart:
        headers.append("whole process")
    rows = []
    for name in dict.fromkeys(run.contender for run in result.runs):
        runs = result.of(name)
        wrong = " (**wrong values**)" if name in result.wrong else ""
        rows.append(
            (
                CONTENDERS[name].title + wrong,
                _seconds_text(seconds(result, name)),
                *(_compared_text(result, name, base) for base in others),
                size_text(peak_bytes(result, name)),
                size_text(Spread.of([run.read_bytes for run in runs]).median),
                size_text(Spread.of([run.written_bytes for run in runs]).median),
                *([f"{Spread.of([run.process_seconds for run in runs]).median:.2f} s"] if counts_apart else []),
            )
        )
    ranks = f", {size_text(result.model_bytes)}" if result.model_bytes else ""
    return Table(f"{_TITLES[result.scenario]}{ranks}", tuple(headers), tuple(rows))


def shapes_table(results: Sequence[Result]) -> Table:
    """The scenarios that `cp` took part in, one a line."""
    headers = (
        "",
        "size",
        "`cp -r`",
        "not verified, x `cp`",
        "verified, x `cp`",
        "faster than MindSpore's `.ckpt`, x",
        "read, x size",
        "peak memory",
    )
    rows = [
        (
            f"`{result.scenario}`: {_TITLES[result.scenario]}",
            size_text(result.target_bytes),
            f"{seconds(result, CP.name).median:.2f} s",
            _timestext(ratio(result, NONE.name, CP.name)),
            _timestext(ratio(result, CHECKSUM.name, CP.name)),
            times_text(ratio(result, MINDSPORE_CKPT.name, NONE.name).median) if result.has(MINDSPORE_CKPT.name) else "",
            f"{_reported_read_bytes(result) / result.target_bytes:.2f}",
            size_text(max(peak_bytes(result, name) for name in (NONE.name, CHECKSUM.name))),
        )
        for result in results
        if result.has(CP.name, NONE.name, CHECKSUM.name)
    ]
    return Table("Other shapes", headers, tuple(rows))


def targets_table(results: Sequence[Result]) -> Table:
    """The limits that were set, and what was measured."""
    by_name = {result.scenario: result for result in results}
    headers = ("", "limit", "measured", "kept")
    return Table("Limits", headers, (*_speed_targets(by_name), *_memory_targets(by_name), *_other_targets(by_name)))


def _speed_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    main = results.get("main")
    if main is None:
        return []
    unverified, verified = (ratio(main, name, CP.name).median for name in (NONE.name, CHECKSUM.name))
    rows = [
        _at_most("not verified", NONE_TIMES_CP, unverified, _times_cp_text),
        _at_most("every byte verified", CHECKSUM_TIMES_CP, verified, _times_cp_text),
    ]
    if main.has(MINDSPORE_CKPT.name):
        faster = ratio(main, MINDSPORE_CKPT.name, NONE.name).median  # MindSpore verifies nothing either
        limit = TIMES_FASTER_THAN_MINDSPORE
        told = f"at least {limit} x", f"{faster:.1f} x", _kept(faster >= limit)
        rows.append(("not verified, faster than MindSpore's `.ckpt`", *told))
    return rows


def _memory_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    for name in ("main", "large"):
        if name in results:
            result = results[name]
            peak = max(peak_bytes(result, who) for who in _RESHARD if result.has(who))
            rows.append(_at_most(f"memory for {size_text(result.model_bytes)}", _PEAK_BYTES, peak, size_text))
    return rows


def _other_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    if "plan" in results:
        runs = results["plan"].runs
        slowest, largest = max(run.seconds for run in runs), max(run.peak_bytes for run in runs)
        rows.append(_at_most("plan of 4096 → 3072 ranks, 2000 parameters", _PLAN_SECONDS, slowest, _plain_counttext))
        rows.append(_at_most("memory for that", _PLAN_BYTES, largest, size_text))
    for name, result in results.items():
        if result.has(FLOW.name, CHECKSUM.name):
            limit = _FLOW_SECONDS + _FLOW_SECONDS_PER_RANK * result.target_ranks
            added = extra(result, FLOW.name, CHECKSUM.name).median
            where = "of the main comparison" if name == "main" else "with small files"
            title = f"what the flow adds, {result.target_ranks} ranks {where}"
            rows.append(_at_most(title, limit, added, _plain_counttext))
    return rows


def _at_most(title: str, limit: float, measured: float, text: Callable[[float], str]) -> tuple[str, ...]:
    return title, f"at most {text(limit)}", text(measured), _kept(measured <= limit)


def _kept(kept: bool) -> str:
    return "yes" if kept else "NO"


def _times_cp_text(times: float) -> str:
    return f"{times:.2f} x `cp -r`"


def _plain_counttext(count: float) -> str:
    return f"{count:.3g} s"


def is_shape(scenario: Scenario) -> bool:
    """Whether a scenario belongs into `shapes_table`."""
    return scenario.name != "main" and CP in scenario.contenders


def size_text(count_bytes: float) -> str:
    """A number of bytes for people."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count_bytes >= size:
            return (
                f"{count_bytes / size:.3g} {unit}" if count_bytes < 1000 * size else f"{count_bytes / size:.0f} {unit}"
            )
    return f"{count_bytes:.0f} B"


def times_text(times: float) -> str:
    """How many times, for people."""
    return f"{times:.2f}" if times < 10 else f"{times:.0f}"


def _compared_text(result: Result, name: str, base: str) -> str:
    if name == base:
        return "1"
    return _timestext(ratio(result, name, base) if base == CP.name else ratio(result, base, name))


def _seconds_text(spread: Spread) -> str:
    if spread.low == spread.high:
        return f"{spread.median:.2f}"
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _timestext(spread: Spread) -> str:
    if spread.low == spread.high:
        return times_text(spread.median)
    return f"{times_text(spread.median)} ({times_text(spread.low)} to {times_text(spread.high)})"


def _reported_read_bytes(result: Result) -> float:
    return max(run.reported_read_bytes or 0 for run in result.of(NONE.name))

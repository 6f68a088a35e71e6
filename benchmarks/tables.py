"""Tables of results, and the limits that the results are held against; plain text, to be printed or published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders import (
    CHECKSUM,
    CONTENDERS,
    CONTENT,
    CP,
    DEEPSPEED,
    FLOW,
    FROM_FSDP_NONE,
    FROM_MEGATRON_NONE,
    FROM_ZERO3_NONE,
    MERGE,
    MINDSPORE_CKPT,
    NONE,
    OVERHEAD_RANKS,
    PEFT,
    S3_CHECKSUM,
    S3_COPY,
    S3_DOWNLOAD,
    S3_DOWNLOAD_LATENCY,
    S3_LATENCY,
    S3_LITTLE_MEMORY,
    S3_NONE,
    S3_TO_DISK,
    S3_TO_DISK_LATENCY,
    S3_UPLOAD,
    TO_MEGATRON_NONE,
    VERL,
)
from benchmarks.results import Result, Run, Spread, extra, peak_bytes, processor_ratio, ratio, seconds
from benchmarks.scenarios import SCENARIOS, Scenario

NONE_TIMES_CP = 1.2
CHECKSUM_TIMES_CP = 1.4
_CONTENT_TIMES_CHECKSUM = 2
TIMES_FASTER_THAN_MINDSPORE = 15
_EXPORT_TIMES_CP = 2.5
_MERGE_TIMES_CP = 3
_FOREIGN_TIMES_CP = 1.5
_PEAK_BYTES = 500 * 2**20
_PLAN_SECONDS = 60
_PLAN_BYTES = 2 * 2**30
_FLOW_SECONDS = 3.0
_FLOW_SECONDS_PER_RANK = 0.02
_DASK_SECONDS_PER_RANK = 0.04
_DASK_RANKS = 16
"""Fewer cannot make up for the beginning and the end of a flow."""
_COLUMNS_TIMES_CP = 2
_SMALL_SECONDS = 3
_START_SECONDS = 0.45
_S3_NONE_TIMES_COPY = 0.7
_S3_DOWN_TIMES_COPY = 1.2
_S3_DOWN_PROCESSOR_TIMES_COPY = 1.6
_S3_LATENCY_TIMES_NONE = 1.5
_S3_BYTES = 400 * 2**20
_RESHARD = (NONE.name, CHECKSUM.name, CONTENT.name, FLOW.name)

_COPIES = S3_COPY, S3_DOWNLOAD, S3_DOWNLOAD_LATENCY, S3_UPLOAD
_FLOORS = {CP.name: "x `cp -r`", **{copy.name: "x `rclone copy`" for copy in _COPIES}}
_VENDORS = {VERL.name: "faster than verl", DEEPSPEED.name: "faster than DeepSpeed", PEFT.name: "faster than peft"}
_COMPARED = {**_FLOORS, MINDSPORE_CKPT.name: "faster than MindSpore's `.ckpt`", **_VENDORS}
_FOREIGN = {
    "megatron": (FROM_MEGATRON_NONE, TO_MEGATRON_NONE),
    "fsdp": (FROM_FSDP_NONE,),
    "zero3": (FROM_ZERO3_NONE,),
}
"""Scenario of another framework's ranks -> those whose time is limited."""
_SCENARIOS = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names, the others are figures. A note says what has to be known of them."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def contenders_of(result: Result) -> Sequence[str]:
    """Who took part in a scenario, in its order."""
    scenario = _SCENARIOS[result.scenario]
    return [contender.name for contender in scenario.contenders + scenario.once if result.has(contender.name)]


def contenders_table(result: Result) -> Table:
    """Everybody who took part in a scenario."""
    others = [base for base in _COMPARED if result.has(base)]
    has_traffic = any(run.traffic for run in result.runs)
    counts_processor = all(run.processor_seconds is not None for run in result.runs)
    headers = [
        "",
        "seconds",
        *(_COMPARED[base] for base in others),
        *(["processor"] if counts_processor else []),
        "peak memory",
    ]
    store_headers = ["source sent", "target sent", "received", "requests", "server"]
    headers += store_headers if has_traffic else ["read", "written"]
    counts_apart = any(run.seconds != run.process_seconds for run in result.runs)
    if counts_apart:
        headers.append("whole process")
    rows = []
    for name in contenders_of(result):
        runs = result.of(name)
        rows.append(
            (
                CONTENDERS[name].title + _wrong_text(result, name),
                _seconds_text(seconds(result, name)),
                *(_compared_text(result, name, base) for base in others),
                *([_processor_text(runs)] if counts_processor else []),
                size_text(peak_bytes(result, name)),
                *(_traffic_texts(runs) if has_traffic else _kernel_texts(runs)),
                *([f"{Spread.of([run.process_seconds for run in runs]).median:.2f} s"] if counts_apart else []),
            )
        )
    ranks = f", {size_text(result.model_bytes)}" if result.model_bytes else ""
    scenario = _SCENARIOS[result.scenario]
    return Table(f"{scenario.title}{ranks}", tuple(headers), tuple(rows), scenario.note)


def summary_table(result: Result) -> Table:
    """A row for each who took part in a scenario: seconds and peak memory."""
    rows = tuple(
        (
            CONTENDERS[name].title + _wrong_text(result, name),
            f"{seconds(result, name).median:.2f}",
            size_text(peak_bytes(result, name)),
        )
        for name in contenders_of(result)
    )
    return Table(_SCENARIOS[result.scenario].title, ("", "seconds", "peak memory"), rows)


def _wrong_text(result: Result, name: str) -> str:
    return " (**wrong values**)" if name in result.wrong else ""


def _processor_text(runs: Sequence[Run]) -> str:
    return f"{Spread.of([run.processor_seconds or 0.0 for run in runs]).median:.2f} s"


def _kernel_texts(runs: Sequence[Run]) -> list[str]:
    counts = [run.read_bytes for run in runs], [run.written_bytes for run in runs]
    return [size_text(Spread.of(count).median) for count in counts]


def _traffic_texts(runs: Sequence[Run]) -> list[str]:
    traffics = [run.traffic for run in runs if run.traffic]
    counts = (
        [traffic.source_sent_bytes for traffic in traffics],
        [traffic.target_sent_bytes for traffic in traffics],
        [traffic.received_bytes for traffic in traffics],
    )
    requests = Spread.of([sum(traffic.requests.values()) for traffic in traffics]).median
    server = Spread.of([traffic.server_seconds for traffic in traffics]).median
    return [*(size_text(Spread.of(count).median) for count in counts), f"{requests:.0f}", f"{server:.2f} s"]


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
            f"`{result.scenario}`: {_SCENARIOS[result.scenario].title}",
            size_text(result.target_bytes),
            f"{seconds(result, CP.name).median:.2f} s",
            _spread_text(ratio(result, NONE.name, CP.name)),
            _spread_text(ratio(result, CHECKSUM.name, CP.name)),
            times_text(ratio(result, MINDSPORE_CKPT.name, NONE.name).median) if result.has(MINDSPORE_CKPT.name) else "",
            f"{_reported_read_bytes(result) / result.target_bytes:.2f}",
            size_text(max(peak_bytes(result, name) for name in (NONE.name, CHECKSUM.name))),
        )
        for result in results
    ]
    return Table("Other shapes", headers, tuple(rows))


def targets_table(results: Sequence[Result]) -> Table:
    """The limits that were set, and what was measured."""
    by_name = {result.scenario: result for result in results}
    headers = ("", "limit", "measured", "kept")
    kinds = (
        *(_speed_targets, _shape_targets, _memory_targets, _export_targets),
        *(_foreign_targets, _other_targets, _store_targets),
    )
    return Table("Limits", headers, tuple(row for of_kind in kinds for row in of_kind(by_name)))


def _speed_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    main = results.get("main")
    if main is None:
        return []
    unverified, verified = (ratio(main, name, CP.name).median for name in (NONE.name, CHECKSUM.name))
    rows = [
        _at_most("not verified", NONE_TIMES_CP, unverified, _times_text("`cp -r`")),
        _at_most("every byte verified", CHECKSUM_TIMES_CP, verified, _times_text("`cp -r`")),
    ]
    if main.has(CONTENT.name):
        times = ratio(main, CONTENT.name, CHECKSUM.name).median
        text = _times_text("every byte verified")
        rows.append(_at_most("every value compared with the source's", _CONTENT_TIMES_CHECKSUM, times, text))
    if main.has(MINDSPORE_CKPT.name):
        faster = ratio(main, MINDSPORE_CKPT.name, NONE.name).median  # MindSpore verifies nothing either
        limit = TIMES_FASTER_THAN_MINDSPORE
        row = f"at least {limit} x", f"{faster:.1f} x", _kept(faster >= limit)
        rows.append(("not verified, faster than MindSpore's `.ckpt`", *row))
    return rows


def _shape_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    if "fan-in-columns" in results:
        times = ratio(results["fan-in-columns"], NONE.name, CP.name).median
        rows.append(_at_most("`fan-in-columns`, not verified", _COLUMNS_TIMES_CP, times, _times_text("`cp -r`")))
    for name, limit in (("small", _SMALL_SECONDS), ("start", _START_SECONDS)):
        if name in results:
            waited = seconds(results[name], CHECKSUM.name).median
            rows.append(_at_most(f"`{name}`, every byte verified", limit, waited, _seconds_limit_text))
    return rows


def _memory_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    for name in ("main", "large"):
        if name in results:
            result = results[name]
            peak = max(peak_bytes(result, who) for who in _RESHARD if result.has(who))
            rows.append(_at_most(f"memory for {size_text(result.model_bytes)}", _PEAK_BYTES, peak, size_text))
    return rows


def _export_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    for name in ("export-fused", "export-experts"):
        if name in results:
            result = results[name]
            times, peak = ratio(result, CHECKSUM.name, CP.name).median, peak_bytes(result, CHECKSUM.name)
            title = f"`{name}`, every byte verified"
            rows.append(_at_most(title, _EXPORT_TIMES_CP, times, _times_text("`cp -r`")))
            rows.append(_at_most(f"`{name}`, memory", _PEAK_BYTES, peak, size_text))
    if merge := results.get("merge"):
        times = ratio(merge, MERGE.name, CP.name).median
        rows.append(_at_most("`merge`, every byte verified", _MERGE_TIMES_CP, times, _times_text("`cp -r`")))
        rows.append(_at_most("`merge`, memory", _PEAK_BYTES, peak_bytes(merge, MERGE.name), size_text))
    return rows


def _foreign_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    for name, limited in _FOREIGN.items():
        if name in results:
            result = results[name]
            for contender in limited:
                times = ratio(result, contender.name, CP.name).median
                rows.append(_at_most(f"`{contender.name}`", _FOREIGN_TIMES_CP, times, _times_text("`cp -r`")))
            peak = max(peak_bytes(result, who) for who in contenders_of(result) if who not in _VENDORS)
            rows.append(_at_most(f"`{name}`, memory", _PEAK_BYTES, peak, size_text))
    return rows


def _other_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    if "plan" in results:
        runs = results["plan"].runs
        slowest, largest = max(run.seconds for run in runs), max(run.peak_bytes for run in runs)
        rows.append(_at_most("plan of 4096 → 3072 ranks, 2000 parameters", _PLAN_SECONDS, slowest, _seconds_limit_text))
        rows.append(_at_most("memory for that", _PLAN_BYTES, largest, size_text))
    for name, result in results.items():
        if result.has(FLOW.name, CHECKSUM.name):
            limit = _FLOW_SECONDS + _FLOW_SECONDS_PER_RANK * result.target_ranks
            added = extra(result, FLOW.name, CHECKSUM.name).median
            where = "of the main comparison" if name == "main" else "with small files"
            title = f"what the flow adds, {result.target_ranks} ranks {where}"
            rows.append(_at_most(title, limit, added, _seconds_limit_text))
    if "overhead" in results:
        result = results["overhead"]
        many = [ranks for ranks in OVERHEAD_RANKS if ranks >= _DASK_RANKS]
        costs = [run.seconds / ranks for ranks in many for run in result.of(f"overhead-cluster-{ranks}")]
        title = f"a rank's share of a flow on a running Dask cluster, from {_DASK_RANKS} ranks on"
        rows.append(_at_most(title, _DASK_SECONDS_PER_RANK, max(costs), _seconds_limit_text))
    return rows


def _store_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    return _bucket_source_targets(results) + _bucket_to_bucket_targets(results)


def _bucket_source_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    rows = []
    title, text = "bucket to memory, not verified", _times_text("`rclone copy`")
    if result := results.get("from-bucket"):
        times = ratio(result, S3_TO_DISK.name, S3_DOWNLOAD.name).median
        processor_times = processor_ratio(result, S3_TO_DISK.name, S3_DOWNLOAD.name).median
        rows.append(_at_most(title, _S3_DOWN_TIMES_COPY, times, text))
        rows.append(_at_most(f"{title}, processor time", _S3_DOWN_PROCESSOR_TIMES_COPY, processor_times, text))
    if result := results.get("from-bucket-late"):
        times = ratio(result, S3_TO_DISK_LATENCY.name, S3_DOWNLOAD_LATENCY.name).median
        rows.append(_at_most(f"{title}, each request of both 30 ms later", _S3_DOWN_TIMES_COPY, times, text))
    return rows


def _bucket_to_bucket_targets(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    result = results.get("bucket-to-bucket")
    if result is None:
        return []
    times_copy = ratio(result, S3_NONE.name, S3_COPY.name).median
    times_none = ratio(result, S3_LATENCY.name, S3_NONE.name).median
    rows = [
        _at_most("bucket to bucket, not verified", _S3_NONE_TIMES_COPY, times_copy, _times_text("`rclone copy`")),
        _at_most("the same, each request 30 ms later", _S3_LATENCY_TIMES_NONE, times_none, _times_text("without")),
    ]
    for contender in (S3_NONE, S3_CHECKSUM, S3_LITTLE_MEMORY):
        title = f"memory, bucket to bucket: {contender.title}"
        rows.append(_at_most(title, _S3_BYTES, peak_bytes(result, contender.name), size_text))
    return rows


def _at_most(title: str, limit: float, measured: float, text: Callable[[float], str]) -> tuple[str, ...]:
    return title, f"at most {text(limit)}", text(measured), _kept(measured <= limit)


def _kept(kept: bool) -> str:
    return "yes" if kept else "NO"


def _times_text(base: str) -> Callable[[float], str]:
    return lambda times: f"{times:.2f} x {base}"


def _seconds_limit_text(count: float) -> str:
    return f"{count:.3g} s"


def is_shape(scenario: Scenario) -> bool:
    """Whether a scenario belongs into `shapes_table`."""
    return scenario.name != "main" and {CP, NONE, CHECKSUM} <= set(scenario.contenders)


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
    return _spread_text(ratio(result, name, base) if base in _FLOORS else ratio(result, base, name))


def _seconds_text(spread: Spread) -> str:
    if spread.low == spread.high:
        return f"{spread.median:.2f}"
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _spread_text(spread: Spread) -> str:
    if spread.low == spread.high:
        return times_text(spread.median)
    return f"{times_text(spread.median)} ({times_text(spread.low)} to {times_text(spread.high)})"


def _reported_read_bytes(result: Result) -> float:
    return max(run.reported_read_bytes or 0 for run in result.of(NONE.name))

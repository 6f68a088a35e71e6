"""Statistics, limits and tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import report, results
from benchmarks.report import markdown, with_figures
from benchmarks.results import Machine, Result, Run, Spread, Traffic, extra, ratio, save
from benchmarks.scenarios import SCENARIOS
from benchmarks.tables import Table, contenders_table, is_shape, shapes_table, summary_table, targets_table

MIB = 2**20


def run(
    contender: str,
    number: int,
    seconds: float,
    process_seconds: float | None = None,
    peak_mib: int = 100,
    traffic: Traffic | None = None,
    processor_seconds: float | None = None,
) -> Run:
    return Run(
        contender=contender,
        round=number,
        seconds=seconds,
        process_seconds=process_seconds or seconds,
        peak_bytes=peak_mib * MIB,
        read_bytes=MIB,
        written_bytes=2 * MIB,
        traffic=traffic,
        processor_seconds=processor_seconds,
    )


def result(scenario: str, *runs: Run, wrong: dict[str, str] | None = None) -> Result:
    machine = Machine(processor="Some", cores=2, memory_bytes=2**34, system="Linux 6", python="3.11.9")
    return Result(
        scenario=scenario,
        measured_on="2026-01-02",
        machine=machine,
        model_bytes=2**30,
        target_bytes=2**30,
        target_ranks=8,
        runs=runs,
        wrong=wrong or {},
    )


def test_ratios_are_of_the_same_round() -> None:
    noisy = result("main", run("cp", 1, 1), run("none", 1, 2), run("cp", 2, 10), run("none", 2, 15), run("none", 3, 99))
    assert ratio(noisy, "none", "cp") == Spread(1.75, 1.5, 2.0)
    assert extra(noisy, "none", "cp") == Spread(3.0, 1.0, 5.0)


def kept(*results: Result) -> dict[str, str]:
    return {row[0]: row[3] for row in targets_table(results).rows}


@pytest.mark.parametrize(("mindspore", "verdict"), [(30.0, "yes"), (29.0, "NO")])
def test_limits_of_speed(mindspore: float, verdict: str) -> None:
    main = result("main", run("cp", 1, 1), run("none", 1, 1.2), run("checksum", 1, 1.5), run("content", 1, 3.0))
    assert kept(main)["not verified"] == "yes"
    assert kept(main)["every byte verified"] == "NO"
    assert kept(main)["every value compared with the source's"] == "yes"
    slow = result(
        "main", run("cp", 1, 1), run("none", 1, 2), run("checksum", 1, 2), run("mindspore-ckpt", 1, mindspore)
    )
    assert kept(slow)["not verified, faster than MindSpore's `.ckpt`"] == verdict


def test_the_flow_may_add_more_with_more_ranks() -> None:
    within = result("flow-8", run("checksum", 1, 1), run("flow", 1, 4.1))
    beyond = result("flow-8", run("checksum", 1, 1), run("flow", 1, 4.2))
    title = "what the flow adds, 8 ranks with small files"
    assert (kept(within)[title], kept(beyond)[title]) == ("yes", "NO")


@pytest.mark.parametrize(("of_16", "of_100", "verdict"), [(0.64, 4.0, "yes"), (0.65, 4.0, "NO"), (0.64, 4.1, "NO")])
def test_ranks_on_a_cluster_cost_little_from_16_on(of_16: float, of_100: float, verdict: str) -> None:
    runs = run("overhead-cluster-4", 1, 9), run("overhead-cluster-16", 1, of_16), run("overhead-cluster-100", 1, of_100)
    assert kept(result("overhead", *runs)) == {
        "a rank's share of a flow on a running Dask cluster, from 16 ranks on": verdict
    }


def test_mindspore_stands_beside_the_shapes_that_it_took_part_in() -> None:
    runs = run("cp", 1, 1), run("none", 1, 2), run("checksum", 1, 3)
    with_it, without = result("columns", *runs, run("mindspore-ckpt", 1, 50)), result("huge", *runs)
    assert [row[3:6] for row in shapes_table([with_it, without]).rows] == [("2.00", "3.00", "25"), ("2.00", "3.00", "")]


def test_contenders_are_compared_with_both_floors() -> None:
    main = result(
        "main",
        run("cp", 1, 1),
        run("none", 1, 2),
        run("mindspore-ckpt", 1, 20, process_seconds=25),
        wrong={"mindspore-ckpt": "all"},
    )
    rows = {row[0]: row[1:] for row in contenders_table(main).rows}
    assert rows["reshard, not verified"][:3] == ("2.00", "2.00", "10")
    assert rows["MindSpore, `.ckpt` (**wrong values**)"] == (
        *("20.00", "20", "1", "100 MiB", "1 MiB", "2 MiB"),
        "25.00 s",
    )


@pytest.mark.parametrize(
    ("none", "latency", "peak_mib", "verdict"),
    [(0.7, 1.0, 400, ["yes"] * 5), (0.8, 1.3, 401, ["NO", "NO", "yes", "yes", "NO"])],
)
def test_limits_from_bucket_to_bucket(none: float, latency: float, peak_mib: int, verdict: list[str]) -> None:
    measured = result(
        "bucket-to-bucket",
        run("s3-rclone", 1, 1),
        run("s3-none", 1, none),
        run("s3-checksum", 1, 9, peak_mib=400),
        run("s3-latency", 1, latency),
        run("s3-little-memory", 1, 9, peak_mib=peak_mib),
    )
    assert list(kept(measured).values()) == verdict


@pytest.mark.parametrize(("of_limit", "verdict"), [(1.0, "yes"), (1.01, "NO")])
def test_reading_from_a_bucket_is_held_against_rclone_with_the_same_delay(of_limit: float, verdict: str) -> None:
    runs = (
        run("s3-download", 1, 1, processor_seconds=0.5),
        run("s3-to-disk", 1, 1.2 * of_limit, processor_seconds=0.8 * of_limit),
    )
    late = run("s3-download-latency", 1, 2), run("s3-to-disk-latency", 1, 2.4 * of_limit)
    assert kept(result("from-bucket", *runs), result("from-bucket-late", *late)) == {
        "bucket to memory, not verified": verdict,
        "bucket to memory, not verified, processor time": verdict,
        "bucket to memory, not verified, each request of both 30 ms later": verdict,
    }


@pytest.mark.parametrize(("of_limit", "peak_mib", "verdict"), [(1.0, 500, "yes"), (1.01, 501, "NO")])
def test_limits_of_other_frameworks_ranks_count_no_vendors_memory(of_limit: float, peak_mib: int, verdict: str) -> None:
    def runs(vendor: str, none: str, checksum: str) -> tuple[Run, ...]:
        ours = run(none, 1, 1.5 * of_limit), run(checksum, 1, 9, peak_mib=peak_mib)
        return run("cp", 1, 1), *ours, run(vendor, 1, 18, peak_mib=3000)

    fsdp = result("fsdp", *runs("verl", "from-fsdp-none", "from-fsdp"))
    zero3 = result("zero3", *runs("deepspeed", "from-zero3-none", "from-zero3"))
    assert kept(fsdp, zero3) == {
        "`from-fsdp-none`": verdict,
        "`fsdp`, memory": verdict,
        "`from-zero3-none`": verdict,
        "`zero3`, memory": verdict,
    }
    rows = {row[0]: row[1:] for row in contenders_table(fsdp).rows}
    assert rows["reshard from FSDP, every byte verified"][:3] == ("9.00", "9.00", "2.00"), "faster than verl"


def test_rows_come_in_the_order_of_the_scenario() -> None:
    mixed = result("main", run("none", 1, 2), run("checksum", 1, 3), run("cp", 1, 1))
    assert [row[0] for row in contenders_table(mixed).rows] == [
        "`cp -r`",
        "reshard, not verified",
        "reshard, every byte verified",
    ]


@pytest.mark.parametrize(("of_limit", "verdict"), [(1.0, "yes"), (1.01, "NO")])
def test_limits_of_single_shapes(of_limit: float, verdict: str) -> None:
    small = result("small", run("checksum", 1, 3 * of_limit))
    start = result("start", run("checksum", 1, 0.45 * of_limit))
    columns = result("fan-in-columns", run("cp", 1, 1), run("none", 1, 2 * of_limit))
    assert list(kept(small, start, columns).values()) == [verdict] * 3


def test_processor_time_is_a_column_once_all_runs_tell_it() -> None:
    none = run("none", 1, 2, processor_seconds=3.5)
    assert "processor" not in contenders_table(result("main", run("cp", 1, 1), none)).headers
    table = contenders_table(result("main", run("cp", 1, 1, processor_seconds=0.75), none))
    place = table.headers.index("processor")
    assert [row[place] for row in table.rows] == ["0.75 s", "3.50 s"]


def test_results_of_all_scenarios_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "DIRECTORY", tmp_path)
    for scenario in SCENARIOS:
        runs = (run(contender.name, 1, 1.5, processor_seconds=2) for contender in scenario.contenders + scenario.once)
        save(result(scenario.name, *runs))
    readmes = tmp_path / "README.md", tmp_path / "project.md"
    for readme in readmes:
        readme.write_text("<!-- figures: begin -->\n<!-- figures: end -->\n")
    for name, path in zip(("README", "PROJECT_README", "PLOT"), (*readmes, tmp_path / "plot.svg"), strict=True):
        monkeypatch.setattr(report, name, path)
    report.publish(SCENARIOS)
    text = readmes[0].read_text()
    in_tables = [scenario for scenario in SCENARIOS if not is_shape(scenario)]
    assert all(contender.title in text for scenario in in_tables for contender in scenario.contenders)
    assert all(scenario.title in text for scenario in SCENARIOS if scenario.name != "main")
    assert "MindSpore" in readmes[1].read_text()
    assert ">fan-in-columns<" in (tmp_path / "plot.svg").read_text()


def test_memory_beyond_the_limit_is_told() -> None:
    runs = [run(name, 1, 1, peak_mib=401) for name in ("s3-rclone", "s3-none", "s3-latency", "s3-little-memory")]
    measured = kept(result("bucket-to-bucket", *runs, run("s3-checksum", 1, 1, peak_mib=400)))
    assert [
        measured[f"memory, bucket to bucket: {who}"]
        for who in ("reshard, not verified", "reshard, every byte verified")
    ] == [
        "NO",
        "yes",
    ]


def test_what_went_over_the_wire_stands_in_place_of_what_the_kernel_counted() -> None:
    def traffic(requests: int) -> Traffic:
        counts = {"GetObject": requests, "PutObject": 1}
        return Traffic(
            source_sent_bytes=3 * MIB,
            target_sent_bytes=0,
            received_bytes=4 * MIB,
            requests=counts,
            server_seconds=requests / 2,
        )

    table = contenders_table(
        result(
            "bucket-to-bucket",
            run("s3-rclone", 1, 2, traffic=traffic(4)),
            run("s3-none", 1, 1, traffic=traffic(6)),
            run("s3-none", 2, 1, traffic=traffic(8)),
            run("s3-none", 3, 1, traffic=traffic(9)),
        )
    )
    assert table.headers[2:] == (
        "x `rclone copy`",
        "peak memory",
        "source sent",
        "target sent",
        "received",
        "requests",
        "server",
    )
    assert [row[2:] for row in table.rows] == [
        ("1", "100 MiB", "3 MiB", "0 B", "4 MiB", "5", "2.00 s"),
        ("0.50", "100 MiB", "3 MiB", "0 B", "4 MiB", "9", "4.00 s"),
    ]
    assert "nginx" in table.note


def test_a_summary_is_one_row_and_names_wrong_values() -> None:
    table = summary_table(
        result(
            "main",
            run("cp", 1, 1),
            run("cp", 2, 3),
            run("none", 1, 2.5),
            run("mindspore-ckpt", 1, 9),
            wrong={"none": "w"},
        )
    )
    assert table.headers == ("", "seconds", "peak memory")
    assert table.rows == (
        ("`cp -r`", "2.00", "100 MiB"),
        ("reshard, not verified (**wrong values**)", "2.50", "100 MiB"),
        ("MindSpore, `.ckpt`", "9.00", "100 MiB"),
    )


def test_figures_replace_what_is_between_the_marks() -> None:
    document = "before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n"
    once = with_figures(document, "new")
    assert once == "before\n<!-- figures: begin -->\n\nnew\n\n<!-- figures: end -->\nafter\n"
    assert with_figures(once, "new") == once
    with pytest.raises(ValueError, match="lacks"):
        with_figures("no marks", "new")


def test_a_table_in_markdown() -> None:
    table = Table("T", ("", "a"), (("x", "1"),))
    assert markdown(table) == "### T\n\n|  | a |\n| --- | ---: |\n| x | 1 |"
    assert markdown(replace(table, note="N")) == "### T\n\nN\n\n|  | a |\n| --- | ---: |\n| x | 1 |"

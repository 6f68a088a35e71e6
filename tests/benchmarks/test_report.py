"""Statistics, limits and tables."""

from dataclasses import replace

import pytest

from benchmarks.report import markdown, with_figures
from benchmarks.results import Machine, Result, Run, Spread, Traffic, extra, ratio
from benchmarks.tables import Table, contenders_table, shapes_table, summary_table, targets_table

MIB = 2**20


def run(
    contender: str,
    number: int,
    seconds: float,
    process_seconds: float | None = None,
    peak_mib: int = 100,
    traffic: Traffic | None = None,
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
    main = result("main", run("cp", 1, 1), run("none", 1, 1.5), run("checksum", 1, 2.3), run("mindspore-ckpt", 1, 1))
    assert kept(main)["not verified"] == "yes"
    assert kept(main)["every byte verified"] == "NO"
    slow = result(
        "main", run("cp", 1, 1), run("none", 1, 2), run("checksum", 1, 2), run("mindspore-ckpt", 1, mindspore)
    )
    assert kept(slow)["not verified, faster than MindSpore's `.ckpt`"] == verdict


def test_the_flow_may_add_more_with_more_ranks() -> None:
    within = result("flow-8", run("checksum", 1, 1), run("flow", 1, 4.1))
    beyond = result("flow-8", run("checksum", 1, 1), run("flow", 1, 4.2))
    title = "what the flow adds, 8 ranks with small files"
    assert (kept(within)[title], kept(beyond)[title]) == ("yes", "NO")


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
    [(1.3, 1.9, 556, ["yes"] * 5), (1.4, 2.2, 557, ["NO", "NO", "yes", "yes", "NO"])],
)
def test_limits_of_an_object_store(none: float, latency: float, peak_mib: int, verdict: list[str]) -> None:
    measured = result(
        "object-store",
        run("s3-rclone", 1, 1),
        run("s3-none", 1, none),
        run("s3-checksum", 1, 9, peak_mib=2348),
        run("s3-latency", 1, latency),
        run("s3-little-memory", 1, 9, peak_mib=peak_mib),
    )
    assert list(kept(measured).values()) == verdict


def test_memory_beyond_the_limit_is_told() -> None:
    runs = [run(name, 1, 1, peak_mib=2349) for name in ("s3-rclone", "s3-none", "s3-latency", "s3-little-memory")]
    measured = kept(result("object-store", *runs, run("s3-checksum", 1, 1, peak_mib=2348)))
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
        return Traffic(source_sent_bytes=3 * MIB, target_sent_bytes=0, received_bytes=4 * MIB, requests=counts)

    table = contenders_table(
        result(
            "object-store",
            run("s3-rclone", 1, 2, traffic=traffic(4)),
            run("s3-none", 1, 1, traffic=traffic(6)),
            run("s3-none", 2, 1, traffic=traffic(8)),
            run("s3-none", 3, 1, traffic=traffic(9)),
        )
    )
    assert table.headers[2:] == ("x `rclone copy`", "peak memory", "source sent", "target sent", "received", "requests")
    assert [row[2:] for row in table.rows] == [
        ("1", "100 MiB", "3 MiB", "0 B", "4 MiB", "5"),
        ("0.50", "100 MiB", "3 MiB", "0 B", "4 MiB", "9"),
    ]
    assert "`rclone serve s3`" in table.note


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
    assert table.headers == ("`cp -r`", "reshard, not verified", "MindSpore, `.ckpt`")
    assert table.rows == (("2.00 s, 100 MiB", "2.50 s, 100 MiB (**wrong values**)", "9.00 s, 100 MiB"),)


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

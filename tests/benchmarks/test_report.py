"""Statistics, limits and tables."""

import pytest

from benchmarks.report import markdown, with_figures
from benchmarks.results import Machine, Result, Run, Spread, extra, ratio
from benchmarks.tables import Table, contenders_table, shapes_table, targets_table

MIB = 2**20


def run(contender: str, number: int, seconds: float, process_seconds: float | None = None) -> Run:
    return Run(
        contender=contender,
        round=number,
        seconds=seconds,
        process_seconds=process_seconds or seconds,
        peak_bytes=100 * MIB,
        read_bytes=MIB,
        written_bytes=2 * MIB,
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


@pytest.mark.parametrize(("mindspore", "told"), [(30.0, "yes"), (29.0, "NO")])
def test_limits_of_speed(mindspore: float, told: str) -> None:
    main = result("main", run("cp", 1, 1), run("none", 1, 1.5), run("checksum", 1, 2.3), run("mindspore-ckpt", 1, 1))
    assert kept(main)["not verified"] == "yes"
    assert kept(main)["every byte verified"] == "NO"
    slow = result(
        "main", run("cp", 1, 1), run("none", 1, 2), run("checksum", 1, 2), run("mindspore-ckpt", 1, mindspore)
    )
    assert kept(slow)["not verified, faster than MindSpore's `.ckpt`"] == told


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


def test_figures_replace_what_is_between_the_marks() -> None:
    document = "before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n"
    once = with_figures(document, "new")
    assert once == "before\n<!-- figures: begin -->\n\nnew\n\n<!-- figures: end -->\nafter\n"
    assert with_figures(once, "new") == once
    with pytest.raises(ValueError, match="lacks"):
        with_figures("no marks", "new")


def test_a_table_in_markdown() -> None:
    assert markdown(Table("T", ("", "a"), (("x", "1"),))) == "### T\n\n|  | a |\n| --- | ---: |\n| x | 1 |"

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.report import ConversionReport, PlanSummary
from tests.support.checkpoints import case, read_tree
from tests.support.places import FIXTURES

CASE = case(7010)
SOURCE = CASE.directory / "src"
STRATEGIES = (
    "--source-strategy",
    CASE.directory / "src_strategy.ckpt",
    "--target-strategy",
    CASE.directory / "dst_strategy.ckpt",
)
DIRECT = (*STRATEGIES, "--engine", "direct")


@pytest.mark.parametrize("file_format", ["same", "ckpt", "safetensors"])
def test_converted_files_are_right(reshard: Callable[..., Any], tmp_path: Path, file_format: str) -> None:
    shown = reshard("convert", SOURCE, tmp_path / "out", *DIRECT, "--format", file_format)
    assert (shown.code, shown.err) == (0, "")
    assert read_tree(tmp_path / "out") == CASE.want
    extension = "ckpt" if file_format == "same" else file_format
    assert (tmp_path / f"out/rank_1/checkpoint_1.{extension}").is_file()


def test_every_option_is_understood(reshard: Callable[..., Any], tmp_path: Path) -> None:
    options = (
        ("--format", "safetensors"),
        ("--prefix", "net_"),
        ("--step", ""),
        ("--source-prefix", "checkpoint_{rank}"),
        ("--ranks", "0-1"),
        ("--workers", 1),
        ("--memory-limit", "16MiB"),
        ("--verify", "structure"),
        ("--unmatched", "fail"),
        ("--allow-missing", "a*"),
        ("--allow-missing", "b*"),
        ("--overwrite",),
        ("--json",),
    )
    shown = reshard("convert", SOURCE, tmp_path / "out", *DIRECT, *(part for option in options for part in option))
    assert shown.code == 0, shown.err
    assert (tmp_path / "out/rank_1/net_1.safetensors").is_file()
    assert shown.json["verified"] == "structure"


def test_the_pattern_of_the_help_in_its_own_directory(
    reshard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(8):
        [file] = (SOURCE / f"rank_{rank}").iterdir()
        (tmp_path / f"ckpt_{rank}").mkdir()
        (tmp_path / f"ckpt_{rank}/net{rank}-10_5.ckpt").symlink_to(file)
    monkeypatch.chdir(tmp_path)
    shown = reshard("convert", "ckpt_{rank}/net{rank}-10_5.ckpt", "out", *DIRECT)
    assert shown.code == 0, shown.err
    assert read_tree(tmp_path / "out") == CASE.want
    refused = reshard("convert", "ckpt_{rank}/net{rank}-10_5.ckpt", "ckpt_8/out", *DIRECT)
    assert (refused.code, (tmp_path / "ckpt_8").exists()) == (2, False)
    assert "lies inside the source" in refused.err


def test_summary(reshard: Callable[..., Any], tmp_path: Path) -> None:
    lines = reshard("convert", SOURCE, tmp_path / "out", *DIRECT).out.splitlines()
    assert f"converted  {SOURCE}" in lines
    assert f"to         {tmp_path / 'out'}" in lines
    assert "ranks      8 -> 2" in lines
    assert "verified   checksum; 333.8 KiB read back; whole shapes not confirmed" in lines
    assert any(line.startswith("shapes     ") and "not confirmed for 4 parameters" in line for line in lines)
    assert "note       not in any strategy; copied to every target rank: global_step, learning_rate" in lines
    assert any(line.startswith("written    333.8 KiB in ") for line in lines)
    assert [line.split()[:2] for line in lines[-2:]] == [
        ["0", "rank_0/checkpoint_0.ckpt"],
        ["1", "rank_1/checkpoint_1.ckpt"],
    ]


def test_json_is_the_report_and_all_of_stdout(spawned: Callable[..., Any], tmp_path: Path) -> None:
    shown = spawned("convert", SOURCE, tmp_path / "out", *DIRECT, "--json")
    assert shown.code == 0
    report = ConversionReport.model_validate_json(shown.out)
    assert set(shown.json) == {*ConversionReport.model_fields, "engine"}
    assert (report.committed, report.source_world_size, report.target_world_size) == (True, 8, 2)
    assert report.carried == ("global_step", "learning_rate")
    assert [rank.rank for rank in report.ranks] == [0, 1]


def test_a_part_of_the_ranks_says_what_is_missing(reshard: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = reshard("convert", SOURCE, out, *DIRECT, "--ranks", "1")
    assert first.code == 0
    assert "ranks      8 -> 2; this run: 1" in first.out
    assert "NOT COMPLETE: 1 rank of 2 not yet written and verified: 0" in first.out
    assert "--ranks 0" in first.out
    assert not out.exists()
    second = reshard("convert", SOURCE, out, *DIRECT, "--ranks", "0")
    assert second.code == 0
    assert "NOT COMPLETE" not in second.out
    assert read_tree(out) == CASE.want


def test_a_rerun_says_that_all_was_done(reshard: Callable[..., Any], tmp_path: Path) -> None:
    reshard("convert", SOURCE, tmp_path / "out", *DIRECT)
    again = reshard("convert", SOURCE, tmp_path / "out", *DIRECT)
    assert again.code == 0
    assert "written    nothing: an earlier run of the same plan wrote everything" in again.out
    assert "already converted and intact; nothing to do" in again.err


def test_a_target_rank_that_is_not(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("convert", SOURCE, tmp_path / "out", *DIRECT, "--ranks", "1-2")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "reshard: error: --ranks 1-2: the target has ranks 0 to 1, not 2\n"


def test_an_occupied_target(reshard: Callable[..., Any], tmp_path: Path) -> None:
    reshard("convert", SOURCE, tmp_path, *DIRECT)
    for dry in ((), ("--dry-run",)):
        shown = reshard("convert", FIXTURES / "formats/plain.ckpt", tmp_path, "--engine", "direct", *dry)
        assert (shown.code, shown.out) == (2, "")
        assert f"{tmp_path}: is not empty" in shown.err
    assert reshard("verify", tmp_path).code == 0


def test_a_dry_run_writes_nothing(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--dry-run")
    assert shown.code == 0
    assert "to write    333.2 KiB" in shown.out
    assert list(tmp_path.iterdir()) == []
    as_json = reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--dry-run", "--json")
    assert PlanSummary.model_validate(as_json.json).target_world_size == 2
    assert list(tmp_path.iterdir()) == []


def test_logs_of_many_ranks_get_groups_of_them(
    reshard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.reports.rank_table.MAX_ROWS", 1)
    shown = reshard("convert", SOURCE, tmp_path / "out", *DIRECT).out
    assert "rank_{rank}/checkpoint_{rank}.ckpt  " in shown
    assert "rank_0/checkpoint_0.ckpt  " not in shown
    assert shown.splitlines()[-1] == "(2 ranks in 1 group of equal ones; --json lists each)"


@pytest.mark.slow
def test_the_prefect_engine_does_the_same(
    spawned: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    shown = spawned("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--engine", "prefect", "--json")
    assert shown.code == 0, shown.err
    assert ConversionReport.model_validate_json(shown.out).committed
    assert read_tree(tmp_path / "out") == CASE.want


@pytest.mark.parametrize("option", [("--dask-scheduler", "local"), ("--concurrency-limit", "disks")])
def test_the_direct_engine_refuses_what_only_a_flow_can_do(
    reshard: Callable[..., Any], tmp_path: Path, option: tuple[str, str]
) -> None:
    shown = reshard("convert", SOURCE, tmp_path / "out", *DIRECT, *option)
    assert shown.code == 2
    assert f"{option[0]}: not supported by --engine direct" in shown.err
    assert not (tmp_path / "out").exists()

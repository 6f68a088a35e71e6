from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.latest import LatestReport
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import read_tree
from tests.support.training import CASE, save_step

STRATEGIES = (
    "--source-strategy",
    CASE.directory / "src_strategy.ckpt",
    "--target-strategy",
    CASE.directory / "dst_strategy.ckpt",
)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "training", tmp_path / "converted"


def test_converts_and_then_has_nothing_to_do(reshard: Callable[..., Any], places: tuple[Path, Path]) -> None:
    source, target = places
    save_step(source, "1_0")
    first = reshard("convert-latest", source, target, *STRATEGIES)
    assert first.code == 0, first.err
    assert f"outcome  step 1_0 was converted to {target}/1_0" in first.out
    assert f"converted  {source}, step 1_0" in first.out
    assert read_tree(target / "1_0") == CASE.want
    second = reshard("convert-latest", source, target, *STRATEGIES)
    assert (second.code, second.out) == (
        0,
        "outcome  nothing to do: step 1_0, the newest complete one, is already converted\n",
    )


def test_two_at_once_need_no_lock_of_crons(reshard: Callable[..., Any], places: tuple[Path, Path]) -> None:
    """The second finds that another is converting the step, and leaves it alone."""
    source, target = places
    save_step(source, "1_0")
    with held_lease(parse_url(str(target / "1_0.reshard-partial/.reshard/leases")), new_holder([0, 1, 2, 3])):
        second = reshard("convert-latest", source, target, *STRATEGIES)
    assert second.code == 0, second.err
    assert "another run is converting step 1_0" in second.out
    assert not (target / "1_0").exists()


def test_dry_run(reshard: Callable[..., Any], places: tuple[Path, Path]) -> None:
    source, target = places
    for number in range(2):
        save_step(source, f"1_{number}")
        reshard("convert-latest", source, target, *STRATEGIES)
    save_step(source, "1_2")
    shown = reshard("convert-latest", source, target, *STRATEGIES, "--dry-run", "--keep-checkpoint-max", 2)
    assert shown.code == 0, shown.err
    assert [" ".join(line.split()) for line in shown.out.splitlines()] == [
        f"outcome step 1_2 would be converted to {target}/1_2",
        "would be removed 1_0",
        "kept 1 conversion",
    ]
    assert sorted(path.name for path in target.iterdir()) == ["1_0", "1_1"]


def test_json_is_the_report(reshard: Callable[..., Any], places: tuple[Path, Path]) -> None:
    source, target = places
    save_step(source, "1_0")
    save_step(source, "1_1", ranks=[2])
    shown = reshard("convert-latest", source, target, *STRATEGIES, "--keep-checkpoint-per-n-minutes", 5, "--json")
    report = LatestReport.model_validate_json(shown.out)
    assert (report.step, report.kept) == ("1_0", ("1_0",))
    assert "no file of rank_0, rank_1, rank_3" in report.notes[0]


def test_wrong_input(reshard: Callable[..., Any], places: tuple[Path, Path]) -> None:
    source, target = places
    save_step(source, "1_0", ranks=[0])
    shown = reshard("convert-latest", source, target, *STRATEGIES)
    assert (shown.code, shown.out) == (2, "")
    assert f"{source}: holds no complete checkpoint" in shown.err
    shown = reshard("convert-latest", source, target, "--patience-seconds", 5)
    assert shown.code == 2
    assert "--patience-seconds 5: must be at least the settling time, 60" in shown.err


def test_each_note_is_shown_once(reshard: Callable[..., Any], places: tuple[Path, Path]) -> None:
    source, target = places
    save_step(source, "1_0")
    save_step(source, "1_1", ranks=[2])
    shown = reshard("convert-latest", source, target, *STRATEGIES)
    for text in ("no file of rank_0, rank_1, rank_3", "step 1_0 was converted to"):
        assert (shown.out + shown.err).count(text) == 1
        assert text in shown.out

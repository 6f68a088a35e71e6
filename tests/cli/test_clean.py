from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import reshard as public
from reshard.core.storage.lease import held_lease
from reshard.core.storage.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.target.claim import leases_of
from tests.support.checkpoints import case

CASE = case(7010)
DIRECT = (
    *("--source-strategy", CASE.directory / "src_strategy.ckpt"),
    *("--target-strategy", CASE.directory / "dst_strategy.ckpt"),
    *("--engine", "direct"),
)


@pytest.fixture
def half(reshard: Callable[..., Any], tmp_path: Path) -> Path:
    """The target of a conversion of which one of two ranks is done."""
    assert reshard("convert", CASE.directory / "src", tmp_path / "out", *DIRECT, "--ranks", "0").code == 0
    return tmp_path / "out"


def partial(target: Path) -> Path:
    return target.with_name("out.reshard-partial")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.cli.clean._is_terminal", lambda: True)


def test_nothing_to_clean(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("clean", tmp_path / "out")
    assert (shown.code, shown.out) == (0, f"{tmp_path}/out: killed runs left nothing to remove\n")


def test_without_a_terminal_it_only_lists(reshard: Callable[..., Any], half: Path) -> None:
    shown = reshard("clean", half)
    assert shown.code == 1
    row = shown.out.splitlines()[1].split()
    assert row[:3] == ["unfinished", "conversion", str(partial(half))]
    assert row[-1] == "ago"
    assert shown.err == "nothing was removed: use --yes to remove all of it\n"
    assert partial(half).exists()


def test_yes_removes(reshard: Callable[..., Any], half: Path) -> None:
    shown = reshard("clean", half, "--yes")
    assert shown.code == 0
    assert shown.out.endswith(f"{half}: removed 1 leftover\n")
    assert not partial(half).exists()


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_on_a_terminal_it_asks(
    reshard: Callable[..., Any], half: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return answer == "y"

    monkeypatch.setattr("click.confirm", confirm)
    assert reshard("clean", half).code == code
    assert len(asked) == 1
    assert asked[0].startswith("\nRemove all of it, ")
    assert partial(half).exists() == (answer == "n")


@pytest.mark.usefixtures("terminal")
def test_no_answer_is_no(reshard: Callable[..., Any], half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(text: str) -> bool:
        raise click.Abort

    monkeypatch.setattr("click.confirm", interrupted)
    shown = reshard("clean", half)
    assert (shown.code, shown.err) == (1, "")
    assert partial(half).exists()


@pytest.mark.usefixtures("terminal")
def test_json_removes_only_with_yes(reshard: Callable[..., Any], half: Path) -> None:
    listed = reshard("clean", half, "--json")
    assert (listed.code, listed.json["removed"], listed.err) == (1, False, "")
    assert [each["kind"] for each in listed.json["found"]] == ["unfinished conversion"]
    removed = reshard("clean", half, "--json", "--yes")
    assert (removed.code, removed.json["removed"]) == (0, True)
    assert removed.json["found"] == listed.json["found"]
    assert not partial(half).exists()


def test_a_living_run_is_wrong_input(reshard: Callable[..., Any], half: Path) -> None:
    with held_lease(leases_of(parse_url(str(half))), holder := new_holder([1])):
        shown = reshard("clean", half, "--yes")
    assert shown.code == 2
    assert f"run {holder.run} of " in shown.err
    assert partial(half).exists()


def test_the_function(half: Path) -> None:
    report = public.clean(half)
    assert ([str(each.kind) for each in report.found], report.removed) == (["unfinished conversion"], False)
    assert public.clean(half, remove=True).removed
    assert public.clean(half) == public.CleanReport(target=str(half), found=(), removed=False, kept=())

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import reshard as public
from reshard.core.errors import InputError
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leases_of
from tests.support.checkpoints import case
from tests.support.small_files import forget_memory

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


def test_a_mistyped_path_is_wrong_input(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("clean", tmp_path / "out")
    assert shown.code == 2
    assert f"{tmp_path}/out: does not exist" in shown.err


def test_a_directory_that_is_no_target(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "out/mine").mkdir(parents=True)
    shown = reshard("clean", tmp_path / "out")
    assert shown.code == 0
    assert shown.out.startswith(f"{tmp_path}/out: no unfinished work\n")
    assert "has no manifest and no records of a conversion" in shown.out


def test_without_a_terminal_it_only_lists(reshard: Callable[..., Any], half: Path) -> None:
    shown = reshard("clean", half)
    assert shown.code == 1
    header, line = shown.out.splitlines()[:2]
    assert header.startswith("unfinished work")
    assert " 1 of 2 ranks done " in line
    row = line.split()
    assert row[:3] == ["unfinished", "conversion", str(partial(half))]
    assert row[-1] == "ago"
    assert shown.err == "nothing was removed: use --yes to remove all of it\n"
    assert partial(half).exists()


def test_yes_removes(reshard: Callable[..., Any], half: Path) -> None:
    shown = reshard("clean", half, "--yes")
    assert shown.code == 0
    assert shown.out.endswith(f"{half}: removed 1 leftover\n")
    assert not partial(half).exists()


def test_the_last_line_names_what_remains(reshard: Callable[..., Any], half: Path) -> None:
    out = parse_url("memory://clean/out")
    try:
        for file in filter(Path.is_file, partial(half).rglob("*")):
            write_bytes(out.child(str(file.relative_to(partial(half)))), file.read_bytes())
        write_bytes(out.child("rank_9/mine.ckpt"), b"mine")
        shown = reshard("clean", out, "--yes")
    finally:
        forget_memory()
    assert shown.code == 0
    removed, last = shown.out.splitlines()[-2:]
    assert removed == f"{out}: removed 1 leftover"
    assert last.startswith("not removed: 1 checkpoint file without a manifest")
    assert "rank_9/mine.ckpt" in last


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
    with pytest.raises(InputError, match="does not exist"):
        public.clean(half)

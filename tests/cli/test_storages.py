"""Storage options by name on the command line: every command opens its URLs with them, and none shows them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reshard.core.storage.named_options import options_for
from tests.support.checkpoints import case, read_tree
from tests.support.locked_storage import KEY, locked_storage, put_tree

FOUR_TO_THREE = case(7009)
STRATEGIES = ("--source-strategy", "locked://a/src_strategy.ckpt", "--target-strategy", "locked://b/dst_strategy.ckpt")
STORAGES = ("--source-storage", "env:STORAGE", "--target-storage", "env:STORAGE")


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The case's files on a storage that needs a key, and the key in a variable."""
    monkeypatch.setenv("STORAGE", json.dumps({"key": KEY}))
    with locked_storage() as fs:
        put_tree(fs, FOUR_TO_THREE.directory, "/a")
        put_tree(fs, FOUR_TO_THREE.directory, "/b")
        yield


def test_without_its_options_the_storage_stays_closed(reshard: Callable[..., Any]) -> None:
    shown = reshard("inspect", "locked://a/src")
    assert (shown.code, shown.err) == (2, "reshard: error: 'locked://a/src': cannot be opened: the key is wrong\n")


def test_a_conversion_opens_both_sides(reshard: Callable[..., Any], tmp_path: Path) -> None:
    local = tmp_path / "out"
    shown = reshard("convert", "locked://a/src", local, *STRATEGIES, *STORAGES, "--engine", "direct", "--json")
    assert shown.code == 0, shown.err
    assert read_tree(local) == FOUR_TO_THREE.want
    shown = reshard(
        "convert",
        local,
        "locked://b/out",
        *STRATEGIES[2:],
        *STORAGES[2:],
        "--engine",
        "direct",
        "--json",
        "--source-strategy",
        FOUR_TO_THREE.directory / "dst_strategy.ckpt",
    )
    assert shown.code == 0, shown.err
    shown = reshard("verify", "locked://b/out", "--storage", "env:STORAGE")
    assert (shown.code, shown.out.endswith("all files intact\n")) == (0, True)


def test_commands_that_write_nothing_open_it(reshard: Callable[..., Any], tmp_path: Path) -> None:
    for arguments in (
        ("convert", "locked://a/src", "locked://b/new", *STRATEGIES, *STORAGES, "--dry-run"),
        ("plan", "locked://a/src", "locked://b/new", *STRATEGIES, *STORAGES),
        ("plan", "locked://a/src", *STRATEGIES, *STORAGES),
        ("inspect", "locked://a/src", "--storage", "env:STORAGE"),
        ("inspect", "locked://a/src_strategy.ckpt", "--storage", "env:STORAGE"),
    ):
        shown = reshard(*arguments)
        assert shown.code == 0, shown.err
        assert KEY not in shown.out + shown.err
    assert options_for("locked://a/src") == {}


def test_strategies_are_merged_on_it(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("merge-strategy", "locked://a/src_strategy.ckpt", "locked://b/m.json", "--storage", "env:STORAGE")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("locked:///b/m.json: 1 stage of 4 devices")
    shown = reshard("merge-strategy", "locked://a/src_strategy.ckpt", tmp_path / "m.json", "--storage", "env:STORAGE")
    assert shown.code == 0, shown.err


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "locked://a/src", "out", "--engine", "direct", "--source-storage"),
        ("convert", "locked://a/src", "out", "--dry-run", "--source-storage"),
        ("plan", "locked://a/src", "--source-storage"),
        ("verify", "locked://a/src", "--storage"),
        ("inspect", "locked://a/src", "--storage"),
        ("merge-strategy", "locked://a", "out", "--storage"),
    ],
    ids=lambda command: f"{command[0]} {command[-2]}",
)
def test_wrong_names_are_refused(reshard: Callable[..., Any], command: tuple[str, ...]) -> None:
    shown = reshard(*command, "env:NOT_THERE")
    message = "reshard: error: env:NOT_THERE: there is no such variable in the environment\n"
    assert (shown.code, shown.err) == (2, message)
    shown = reshard(*command, json.dumps({"key": KEY}))
    assert shown.code == 2
    assert "must be env:NAME, file:PATH or block:NAME" in shown.err
    assert KEY not in shown.err


@pytest.mark.slow
def test_a_block_is_looked_for_in_prefect(spawned: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    shown = spawned("inspect", "memory://a", "--storage", "block:b")
    assert shown.code == 3
    assert shown.err.startswith("reshard: error: block:b: cannot be loaded from Prefect: ")


COMMANDS = {
    "convert": ("convert", "src", OUT := "memory://out", "--engine", "direct"),
    "convert by a flow": ("convert", "src", OUT),
    "convert, dry": ("convert", "src", OUT, "--dry-run"),
    "convert-latest": ("convert-latest", "src", OUT),
    "join-parts": ("join-parts", "src", "src", OUT),
    "merge-strategy": ("merge-strategy", "src", OUT),
    "make-strategy": ("make-strategy", OUT, "--like", "src", "-D", "1", "-M", "1"),
    "plan --html": ("plan", "src", "--html", OUT),
    "convert to references": ("convert", "src", "reference://out", "--engine", "direct"),
}


@pytest.mark.parametrize("called", COMMANDS)
def test_nothing_is_written_into_the_memory_of_a_command(reshard: Callable[..., Any], called: str) -> None:
    shown = reshard(*COMMANDS[called])
    assert shown.code == 2
    assert "keeps files in the memory of this process, and they would be gone with it: name a directory" in shown.err

"""File names that would move a terminal's cursor, forge lines, or are not text: shown escaped, converted as usual."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkpoints import case, read_tree
from tests.support.command import Result
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.records import change_record

NAME = "a\x1b[2J\n![x](evil)|<b>[red]\r"
SHOWN = "a\\x1b[2J\\n![x](evil)|<b>[red]\\r"
FOUR_TO_THREE = case(7009)
STRATEGIES = (
    *("--source-strategy", FOUR_TO_THREE.directory / "src_strategy.ckpt"),
    *("--target-strategy", FOUR_TO_THREE.directory / "dst_strategy.ckpt"),
)
Command = Callable[..., Result]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint in a directory, and of files, with such names."""
    directory = tmp_path / NAME
    shutil.copytree(FOUR_TO_THREE.directory / "src", directory)
    for folder in directory.glob("rank_*"):
        (file,) = folder.iterdir()
        file.rename(folder / f"{NAME}{folder.name.removeprefix('rank_')}{file.suffix}")
    return directory


def is_text(shown: str) -> bool:
    """Whether a terminal would show all of it as it is."""
    return all(line.isprintable() for line in shown.split("\n"))


def test_a_message_about_a_file_shows_its_name_on_one_line(reshard: Command, tmp_path: Path) -> None:
    file = tmp_path / f"{NAME}.ckpt"
    file.write_bytes(b"\x0a\xff\xff\xff")
    for command in ("inspect", "fingerprint"):
        shown = reshard(command, file)
        assert shown.code == 2
        assert f"{tmp_path}/{SHOWN}.ckpt: " in shown.err
        assert is_text(shown.err)


@pytest.mark.parametrize("command", ["inspect", "doctor", "plan", "fingerprint"])
def test_a_checkpoint_is_described_as_text(reshard: Command, source: Path, command: str) -> None:
    strategy = () if command == "inspect" else STRATEGIES[:2]
    shown = reshard(command, source, *strategy)
    assert shown.code == 0, shown.err
    assert is_text(shown.out + shown.err)
    assert SHOWN in shown.out + shown.err or command == "fingerprint"


def test_a_conversion_and_what_follows_it_show_names_as_text(reshard: Command, source: Path, tmp_path: Path) -> None:
    target = tmp_path / f"{NAME}-out"
    for _ in range(2):
        done = reshard("convert", source, target, *STRATEGIES, "--engine", "direct")
        assert done.code == 0, done.err
        assert f"to         {tmp_path}/{SHOWN}-out" in done.out
        assert is_text(done.out + done.err)
    assert read_tree(target) == FOUR_TO_THREE.want
    checked = reshard("verify", target)
    assert f"{tmp_path}/{SHOWN}-out: 3 ranks checked" in checked.out
    assert is_text(checked.out + checked.err)
    refused = reshard("convert", FOUR_TO_THREE.directory / "full", target, "--engine", "direct")
    assert f"{tmp_path}/{SHOWN}-out: " in refused.err
    assert is_text(refused.err)


def test_json_has_names_as_they_are(reshard: Command, source: Path) -> None:
    shown = reshard("inspect", source, "--json")
    assert shown.json["url"] == str(source)
    odd = source.with_name("c1\x9b\u202e\U000e0001\udcff")
    source.rename(odd)
    shown = reshard("inspect", odd, "--json")
    assert shown.json["url"] == str(odd)
    assert is_text(shown.out)


def test_a_page_has_names_as_text(reshard: Command, source: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert reshard("plan", source, *STRATEGIES, "--html", page).code == 0
    html = page.read_text()
    assert "<b>[red]" not in html
    assert "a\\x1b[2J\\n![x](evil)|&lt;b&gt;[red]\\r" in html
    assert "\x1b" not in html


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/net\xff\x1b.ckpt"
    Path(os.fsdecode(file)).write_bytes(b"\x0a\xff\xff\xff")
    command = [os.fsencode(sys.executable), b"-m", b"reshard.cli.main", b"inspect", file]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 2
    assert b"/net\\udcff\\x1b.ckpt: " in done.stderr


def test_the_trace_of_a_bug_is_kept_whatever_is_in_it(reshard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError(f"{NAME}\udcff https://h/x?token=hunter2")

    monkeypatch.setattr("reshard.core.source.description.describe", broken)
    monkeypatch.setattr("reshard.cli.inspect.describe", broken, raising=False)
    shown = reshard("inspect", "/x")
    assert shown.code == 70
    assert is_text(shown.err)
    (file,) = re.findall(r"\S+reshard-error-\S+\.txt", shown.err)
    kept = Path(file).read_text(encoding="utf-8")
    assert "KeyError" in kept
    assert "hunter2" not in kept + shown.err


def test_a_request_that_json_could_not_hold_is_refused(reshard: Command, tmp_path: Path) -> None:
    refused = reshard("convert", tmp_path / "a\udcff", tmp_path / "out")
    assert refused.code == 2
    assert is_text(refused.err)
    assert json.dumps(refused.err)


def test_a_target_that_records_could_not_name_is_refused_before_it_is_written(reshard: Command, tmp_path: Path) -> None:
    target = tmp_path / "a\udcff.json"
    strategy = FOUR_TO_THREE.directory / "src_strategy.ckpt"
    refused = reshard("merge-strategy", strategy, target)
    assert refused.code == 2
    assert f"{tmp_path}/a\\udcff.json: its name is not UTF-8 text; name another target" in refused.err
    assert not target.exists()


def test_what_a_manifest_of_others_says_is_shown_as_text(reshard: Command, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert reshard("convert", FOUR_TO_THREE.directory / "src", target, *STRATEGIES, "--engine", "direct").code == 0
    changes = {"source": NAME, "writer": NAME, "notes": [NAME], "dropped": [NAME], "created": NAME, "format": NAME}
    change_record(target / ".reshard" / "manifest.json", **changes)
    for command in ("inspect", "verify"):
        shown = reshard(command, target)
        assert is_text(shown.out + shown.err), command
    assert re.search(rf"\nfrom +{re.escape(SHOWN)}\n", reshard("inspect", target).out)
    change_record(target / ".reshard" / "manifest.json", encryption=NAME, sealed="eA==")
    refused = reshard("verify", target)
    assert f"is encrypted with {SHOWN}: name its key" in refused.err

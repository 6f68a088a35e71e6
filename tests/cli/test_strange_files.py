"""Pipes, sockets, directories and loops of links in place of files, and names that are not text."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import case, read_tree
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.special_files import make_socket

CASE = case(7010)
STRATEGIES = (
    *("--source-strategy", CASE.directory / "src_strategy.ckpt"),
    *("--target-strategy", CASE.directory / "dst_strategy.ckpt"),
    *("--engine", "direct"),
)
NOT_UTF8 = os.fsdecode(b"bad\xff")

KINDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "a pipe, not a regular file"),
    "socket": (make_socket, "a socket, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
    "directory": (Path.mkdir, "Is a directory"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    convert(CASE.request(tmp_path / "out"))
    return tmp_path / "out"


def replace(path: Path, kind: str) -> str:
    """Replaces a file by something of this kind; returns the problem that messages name."""
    path.unlink(missing_ok=True)
    make, problem = KINDS[kind]
    make(path)
    return problem


def convert_again(bounded: Callable[..., Any], out: Path) -> Any:
    return bounded("convert", CASE.directory / "src", out, *STRATEGIES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["rank_0/checkpoint_0.ckpt", ".reshard/records/rank_0.json"])
def test_a_targets_file_that_was_replaced_is_damaged_and_mended(
    bounded: Callable[..., Any], converted: Path, kind: str, file: str
) -> None:
    before = read_tree(converted)
    problem = replace(converted / file, kind)
    shown = bounded("verify", converted)
    assert shown.code == 1
    assert f"{converted}/{file}: cannot read it: {problem}" in shown.out
    assert convert_again(bounded, converted).code == 0
    assert bounded("verify", converted).code == 0
    assert read_tree(converted) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_that_was_replaced(bounded: Callable[..., Any], converted: Path, kind: str) -> None:
    problem = replace(converted / ".reshard/manifest.json", kind)
    for shown in (bounded("verify", converted), convert_again(bounded, converted)):
        assert shown.code == 2
        assert f".reshard/manifest.json: cannot read it: {problem}" in shown.err
    assert bounded("convert", CASE.directory / "src", converted, *STRATEGIES, "--overwrite").code == 0
    assert bounded("verify", converted).code == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "model.safetensors.index.json"])
def test_a_unified_targets_file_that_was_replaced_is_mended(
    bounded: Callable[..., Any], tmp_path: Path, kind: str, file: str
) -> None:
    out = tmp_path / "out"
    unified = ("--layout", "unified", "--max-shard-size", "300KiB")
    command = ("convert", CASE.directory / "src", out, *STRATEGIES[:2], *STRATEGIES[4:], *unified)
    assert bounded(*command).code == 0
    before = (out / file).read_bytes()
    problem = replace(out / file, kind)
    shown = bounded("verify", out)
    assert shown.code == 1
    assert f"{out}/{file}: cannot read it: {problem}" in shown.out
    assert bounded(*command).code == 0
    assert bounded("verify", out).code == 0
    assert (out / file).read_bytes() == before


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_a_plan_that_was_replaced(bounded: Callable[..., Any], converted: Path, kind: str) -> None:
    problem = replace(converted / ".reshard/plan.json.gz", kind)
    shown = bounded("verify", converted, "--level", "content")
    assert shown.code == 2
    assert f"plan.json.gz: cannot read it: {problem}" in shown.err


def test_a_directory_with_somebodys_files_in_the_place_of_a_ranks_file_stays(
    bounded: Callable[..., Any], converted: Path
) -> None:
    place = converted / "rank_0/checkpoint_0.ckpt"
    replace(place, "directory")
    (place / "precious").write_text("mine")
    shown = convert_again(bounded, converted)
    assert shown.code == 2
    assert f"{place}/precious: does not belong to this checkpoint" in shown.err
    assert (place / "precious").read_text() == "mine"


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"device"}))
def test_a_key_file_that_is_none(bounded: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    problem = replace(tmp_path / "key", kind)
    key = f"file:{tmp_path}/key"
    shown = bounded("convert", CASE.directory / "src", tmp_path / "out", *STRATEGIES, "--encrypt-key", key)
    assert shown.code == 2
    assert f"{key}: cannot be read: {problem}" in shown.err


def test_a_key_without_end_is_not_read(tmp_path: Path) -> None:
    arguments = ["convert", CASE.directory / "src", tmp_path / "out", *STRATEGIES, "--encrypt-key", "file:/dev/zero"]
    command = [
        "sh",
        "-c",
        'ulimit -v 8000000; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "reshard.cli.main",
        *map(str, arguments),
    ]
    shown = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert shown.returncode == 2
    assert "file:/dev/zero: cannot be read: a device, not a regular file" in shown.stderr


def test_a_key_that_is_a_large_file(bounded: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * (2**20 + 1))
    key = f"file:{tmp_path}/key"
    shown = bounded("convert", CASE.directory / "src", tmp_path / "out", *STRATEGIES, "--encrypt-key", key)
    assert (shown.code, shown.err) == (2, f"reshard: error: {key}: cannot be read: has more than 1048576 bytes\n")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_to_be_read_and_is_no_file(bounded: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    source = CASE.directory / "src"
    paths = {
        name: tmp_path / name for name in ("changes.yaml", "strategy.ckpt", "model.safetensors.index.json", "a.ckpt")
    }
    for path in paths.values():
        replace(path, kind)
    out = tmp_path / "out"
    commands = [
        ("convert", source, out, *STRATEGIES, "--changes", paths["changes.yaml"]),
        ("convert", source, out, "--source-strategy", paths["strategy.ckpt"], "--engine", "direct"),
        ("merge-strategy", paths["strategy.ckpt"], tmp_path / "merged.ckpt"),
        ("plan", paths["model.safetensors.index.json"], out),
        ("plan", paths["a.ckpt"], out),
        ("inspect", paths["a.ckpt"]),
        ("diff", paths["a.ckpt"], source),
        ("verify", paths["a.ckpt"]),
    ]
    for command in commands:
        shown = bounded(*command)
        assert shown.code in (2, 3), (command, shown)
        assert "error: " in shown.err, command
    assert not out.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_ranks_file_that_is_none(bounded: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    shutil.copytree(CASE.directory / "src", tmp_path / "src")
    replace(tmp_path / "src/rank_3/checkpoint_3.ckpt", kind)
    shown = bounded("convert", tmp_path / "src", tmp_path / "out", *STRATEGIES)
    assert shown.code == 2
    assert "missing: rank_3" in shown.err


def test_a_source_that_became_a_pipe_is_not_waited_for(bounded: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(CASE.directory / "src", tmp_path / "src")
    assert bounded("convert", tmp_path / "src", tmp_path / "out", *STRATEGIES).code == 0
    replace(tmp_path / "src/rank_0/checkpoint_0.ckpt", "pipe")
    shown = bounded("verify", tmp_path / "out", "--level", "content")
    assert shown.code == 2
    assert "which no longer exists" in shown.err
    assert "rank_0/checkpoint_0.ckpt: cannot read it: a pipe, not a regular file" in shown.err


def test_a_pattern_that_names_pipes(bounded: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(CASE.directory / "src", tmp_path / "src")
    replace(tmp_path / "src/rank_3/checkpoint_3.ckpt", "pipe")
    shown = bounded("convert", f"{tmp_path}/src/rank_{{rank}}/checkpoint_{{rank}}.ckpt", tmp_path / "out", *STRATEGIES)
    assert (shown.code, shown.err) == (
        2,
        f"reshard: error: {tmp_path}/src/rank_3/checkpoint_3.ckpt: is not a regular file\n",
    )


@pytest.mark.parametrize("place", ["{}.txt", "rank_0/{}.txt", "rank_0/{}.ckpt", "rank_0/{}/x.ckpt"])
def test_a_name_that_is_not_utf8_beside_the_sources_files(
    bounded: Callable[..., Any], tmp_path: Path, place: str
) -> None:
    source = tmp_path / "src"
    shutil.copytree(CASE.directory / "src", source)
    path = source / place.format(NOT_UTF8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    strategy = STRATEGIES[:2]
    for command in (
        ("inspect", source, "--json"),
        ("plan", source, tmp_path / "out", *strategy, "--json"),
        ("recover", source, *strategy, "--json"),
        ("fingerprint", source, *strategy, "--json"),
        ("convert", source, tmp_path / "out", *STRATEGIES),
        ("convert", source, tmp_path / "again", *STRATEGIES, "--json"),
        ("verify", tmp_path / "out", "--level", "content"),
    ):
        shown = bounded(*command)
        assert shown.code == 0, (command, shown.err)
    assert read_tree(tmp_path / "out") == read_tree(CASE.directory / "want")


def test_sources_files_whose_names_are_not_utf8(bounded: Callable[..., Any], tmp_path: Path) -> None:
    for rank in range(8):
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
        file = CASE.directory / f"src/rank_{rank}/checkpoint_{rank}.ckpt"
        shutil.copy(file, tmp_path / f"src/rank_{rank}/{NOT_UTF8}.ckpt")
    assert bounded("convert", tmp_path / "src", tmp_path / "out", *STRATEGIES).code == 0
    assert bounded("verify", tmp_path / "out", "--level", "content").code == 0


def test_a_name_that_is_not_utf8_in_a_target(bounded: Callable[..., Any], converted: Path) -> None:
    (converted / "rank_0" / f"{NOT_UTF8}.ckpt").write_bytes(b"x")
    shown = bounded("verify", converted, "--json")
    assert shown.code == 1
    assert shown.json["problems"][0].startswith(f"{converted}/rank_0/bad\\udcff.ckpt: does not belong")
    assert convert_again(bounded, converted).code == 2


def test_a_record_whose_number_is_a_superscript(bounded: Callable[..., Any], converted: Path) -> None:
    (converted / ".reshard/records/rank_².json").write_text("x")
    problem = f"{converted}/.reshard/records/rank_².json: does not belong to this checkpoint's records"
    again = convert_again(bounded, converted)
    assert again.code == 2
    assert problem in again.err
    shown = bounded("verify", converted)
    assert shown.code == 1
    assert problem in shown.out + shown.err

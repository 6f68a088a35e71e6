"""Links to checkpoints and foreign files in a target's working directories stay untouched."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import case, read_tree

CASE = case(7010)
OPTIONS = (
    *("--source-strategy", CASE.directory / "src_strategy.ckpt"),
    *("--target-strategy", CASE.directory / "dst_strategy.ckpt"),
    *("--engine", "direct"),
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    shutil.copytree(CASE.directory / "src", tmp_path / "src")
    return tmp_path / "src"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another checkpoint, whose files have the names that the target's will have."""
    shutil.copytree(CASE.directory / "src", tmp_path / "other")
    return tmp_path / "other"


def everything(*directories: Path) -> dict[str, bytes]:
    files = (path for directory in directories for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
@pytest.mark.parametrize("beside", ["out.reshard-partial", "out.reshard-replaced"])
@pytest.mark.parametrize("leads_to", ["src", "other", "nowhere"])
def test_a_link_beside_the_target_that_leads_to_a_checkpoint(
    reshard: Callable[..., Any],
    tmp_path: Path,
    source: Path,
    other: Path,
    beside: str,
    leads_to: str,
    options: tuple[str, ...],
) -> None:
    (tmp_path / beside).symlink_to(tmp_path / leads_to)
    before = everything(source, other)
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS, *options)
    assert shown.code == 2
    assert f"{tmp_path}/{beside}: is a link to {tmp_path}/{leads_to}. Conversions neither write nor" in shown.err
    assert everything(source, other) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("linked", ["rank_0", ".reshard", ".reshard/leases", ".reshard/records", "rank_1"])
def test_a_link_in_the_working_directory_that_leads_to_a_checkpoint(
    reshard: Callable[..., Any], tmp_path: Path, source: Path, other: Path, linked: str
) -> None:
    link = tmp_path / "out.reshard-partial" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(other / "rank_0")
    before = everything(source, other)
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS)
    assert shown.code == 2
    assert f"{link}: is a link to {other}/rank_0. Conversions neither write nor" in shown.err
    assert everything(source, other) == before


@pytest.mark.parametrize("linked", ["rank_0", ".reshard", ".reshard/records"])
def test_a_link_in_a_finished_target_is_not_mended_through(
    reshard: Callable[..., Any], tmp_path: Path, source: Path, linked: str
) -> None:
    """Once the link made the damaged file seem a part of another target with the same names."""
    convert(CASE.request(tmp_path / "out", source=str(source)))
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    (tmp_path / "other/rank_0/checkpoint_0.ckpt").write_bytes(b"another model's")
    shutil.rmtree(tmp_path / "out" / linked)
    (tmp_path / "out" / linked).symlink_to(tmp_path / "other" / linked)
    (tmp_path / "out/rank_1/checkpoint_1.ckpt").unlink()
    before = everything(tmp_path / "other")
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS)
    assert shown.code == 2
    message = (
        f"is a link to {tmp_path}/other/{linked}" if linked == ".reshard" else "does not belong to this checkpoint"
    )
    assert f"{tmp_path}/out/{linked}: {message}" in shown.err
    assert everything(tmp_path / "other") == before


@pytest.mark.parametrize("kept", ["notes.txt", "rank_0/notes.txt", ".reshard/records/notes.txt", "models/net.ckpt"])
@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_what_somebody_keeps_in_the_working_directory_is_named_and_stays(
    reshard: Callable[..., Any], tmp_path: Path, source: Path, kept: str, options: tuple[str, ...]
) -> None:
    path = tmp_path / "out.reshard-partial" / kept
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS, *options)
    assert shown.code == 2
    assert ": is not a file that conversions write. " in shown.err
    assert path.read_text() == "mine"
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_has_the_working_directorys_name_stays(
    reshard: Callable[..., Any], tmp_path: Path, source: Path, other: Path
) -> None:
    working = other.rename(tmp_path / "out.reshard-partial")
    before = everything(working)
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS, "--overwrite")
    assert shown.code == 2
    assert f"{working}: holds checkpoint files, but no .reshard of a conversion" in shown.err
    assert everything(working) == before


def test_a_finished_conversion_that_lost_its_identity_stays(
    reshard: Callable[..., Any], tmp_path: Path, source: Path
) -> None:
    convert(CASE.request(tmp_path / "done", source=str(source)))
    working = (tmp_path / "done").rename(tmp_path / "out.reshard-partial")
    (working / ".reshard/identity").unlink()
    before = everything(working)
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS)
    assert shown.code == 2
    assert f"{working}: holds a finished conversion, but not its identity" in shown.err
    assert everything(working) == before


def test_what_somebody_keeps_where_a_former_target_is_moved_stays(
    reshard: Callable[..., Any], tmp_path: Path, source: Path
) -> None:
    (tmp_path / "out.reshard-replaced").mkdir()
    (tmp_path / "out.reshard-replaced/thesis.tex").write_text("mine")
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS)
    assert shown.code == 2
    assert "out.reshard-replaced: holds foreign files (thesis.tex)" in shown.err
    assert (tmp_path / "out.reshard-replaced/thesis.tex").read_text() == "mine"


def test_a_finished_target_is_still_one_whatever_is_beside_it(
    reshard: Callable[..., Any], tmp_path: Path, source: Path
) -> None:
    convert(CASE.request(tmp_path / "out", source=str(source)))
    (tmp_path / "out.reshard-replaced").mkdir()
    (tmp_path / "out.reshard-replaced/thesis.tex").write_text("mine")
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS)
    assert shown.code == 0
    assert "out.reshard-replaced: " in shown.err
    assert (tmp_path / "out.reshard-replaced/thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    "left", ["rank_0/.checkpoint_0.ckpt.0123abcd.tmp", "rank_7/net_7.ckpt", "rank_0/old.safetensors"]
)
def test_what_a_killed_run_left_is_cleared_and_gone_on_from(
    reshard: Callable[..., Any], tmp_path: Path, source: Path, left: str
) -> None:
    convert(CASE.request(tmp_path / "out", source=str(source)))
    working = (tmp_path / "out").rename(tmp_path / "out.reshard-partial")
    (working / ".reshard/manifest.json").unlink()
    (working / ".reshard/records/rank_1.json").unlink()
    (working / ".reshard/leases").mkdir()
    (working / ".reshard/leases/.gate").touch()
    (working / ".reshard/leases/0123abcd.json").write_text("")
    (working / left).parent.mkdir(exist_ok=True)
    (working / left).touch()
    shown = reshard("convert", source, tmp_path / "out", *OPTIONS)
    assert shown.code == 0
    assert "resuming: 1 of 2 ranks are done already" in shown.err
    assert not working.exists()
    assert read_tree(tmp_path / "out") == read_tree(CASE.directory / "want")
    assert reshard("verify", tmp_path / "out").code == 0

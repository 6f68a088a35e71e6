"""Unusable targets are refused before any byte of the source is read: the sources here do not even exist."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import InputError, TargetError
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from tests.support.checkpoints import case, read_tree
from tests.support.joining import join_parts
from tests.support.training import latest_request

FOUR_TO_THREE = case(7009)
STRATEGIES = {f"{side}_strategy": "/nowhere/strategy.ckpt" for side in ("source", "target")}


@pytest.fixture
def final(folder: Location) -> Location:
    return folder.child("out")


def into(final: Location | Path, **options: object) -> ConversionRequest:
    return build_request(**({"source": "/nowhere/src", "target": str(final)} | STRATEGIES | options))


each_way = pytest.mark.parametrize("way", [convert, describe_plan])
Way = Callable[[ConversionRequest], object]


@each_way
def test_a_target_with_foreign_files(final: Location, way: Way) -> None:
    write_bytes(final.child("thesis.tex"), b"x")
    for overwrite in (False, True):
        with pytest.raises(TargetError) as caught:
            way(into(final, overwrite=overwrite))
        assert str(caught.value) == (
            f"{final}: is not empty and holds foreign files (thesis.tex). Name another target, or move them away"
        )


@each_way
def test_a_target_with_a_checkpoint(final: Location, way: Way) -> None:
    write_bytes(final.child("rank_0", "net.ckpt"), b"x")
    with pytest.raises(TargetError) as caught:
        way(into(final))
    assert str(caught.value) == f"{final}: is not empty. Name another target, or pass overwrite=True to replace it"
    with pytest.raises(InputError, match="/nowhere/strategy.ckpt"):
        way(into(final, overwrite=True))


@each_way
def test_a_target_that_was_converted_from_another_source(final: Location, way: Way) -> None:
    convert(FOUR_TO_THREE.request(str(final)))
    with pytest.raises(TargetError) as caught:
        way(into(final))
    assert str(caught.value) == (
        f"{final}: is not empty: it was converted from another source, {FOUR_TO_THREE.directory / 'src'}. Name another "
        "target, or pass overwrite=True to replace it"
    )
    for request in (into(final, overwrite=True), into(final, source=str(FOUR_TO_THREE.directory / "src"))):
        with pytest.raises(InputError, match="/nowhere/strategy.ckpt"):
            way(request)


@each_way
def test_a_target_with_a_damaged_manifest(final: Location, way: Way) -> None:
    write_bytes(final.child(".reshard", "manifest.json"), b"{")
    write_bytes(final.child("rank_0", "net.ckpt"), b"x")
    with pytest.raises(TargetError, match=r"not a readable manifest: .* Restore it, or pass overwrite=True"):
        way(into(final))


@each_way
def test_a_target_that_is_a_file(tmp_path: Path, way: Way) -> None:
    (tmp_path / "out").write_text("x")
    for target in (tmp_path / "out", tmp_path / "out/below"):
        with pytest.raises(TargetError, match="a file, not a directory"):
            way(into(target))


@each_way
def test_a_target_inside_the_source(way: Way) -> None:
    with pytest.raises(TargetError, match="/nowhere/src/out: lies inside the source /nowhere/src; name another target"):
        way(into(Path("/nowhere/src/out")))


def test_the_plan_of_an_interrupted_conversion_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "out"
    request = FOUR_TO_THREE.request(target)
    convert(request)
    shutil.rmtree(target / "rank_1")
    (target / ".reshard/manifest.json").unlink()
    assert convert(request).committed
    assert read_tree(target) == FOUR_TO_THREE.want


def test_joining_parts_into_what_is_there(final: Location) -> None:
    write_bytes(final.child("rank_0", "net.ckpt"), b"x")
    with pytest.raises(TargetError) as caught:
        join_parts(["/nowhere/stage0", "/nowhere/stage1"], str(final))
    assert str(caught.value) == f"{final}: is not empty. Name another target, or remove it"


def test_the_newest_step_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(TargetError, match="out: is a file, not a directory"):
        convert_latest(latest_request(Path("/nowhere/src"), tmp_path / "out"))

"""Ranks' files in one folder are converted as ranks, and one of them never passes for the whole model."""

import shutil
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from tests.support.checkpoints import case, read_tree

FOUR_TO_THREE = case(7009)


def in_one_folder(to: Path, name: str) -> Path:
    """The case's source, with the file of each rank in one folder."""
    to.mkdir()
    for folder in (FOUR_TO_THREE.directory / "src").glob("rank_*"):
        [file] = folder.glob("*.ckpt")
        shutil.copyfile(file, to / name.format(folder.name.removeprefix("rank_")))
    return to


@pytest.mark.parametrize("name", ["net_rank_{}.ckpt", "net_rank{}-1_40.ckpt", "_rank{}_.ckpt"])
def test_ranks_in_one_folder_are_converted_by_their_strategy(name: str, tmp_path: Path) -> None:
    source = in_one_folder(tmp_path / "src", name)
    convert(FOUR_TO_THREE.request(tmp_path / "out", source=str(source)))
    assert read_tree(tmp_path / "out") == FOUR_TO_THREE.want


@pytest.mark.parametrize("options", [{}, {"source_prefix": "net_rank_0"}, {"layout": "unified"}])
def test_one_of_several_ranks_is_not_taken_for_the_whole_model(options: dict[str, str], tmp_path: Path) -> None:
    source = in_one_folder(tmp_path / "src", "net_rank_{}.ckpt")
    given = {"source_strategy": "", "target_strategy": "", **options}
    with pytest.raises(CatalogError, match="4 ranks in one folder .*: several ranks need a source strategy"):
        convert(FOUR_TO_THREE.request(tmp_path / "out", source=str(source), **given))
    assert not (tmp_path / "out").exists()


def test_a_rank_that_is_missing_in_one_folder_is_named(tmp_path: Path) -> None:
    source = in_one_folder(tmp_path / "src", "net_rank_{}.ckpt")
    (source / "net_rank_2.ckpt").unlink()
    with pytest.raises(CatalogError, match="missing: rank_2"):
        convert(FOUR_TO_THREE.request(tmp_path / "out", source=str(source)))

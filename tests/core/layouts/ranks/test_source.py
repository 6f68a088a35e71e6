"""Ranks' files in one folder are converted as ranks, and one of them never passes for the whole model."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import case, read_tree

FOUR_TO_THREE = case(7009)
ONE_RANK = {"source_strategy": "", "target_strategy": ""}


def copy_of_rank(rank: int, to: Path) -> None:
    [file] = (FOUR_TO_THREE.directory / "src" / f"rank_{rank}").glob("*.ckpt")
    shutil.copyfile(file, to)


def in_one_folder(to: Path, name: str) -> Path:
    """The case's source, with the file of each rank in one folder."""
    to.mkdir()
    for rank in range(4):
        copy_of_rank(rank, to / name.format(rank))
    return to


def refusal_of(source: Path, target: Path) -> str:
    """The refusal of a source without a strategy."""
    with pytest.raises(CatalogError) as caught:
        convert(FOUR_TO_THREE.request(target, source=str(source), **ONE_RANK))
    assert not target.exists()
    return str(caught.value)


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


def test_a_file_of_one_rank_beside_others_is_not_taken_for_the_whole_model(tmp_path: Path) -> None:
    source = in_one_folder(tmp_path / "src", "net_rank_{}-1_40.ckpt")
    said = refusal_of(source / "net_rank_1-1_40.ckpt", tmp_path / "out")
    assert said == (
        f"{source}/net_rank_1-1_40.ckpt: is of rank_1 alone, without rank_0, rank_2, rank_3 beside it. "
        f"Name {source} and its strategy with 'source_strategy'; if every rank holds whole tensors, pass "
        "integrated_save='yes'"
    )


@pytest.mark.parametrize("named", ["rank_1", "rank_1/src1.ckpt"])
def test_the_folder_of_one_rank_beside_others_is_not_taken_for_the_whole_model(named: str, tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / "src" / f"rank_{rank}").mkdir(parents=True)
        copy_of_rank(rank, tmp_path / "src" / f"rank_{rank}" / f"src{rank}.ckpt")
    said = refusal_of(tmp_path / "src" / named, tmp_path / "out")
    assert f"{named}: is of rank_1 alone, without rank_0, rank_2, rank_3 beside it. " in said
    assert f"Name {tmp_path / 'src'} and its strategy" in said


def test_one_of_several_whole_ranks_is_converted_on_request_with_a_note(tmp_path: Path) -> None:
    source = in_one_folder(tmp_path / "src", "net_rank_{}.ckpt") / "net_rank_1.ckpt"
    request = FOUR_TO_THREE.request(tmp_path / "out", source=str(source), integrated_save="yes", **ONE_RANK)
    notes = convert(request).notes
    assert f"{source}: is of rank_1 alone, without rank_0, rank_2, rank_3 beside it" in notes


def test_a_rank_without_others_beside_it_is_noted(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    copy_of_rank(3, tmp_path / "src" / "net_rank_3.ckpt")
    for number, source in enumerate((tmp_path / "src", tmp_path / "src" / "net_rank_3.ckpt")):
        request = FOUR_TO_THREE.request(tmp_path / f"out_{number}", source=str(source), **ONE_RANK)
        assert f"{source}: is of rank_3 by its name, and taken for the whole checkpoint" in convert(request).notes


def test_files_of_other_names_are_not_other_ranks(tmp_path: Path) -> None:
    source = tmp_path / "src" / "net_rank_0.ckpt"
    source.parent.mkdir()
    for name in ("net_rank_0.ckpt", "net_rank_0-1_40.ckpt", "adapter_rank_8.ckpt", "net_rank_1.txt"):
        copy_of_rank(0, source.parent / name)
    notes = convert(FOUR_TO_THREE.request(tmp_path / "out", source=str(source), **ONE_RANK)).notes
    assert not any("is of rank" in note for note in notes)


def test_two_ranks_are_compared_as_they_are(tmp_path: Path) -> None:
    source = in_one_folder(tmp_path / "src", "net_rank_{}.ckpt")
    comparison = ComparisonRequest(a=str(source / "net_rank_0.ckpt"), b=str(source / "net_rank_0.ckpt"))
    assert compare_checkpoints(comparison).same


def test_one_numbered_file_is_converted_with_a_note(tmp_path: Path) -> None:
    source = tmp_path / "model-00001-of-00003.safetensors"
    save_file({"weight": np.zeros(2, np.float32)}, source)
    notes = convert(FOUR_TO_THREE.request(tmp_path / "out", source=str(source), **ONE_RANK)).notes
    assert f"{source}: is one of 3 files by its name: what the others hold is not read" in notes

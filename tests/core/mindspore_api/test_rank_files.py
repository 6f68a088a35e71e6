"""The choice of a file in each rank's folder."""

import shutil
from pathlib import Path

import pytest

from reshard import mindspore
from tests.support import transformed
from tests.support.checkpoints import read_tree
from tests.support.places import FIXTURES
from tests.support.transformed import VALUES, tensor, transform, write_rank


def test_folders_may_have_zeros_in_front(rows: Path) -> None:
    for rank in range(2):
        (rows / "src" / f"rank_{rank}").rename(rows / "src" / f"rank_{rank:03}")
    transform(rows)
    assert read_tree(rows / "out")[1] == {"w": tensor(VALUES[:, 1:])}
    write_rank(rows / "src", 0, {"w": tensor(VALUES)})
    with pytest.raises(ValueError, match="rank_0 and rank_000 are both rank 0's folder: remove the one that is not"):
        transform(rows)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["net-9_5", "net-10_5"], "net-9_5"),  # the last by name, as MindSpore documents it
        (["net-1_1", "net"], "net"),
        (["a-2_1", "b-1_1"], "b-1_1"),
        (["net-1_1", "net-1_1_breakpoint"], "net-1_1_breakpoint"),
        (["zet{rank}-1_1", "a{rank}-2_1"], "zet{rank}-1_1"),
    ],
)
def test_of_several_files_the_last_by_name_is_taken_with_a_warning(rows: Path, names: list[str], taken: str) -> None:
    for rank in range(2):
        (rows / "src" / f"rank_{rank}" / "net.ckpt").unlink()
        for number, name in enumerate(names):
            values = VALUES[2 * rank : 2 * rank + 2] + 100 * number
            write_rank(rows / "src", rank, {"w": tensor(values)}, name.format(rank=rank))
    message = rf"rank_0 has 2 checkpoint files \(.*\); {taken.format(rank=0)}\.ckpt is taken, the last by name$"
    with pytest.warns(UserWarning, match=message) as caught:
        transform(rows, dst_strategy_file=None)
    assert caught[0].filename == transformed.__file__
    assert read_tree(rows / "out")[0] == {"w": tensor(VALUES + 100 * names.index(taken))}


def test_steps_are_not_mixed(rows: Path) -> None:
    for rank, steps in enumerate((("1_1", "2_1"), ("1_1",))):
        (rows / "src" / f"rank_{rank}" / "net.ckpt").unlink()
        for step in steps:
            write_rank(rows / "src", rank, {"w": tensor(VALUES[2 * rank : 2 * rank + 2])}, f"net-{step}")
    with pytest.warns(
        UserWarning, match=r"net-1_1\.ckpt is taken, the last by name that all ranks have, not .* rank_0$"
    ):
        transform(rows)
    (rows / "src" / "rank_1" / "net-1_1.ckpt").unlink()
    write_rank(rows / "src", 1, {"w": tensor(VALUES[:2])}, "net-3_1")
    with pytest.raises(ValueError, match="rank_0 has 2 .*no step and prefix is on all of the ranks that are needed"):
        transform(rows)


def test_encrypted_files(rows: Path) -> None:
    encrypted = FIXTURES / "formats" / "encrypted_AES-GCM.ckpt"
    for rank in range(2):
        shutil.copy(encrypted, rows / "src" / f"rank_{rank}" / "net.ckpt")
    message = (
        r"rank_0/net\.ckpt: is encrypted, and this function takes no key: load it by load_checkpoint with its 'dec_key'"
    )
    with pytest.raises(ValueError, match=message):
        transform(rows)
    files = {rank: str(rows / "src" / f"rank_{rank}" / "net.ckpt") for rank in range(2)}
    with pytest.raises(ValueError, match=message):
        mindspore.transform_checkpoint_by_rank(0, files, str(rows / "a.ckpt"), str(rows / "rows.ckpt"))

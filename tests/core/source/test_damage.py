"""Lost ranks: the advice of a refusal, and the ranks that substitute for them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.damaged import file_of, request_of, whole_shards
from tests.support.plans import make_strategy


def test_without_recover_the_refusal_says_that_it_would_not_do(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path)
    for rank in (1, 3, 5):
        shutil.rmtree(file_of(directory, rank).parent)
    with pytest.raises(CatalogError) as message:
        convert(request_of(directory))
    first, second = str(message.value).splitlines()
    assert "missing: rank_1, rank_3, rank_5" in first
    assert second.startswith(
        "recover=True would not be enough: not all of what rank_1, rank_3, rank_5 should hold is on other"
    )
    assert "'a': [2:4] of the whole tensor has no holder; it should be on rank_1, rank_3, rank_5" in second


def test_another_stages_copy_stands_in_box_by_box(tmp_path: Path) -> None:
    """Of a tied parameter the first stage cuts rows and the second columns: both have lost a rank."""
    rows, columns = ParameterLayout((2,), ((0,), ())), ParameterLayout((2,), ((), (0,)))
    strategy = make_strategy({"tied": rows}, {"tied": columns})
    tensor = np.arange(16, dtype=np.int32).reshape(4, 4)
    for rank, part in enumerate([tensor[:2], tensor[2:], tensor[:, :2], tensor[:, 2:]]):
        path = tmp_path / f"src/rank_{rank}/net-1_1.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(checkpoint_bytes(("tied", "Int32", part.shape, part.tobytes())))
    write_strategy(strategy, str(tmp_path / "strategy.ckpt"))
    report = convert(request_of(tmp_path, recover=True, fault_ranks="0"))
    assert read_tree(tmp_path / "out")[0]["tied"][2] == tensor.tobytes()
    assert [(each.rank, each.stand_in) for each in report.stand_ins] == [(0, 2), (0, 3)]
    with pytest.raises(CatalogError) as message:
        convert(request_of(tmp_path, recover=True, fault_ranks="0,3", overwrite=True))
    assert "'tied': [0:2, 2:4] of the whole tensor has no holder; it should be on rank_0, rank_3" in str(message.value)
    gone = convert(request_of(tmp_path, recover=True, fault_ranks="0,1", overwrite=True))
    assert read_tree(tmp_path / "out")[0]["tied"][2] == tensor.tobytes()
    assert {(each.rank, each.stand_in) for each in gone.stand_ins} == {(0, 2), (0, 3), (1, 2), (1, 3)}


def test_that_ranks_were_saved_whole_is_part_of_the_advice(tmp_path: Path) -> None:
    """No shape shows it: by the strategy alone a slice would be lost."""
    for rank in (0, 2):
        path = tmp_path / f"src/rank_{rank}/net-1_1.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(checkpoint_bytes(("w", "Int32", (9,), np.arange(9, dtype=np.int32).tobytes())))
    write_strategy(make_strategy({"w": ParameterLayout((3,), ((0,),))}), str(tmp_path / "strategy.ckpt"))
    with pytest.raises(CatalogError, match=r"missing: rank_1\nrecover=True would not be enough"):
        convert(request_of(tmp_path))
    with pytest.raises(CatalogError, match=r"missing: rank_1\nrecover=True would succeed"):
        convert(request_of(tmp_path, integrated_save="yes"))
    convert(request_of(tmp_path, recover=True, integrated_save="yes"))
    assert read_tree(tmp_path / "out")[0]["w"][1] == (9,)

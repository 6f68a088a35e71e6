"""Files that were cut off exactly between two entries."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CheckpointError
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.damaged import entries_of, request_of, whole_model, whole_shards, with_crc


def test_a_file_cut_off_between_two_entries_is_damaged(tmp_path: Path) -> None:
    """It can be read to its end, and would pass for one of a redundancy-removed checkpoint."""
    directory = whole_shards(tmp_path, {3: {"c"}})
    with pytest.raises(CheckpointError) as refusal:
        convert(request_of(directory))
    assert "rank_3/net-1_1.ckpt: seems to have been cut off after 2 parameters, with which rank_0's file" in str(
        refusal.value
    )
    assert "recover=True would succeed: what rank_3 should hold is on other ranks as well" in str(refusal.value)
    report = convert(request_of(directory, recover=True))
    assert read_tree(tmp_path / "out")[0] == whole_model()
    assert [(each.rank, each.stand_in, each.slices) for each in report.stand_ins] == [(3, 1, 3)]


def test_a_file_cut_off_between_two_entries_lacks_the_crc(tmp_path: Path) -> None:
    """Only its CRC is missed: that each slice has a copy would not show it."""
    directory = whole_shards(tmp_path)
    for rank in range(6):
        path = directory / "src" / f"rank_{rank}" / "net-1_1.ckpt"
        extra = ("global_step", "Int32", (), b"\1\0\0\0")
        whole, cut = (checkpoint_bytes(*entries_of(path), *extras) for extras in ((extra,), ()))
        path.write_bytes(cut if rank == 4 else with_crc(whole))
    with pytest.raises(CheckpointError, match=r"rank_4/net-1_1\.ckpt: seems to have been cut off after 3 parameters"):
        convert(request_of(directory))

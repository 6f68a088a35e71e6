"""Merging strategy files: what is written, and what is refused."""

from pathlib import Path

import pytest

from reshard.core.conversion.merge_strategy import merge_files
from reshard.core.errors import InputError
from reshard.core.strategy.files import read_strategy
from tests.support.checkpoints import case

PIPELINE = case(7010).directory


@pytest.mark.parametrize("name", ["merged.ckpt", "merged.json"])
def test_stages_are_merged_into_one_file_of_either_format(name: str, tmp_path: Path) -> None:
    report = merge_files(str(PIPELINE / "src_stages"), str(tmp_path / name))
    assert (report.stages, report.devices_per_stage, report.url) == (2, 4, str(tmp_path / name))
    merged, wanted = read_strategy(str(tmp_path / name)), read_strategy(str(PIPELINE / "src_strategy.ckpt"))
    assert [stage.layouts for stage in merged.stages] == [stage.layouts for stage in wanted.stages]
    assert report.parameters == len(merged.parameters)


def test_a_file_that_exists_is_replaced_only_if_asked(tmp_path: Path) -> None:
    target = tmp_path / "merged.ckpt"
    target.write_bytes(b"x")
    with pytest.raises(InputError, match="merged.ckpt"):
        merge_files(str(PIPELINE / "src_stages"), str(target))
    assert target.read_bytes() == b"x"
    assert merge_files(str(PIPELINE / "src_stages"), str(target), overwrite=True).stages == 2
    assert read_strategy(str(target)).merged

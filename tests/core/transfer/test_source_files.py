"""Source files are the very files that were planned with, and few of them are open at a time."""

from pathlib import Path

import pytest

from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.source_files import LocalFiles, are_remote
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.plans import make_strategy
from tests.support.source_directories import build_catalog

ROWS = ParameterLayout((3,), ((0,),), True)


@pytest.fixture
def plan(tmp_path: Path) -> ConversionPlan:
    for rank in range(3):
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "m.ckpt").write_bytes(checkpoint_bytes(("w", "Int32", (2,), bytes(range(8)))))
    catalog = build_catalog(str(tmp_path), range(3), digest=lambda *_: False)
    strategy = make_strategy({"w": ROWS})
    write_strategy(strategy, str(tmp_path / "strategy.ckpt"))
    return build_plan(PlanInputs(catalog, strategy, None, CheckpointFormat.CKPT, layout=RankFolders()))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_few_files_stay_open(plan: ConversionPlan) -> None:
    assert not are_remote(plan)
    before = open_descriptors()
    files = LocalFiles(plan, max_open=2)
    for rank in (0, 1, 0, 2, 0, 1):
        assert files.open(rank).size_bytes > 0
        assert open_descriptors() <= before + 2
    assert files.open(1) is files.open(1)
    files.check_unchanged()
    files.close()
    assert open_descriptors() == before


def test_a_file_that_changed_is_refused(plan: ConversionPlan, tmp_path: Path) -> None:
    files = LocalFiles(plan, max_open=2)
    files.open(0)
    with (tmp_path / "rank_0" / "m.ckpt").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CatalogError, match=r"rank_0: .*m\.ckpt changed while it was being read"):
        files.check_unchanged()
    files.close()
    with pytest.raises(CatalogError, match="changed while it was being read"):
        files.open(0)

"""Files of plans, which appear when all of them are whole and checked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import VerificationError
from reshard.core.mindspore_api import file_writing
from reshard.core.mindspore_api.file_writing import PlannedFile, write_files
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.urls import Location
from reshard.core.verification.files import RankVerification, verify_rank
from tests.support.checkpoints import case, read_ckpt


@pytest.fixture
def plan(tmp_path: Path) -> ConversionPlan:
    return make_plan(case(7015).request(tmp_path / "unused"))


def test_ranks_become_files_of_any_names(plan: ConversionPlan, tmp_path: Path) -> None:
    paths = {rank: tmp_path / f"out/folder_{rank}/file.ckpt" for rank in (0, 3)}
    write_files([PlannedFile(plan, rank, str(path)) for rank, path in paths.items()], str(tmp_path / "out"), workers=2)
    for rank, path in paths.items():
        assert read_ckpt(path) == case(7015).want[rank]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["folder_0", "folder_3"]


def test_nothing_appears_if_one_file_is_wrong(
    plan: ConversionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_for_rank_3(directory: Location, record: ShardRecord, *arguments: Any, **options: Any) -> RankVerification:
        found = verify_rank(directory, record, *arguments, **options)
        return replace(found, problems=("wrong",)) if record.rank == 3 else found

    monkeypatch.setattr(file_writing, "verify_rank", fails_for_rank_3)
    files = [PlannedFile(plan, rank, str(tmp_path / f"out/{rank}.ckpt")) for rank in (0, 3)]
    with pytest.raises(VerificationError, match=r"3\.ckpt: wrong"):
        write_files(files, str(tmp_path / "out"), workers=1)
    assert not list((tmp_path / "out").iterdir())

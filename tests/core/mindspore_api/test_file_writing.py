"""Files of plans, which appear when all of them are whole and checked."""

from pathlib import Path
from typing import Any

import fsspec
import pytest
from msgspec.structs import replace

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import VerificationError
from reshard.core.mindspore_api import file_writing
from reshard.core.mindspore_api.file_writing import PlannedFile, write_files
from reshard.core.plan.plan import ConversionPlan
from reshard.core.storage.listing import find_files
from reshard.core.storage.urls import Location, parse_url
from reshard.core.verification.files import RankVerification, verify_rank
from tests.support.checkpoints import case, read_ckpt


@pytest.fixture
def plan(tmp_path: Path) -> ConversionPlan:
    return make_plan(case(7015).request(tmp_path / "unused"))


def test_ranks_become_files_of_any_names(plan: ConversionPlan, tmp_path: Path) -> None:
    paths = {rank: f"folder_{rank}/file.ckpt" for rank in (0, 3)}
    files = [PlannedFile(plan, rank, path) for rank, path in paths.items()]
    write_files(files, parse_url(str(tmp_path / "out")), workers=2)
    for rank, path in paths.items():
        assert read_ckpt(tmp_path / "out" / path) == case(7015).want[rank]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["folder_0", "folder_3"]


def test_files_on_a_remote_storage(plan: ConversionPlan, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        write_files([PlannedFile(plan, 3, "a/3.ckpt")], parse_url("memory://file-writing/out"), workers=2)
        assert memory.find("/file-writing") == ["/file-writing/out/a/3.ckpt"]
        memory.get("/file-writing/out/a/3.ckpt", str(tmp_path / "3.ckpt"))
        assert read_ckpt(tmp_path / "3.ckpt") == case(7015).want[3]
    finally:
        memory.rm("/file-writing", recursive=True)


@pytest.mark.parametrize("remote", [False, True])
def test_nothing_appears_if_one_file_is_wrong(
    plan: ConversionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    def fails_for_rank_3(directory: Location, record: ShardRecord, *arguments: Any, **options: Any) -> RankVerification:
        found = verify_rank(directory, record, *arguments, **options)
        return replace(found, problems=("wrong",)) if record.rank == 3 else found

    monkeypatch.setattr(file_writing, "verify_rank", fails_for_rank_3)
    directory = parse_url("memory://file-writing/wrong" if remote else str(tmp_path / "out"))
    files = [PlannedFile(plan, rank, f"{rank}.ckpt") for rank in ([3] if remote else [0, 3])]
    with pytest.raises(VerificationError, match=r"(out|wrong)/3\.ckpt: wrong$"):
        write_files(files, directory, workers=1)
    assert not find_files(directory)

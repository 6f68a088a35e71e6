"""Sessions: earlier work that is found, mended or refused, and runs that share a target."""

import json
from pathlib import Path
from typing import Any

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import ConversionError, StorageError, TargetError
from reshard.core.storage.publishing import other_files
from reshard.core.storage.urls import parse_url
from reshard.core.target.target import Target
from reshard.core.target.workspace import Workspace
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_tree
from tests.support.conversions import damage, outcomes, stop_before_commit, whole_copies
from tests.support.runs import partial

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_file_that_does_not_match_its_record_is_done_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before_commit(monkeypatch, FOUR_TO_THREE.request(target))
    file = partial(target) / "rank_2" / "checkpoint_2.ckpt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    report = convert(FOUR_TO_THREE.request(target))
    assert outcomes(report) == ["resumed", "resumed", "written"]
    assert read_tree(target) == FOUR_TO_THREE.want


def test_a_damaged_record_is_done_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before_commit(monkeypatch, FOUR_TO_THREE.request(target))
    (partial(target) / ".reshard" / "records" / "rank_0.json").write_text("{")
    assert outcomes(convert(FOUR_TO_THREE.request(target))) == ["written", "resumed", "resumed"]


def test_a_second_run_finds_all_done(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    report = convert(FOUR_TO_THREE.request(target))
    assert outcomes(report) == ["resumed"] * 3
    assert report.committed
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before
    assert not partial(target).exists()


def test_a_finished_target_is_mended(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    (target / "rank_1" / "checkpoint_1.ckpt").unlink()
    report = convert(FOUR_TO_THREE.request(target))
    assert outcomes(report) == ["resumed", "written", "resumed"]
    assert read_tree(target) == FOUR_TO_THREE.want


def test_another_plan_does_not_take_over_unfinished_work(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before_commit(monkeypatch, FOUR_TO_THREE.request(target))
    with pytest.raises(TargetError, match="an unfinished conversion by another plan.*overwrite=True"):
        convert(FOUR_TO_THREE.request(target, prefix="other_"))
    report = convert(FOUR_TO_THREE.request(target, prefix="other_", overwrite=True))
    assert outcomes(report) == ["written"] * 3
    assert sorted(path.name for path in target.rglob("*.ckpt")) == ["other_0.ckpt", "other_1.ckpt", "other_2.ckpt"]


def test_ranks_done_by_several_runs_are_committed_by_the_last(target: Path) -> None:
    first = convert(FOUR_TO_THREE.request(target, ranks="0,2"))
    assert (first.committed, first.missing_ranks) == (False, (1,))
    assert first.directory == f"{target}.reshard-partial"
    assert not target.exists()
    last = convert(FOUR_TO_THREE.request(target, ranks="1"))
    assert (last.committed, last.directory) == (True, str(target))
    assert read_tree(target) == FOUR_TO_THREE.want


def test_copies_whose_original_is_done_elsewhere_are_written(target: Path) -> None:
    strategy = whole_copies(target.parent, 3)
    report = convert(FOUR_TO_THREE.request(target, target_strategy=strategy, ranks="1-2"))
    assert outcomes(report) == ["written", "written"]
    assert convert(FOUR_TO_THREE.request(target, target_strategy=strategy, ranks="0")).committed
    [first, *others] = read_tree(target).values()
    assert others == [first, first]


def test_two_runs_into_one_target(target: Path) -> None:
    request = FOUR_TO_THREE.request(target)
    with open_session(request, make_plan(request)):
        with pytest.raises(TargetError, match=r"another run is already converting into this target: run \w{8} of .* "):
            convert(request)
        with pytest.raises(TargetError, match="It holds target ranks 0, 1, 2"):
            convert(FOUR_TO_THREE.request(target, ranks="0-2"))
    assert convert(request).committed


def test_other_ranks_may_be_done_at_the_same_time(target: Path) -> None:
    request = FOUR_TO_THREE.request(target, ranks="0")
    with open_session(request, make_plan(request)):
        assert not convert(FOUR_TO_THREE.request(target, ranks="1-2")).committed
        with pytest.raises(TargetError, match="It uses other options"):
            convert(FOUR_TO_THREE.request(target, ranks="1", prefix="p_", overwrite=True))
    assert convert(request).committed


def test_a_record_that_names_another_file_is_not_gone_on_from(target: Path) -> None:
    """A correct file elsewhere made a rank count as done."""
    convert(FOUR_TO_THREE.request(target))
    record = target / ".reshard/records/rank_0.json"
    for file in ("rank_0/other.ckpt", f"../{target.name}/rank_0/checkpoint_0.ckpt"):
        fields = json.loads(record.read_text()) | {"file": file}
        record.write_text(json.dumps(fields))
        assert verify_target(str(target), VerifyLevel.CHECKSUM).problems
        assert convert(FOUR_TO_THREE.request(target)).committed
        assert json.loads(record.read_text())["file"] == "rank_0/checkpoint_0.ckpt"
        assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


@pytest.mark.parametrize("moment", ["list", "read"])
def test_a_run_whose_target_is_completed_by_another_while_it_begins(
    target: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    convert(FOUR_TO_THREE.request(target, ranks="0-1"))
    method = {"list": Workspace.recorded_ranks, "read": Workspace.read_record}[moment]
    begun: list[bool] = []

    def after_another_run(workspace: Workspace, *arguments: int) -> object:
        if not begun:
            begun.append(True)
            assert convert(FOUR_TO_THREE.request(target, ranks="2")).committed
        return method(workspace, *arguments)  # type: ignore[operator]

    monkeypatch.setattr(Workspace, method.__name__, after_another_run)
    report = convert(FOUR_TO_THREE.request(target, ranks="0-1"))
    assert report.committed
    assert outcomes(report) == ["resumed", "resumed"]
    assert read_tree(target) == FOUR_TO_THREE.want
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    "look", ["reshard.core.target.workspace.Workspace.recorded_ranks", "reshard.core.target.upkeep.other_files"]
)
def test_a_target_that_is_replaced_by_another_plan_while_it_is_looked_at(
    target: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """The other one's records and manifest used to be removed, or its files to be taken for nobody's."""
    convert(FOUR_TO_THREE.request(target))
    function: Any = {"recorded_ranks": Workspace.recorded_ranks, "other_files": other_files}[look.rpartition(".")[2]]

    def slow_look(*arguments: Any) -> object:
        monkeypatch.setattr(look, function)
        replaced = convert(FOUR_TO_THREE.request(target, prefix="other_", overwrite=True))
        assert replaced.committed
        return function(*arguments)

    monkeypatch.setattr(look, slow_look)
    with pytest.raises(TargetError, match="is not empty. Name another target, or pass overwrite=True"):
        convert(FOUR_TO_THREE.request(target))
    assert read_tree(target) == FOUR_TO_THREE.want
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_mending_where_a_refused_run_left_its_place(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    (partial(target) / ".reshard" / "leases").mkdir(parents=True)
    damage(next((target / "rank_1").iterdir()))
    assert outcomes(convert(FOUR_TO_THREE.request(target))) == ["resumed", "written", "resumed"]
    assert read_tree(target) == FOUR_TO_THREE.want


def test_mending_while_another_plan_is_unfinished(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    convert(FOUR_TO_THREE.request(target, prefix="other_", ranks="0", overwrite=True))
    damage(next((target / "rank_1").iterdir()))
    assert outcomes(convert(FOUR_TO_THREE.request(target))) == ["resumed", "written", "resumed"]
    assert read_tree(target) == FOUR_TO_THREE.want
    assert partial(target).exists()


def test_a_target_replaced_by_another_plan_just_before_it_is_mended(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    request = FOUR_TO_THREE.request(target, overwrite=True)
    mended = Target(parse_url(str(target)), make_plan(request), overwrite=True)
    assert mended.workspace.directory == mended.final
    convert(FOUR_TO_THREE.request(target, prefix="other_", overwrite=True))
    with pytest.raises(TargetError, match="was just replaced by another conversion"), mended.claimed([0]):
        pass
    assert read_tree(target) == FOUR_TO_THREE.want
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


def test_what_a_killed_run_was_writing_is_in_nobodys_way_and_removed(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    left = [
        target / "rank_1" / ".checkpoint_1.ckpt.0123abcd.tmp",
        target / ".reshard" / "records" / ".rank_1.json.0123abcd.tmp",
    ]
    for path in left:
        path.write_bytes(b"half")
    assert outcomes(convert(FOUR_TO_THREE.request(target))) == ["resumed"] * 3
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    damage(next((target / "rank_1").glob("*.ckpt")))
    assert outcomes(convert(FOUR_TO_THREE.request(target))) == ["resumed", "written", "resumed"]
    assert not [path for path in left if path.exists()]


def test_a_target_that_cannot_be_mended_stays_where_it_is(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(FOUR_TO_THREE.request(target))
    damage(next((target / "rank_1").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(
            "reshard.core.conversion.rank_work.transform_ranks",
            lambda *_, **__: (_ for _ in ()).throw(StorageError("no")),
        )
        with pytest.raises(ConversionError, match="1 of 3 target ranks failed"):
            convert(FOUR_TO_THREE.request(target))
    assert len(list(target.glob("rank_*/*"))) == 3
    assert not (target / ".reshard" / "manifest.json").exists()
    assert outcomes(convert(FOUR_TO_THREE.request(target))) == ["resumed", "written", "resumed"]
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert sorted(path.name for path in (target / ".reshard").iterdir()) == [
        "identity",
        "manifest.json",
        "plan.json.gz",
        "records",
    ]

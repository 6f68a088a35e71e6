"""Sources that are rewritten and given their old modification time, or only touched."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, StorageError, TargetBusyError, TargetError
from reshard.core.files.model import CheckpointFormat
from reshard.core.records.plan_file import load_sources
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.progress import SilentProgress
from reshard.core.storage import disk
from reshard.core.storage.store import Entry
from reshard.core.storage.writing import write_bytes
from reshard.core.target.target import Target
from reshard.core.target.workspace import IDENTITY_NAME
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_tree
from tests.support.conversions import outcomes

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def own_source(tmp_path: Path) -> Path:
    shutil.copytree(FOUR_TO_THREE.directory / "src", tmp_path / "src")
    return tmp_path / "src"


def rewrite_with_its_old_time(file: Path, part: int = 2) -> None:
    status, data = file.stat(), bytearray(file.read_bytes())
    file.chmod(0o600)
    data[len(data) // part] ^= 1  # amid a parameter's contents
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns


def test_source_changed_after_planning(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    request = FOUR_TO_THREE.request(target, source=str(source))
    plan = make_plan(request)
    file = source / "rank_1" / "checkpoint_1.ckpt"
    os.utime(file, ns=(1, 1))
    with pytest.raises(InputError, match=r"rank_1: .*checkpoint_1.ckpt changed while it was being read"):
        convert(request, plan_of=lambda _: plan)


def test_a_source_rewritten_with_its_old_time_while_it_is_converted(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    plan = make_plan(request)
    rewrite_with_its_old_time(own_source / "rank_1/checkpoint_1.ckpt")
    message = r"rank_1: .*checkpoint_1.ckpt changed while it was being read .* it was rewritten and given its old"
    with pytest.raises(InputError, match=message):
        convert(request, plan_of=lambda _: plan)


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


def chmod(file: Path) -> None:
    file.chmod(0o444)


def link(file: Path) -> None:
    os.link(file, file.with_name("backup"))
    file.with_name("backup").unlink()


def move_away_and_back(file: Path) -> None:
    file.rename(file.with_name("away")).rename(file)


def interrupted(request: ConversionRequest) -> None:
    """Convert all ranks, and fail at the commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "commit", lambda *_, **__: (_ for _ in ()).throw(StorageError("stopped")))
        with pytest.raises(StorageError):
            convert(request)


@pytest.mark.parametrize("touch", [chmod, link, move_away_and_back])
def test_an_interrupted_run_resumes_after_its_source_was_only_touched(
    own_source: Path, target: Path, touch: Callable[[Path], None]
) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    touch(own_source / "rank_1/checkpoint_1.ckpt")
    notes = Notes()
    assert outcomes(convert(request, notes)) == ["resumed"] * 3
    assert read_tree(target) == FOUR_TO_THREE.want
    [compared] = [note for note in notes.said if "with the source" in note]
    assert re.match(r"comparing 3 finished ranks with the source \(.* KiB\), because ", compared)
    assert f"{own_source}/rank_1/checkpoint_1.ckpt is of the same size and modification time" in compared
    assert "3 of 3 finished ranks are the same as in the source, and are kept" in notes.said
    # the plan beside the target is of the files of today
    assert outcomes(convert(request)) == ["resumed"] * 3
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()


def test_only_the_ranks_that_a_source_rewritten_with_its_old_time_changes_are_done_again(
    own_source: Path, target: Path, tmp_path: Path
) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    rewrite_with_its_old_time(own_source / "rank_1/checkpoint_1.ckpt", 10)
    notes = Notes()
    assert outcomes(convert(request, notes)) == ["written", "resumed", "resumed"]
    assert any("is done again: parameter" in note for note in notes.said)
    convert(FOUR_TO_THREE.request(tmp_path / "anew", source=str(own_source)))
    assert read_tree(target) == read_tree(tmp_path / "anew")


def test_overwrite_also_resumes_after_the_source_was_touched(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source), overwrite=True)
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    assert outcomes(convert(request)) == ["resumed"] * 3


def test_overwrite_discards_nothing_because_a_storage_is_busy(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source), overwrite=True)
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reshard.core.target.touched_sources.load_sources", busy)
        with pytest.raises(StorageError, match="busy"):
            convert(request)
    assert outcomes(convert(request)) == ["resumed"] * 3


def busy(*_: object) -> NoReturn:
    raise StorageError("busy", transient=True)


def test_other_options_and_a_touched_source_are_another_plan(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.raises(TargetError, match=r"by another plan, or of a source that has changed since.*same size and mod"):
        convert(request.model_copy(update={"format": CheckpointFormat.SAFETENSORS}))


def test_a_source_of_another_modification_time_is_another_plan(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    os.utime(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.raises(TargetError, match=r"of a source that has changed since"):
        convert(request)


def test_a_run_killed_while_it_took_over_earlier_work_compares_only_what_is_left(
    own_source: Path, target: Path
) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "take_over", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(request)
    notes = Notes()
    assert outcomes(convert(request, notes)) == ["resumed"] * 3
    assert not any("with the source" in note for note in notes.said)


def test_a_run_killed_before_earlier_work_got_its_identity_is_resumed(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "reshard.core.target.target.write_bytes",
            lambda location, data: _killed() if location.name == IDENTITY_NAME else write_bytes(location, data),
        )
        with pytest.raises(KeyboardInterrupt):
            convert(request)
    load_sources.cache_clear()  # of the process that was killed
    assert outcomes(convert(request)) == ["resumed"] * 3
    assert read_tree(target) == FOUR_TO_THREE.want


def _killed() -> None:
    raise KeyboardInterrupt


def test_two_runs_do_not_compare_the_same_work_at_once(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    plan = make_plan(request)
    one = Target.of(str(target), plan)
    with (
        one.claimed([0]) as claim,
        pytest.raises(TargetBusyError, match="is comparing what is there with the source; start again in a moment"),
        Target.of(str(target), plan).claimed([1]),
    ):
        pass
    assert claim.earlier


def test_a_source_rewritten_with_its_old_time_after_its_conversion(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    convert(request)
    rewrite_with_its_old_time(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.raises(
        TargetError, match=r"is not empty.*overwrite=True to replace it .*it was made from the same source"
    ):
        convert(request)
    assert verify_target(str(target), VerifyLevel.CHECKSUM).problems == ()
    assert verify_target(str(target), VerifyLevel.CONTENT).problems


def test_a_source_of_which_only_the_mode_or_the_links_changed(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    convert(request)
    assert outcomes(convert(request)) == ["resumed"] * 3
    (own_source / "rank_0/checkpoint_0.ckpt").chmod(0o400)
    os.link(own_source / "rank_2/checkpoint_2.ckpt", own_source.parent / "backup")
    with pytest.raises(TargetError) as caught:
        convert(request)
    assert str(caught.value) == (
        f"{target}: is not empty. Name another target, or pass overwrite=True to replace it (it was made from the same "
        f"source, of which {own_source}/rank_2/checkpoint_2.ckpt is of the same size and modification time, but "
        "changed since: it was rewritten and given its old time, or its mode, owner or links were changed; "
        f"'reshard verify' of {target} with level='content' compares the values)"
    )
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()


def test_values_are_compared_although_an_earlier_version_recorded_no_change_times(
    own_source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = disk._entry

    def without_change_time(path: str, status: os.stat_result, is_link: bool) -> Entry:
        return replace(described(path, status, is_link), version=str(status.st_mtime_ns))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "_entry", without_change_time)
        convert(FOUR_TO_THREE.request(target, source=str(own_source)))
    report = verify_target(str(target), VerifyLevel.CONTENT)
    assert report.problems == ()
    assert report.compared


@pytest.mark.parametrize(
    "options",
    [
        {"format": "safetensors", "write_crc": True},
        {"layout": "unified", "target_strategy": "", "format": "safetensors", "max_shard_size": "10KB"},
        {"layout": "dcp", "target_strategy": ""},
        {"encrypt_key": "env:RESHARD_KEY"},
        {"verify": "content"},
        {"target_strategy": ""},
    ],
    ids=lambda options: " ".join(options),
)
def test_files_of_every_kind_are_compared_with_a_touched_source(
    own_source: Path, target: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHARD_KEY", "0123456789abcdef")
    request = FOUR_TO_THREE.request(target, source=str(own_source), **options)
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    assert set(outcomes(convert(request))) == {"resumed"}
    assert set(outcomes(convert(request))) == {"resumed"}


def test_work_on_a_remote_target_is_resumed_after_the_source_was_touched(own_source: Path) -> None:
    target = "memory://touched/out"
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    interrupted(request)
    chmod(own_source / "rank_1/checkpoint_1.ckpt")
    assert outcomes(convert(request)) == ["resumed"] * 3
    assert verify_target(target, VerifyLevel.CONTENT).problems == ()

"""Sources that are rewritten and given their old modification time, or only touched."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert, run_ranks
from reshard.core.conversion.finish import finish
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import InputError, StorageError, TargetError
from reshard.core.request.conversion import VerifyLevel
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.conversions import outcomes

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def own_source(tmp_path: Path) -> Path:
    shutil.copytree(FOUR_TO_THREE.directory / "src", tmp_path / "src")
    return tmp_path / "src"


def rewrite_with_its_old_time(file: Path) -> None:
    status, data = file.stat(), bytearray(file.read_bytes())
    file.chmod(0o600)
    data[len(data) // 2] ^= 1  # amid a parameter's contents
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
    with open_session(request, plan) as session:
        failures = run_ranks(session, threading.Event())
        with pytest.raises(InputError, match=r"rank_1: .*checkpoint_1.ckpt changed while it was being converted"):
            finish(session, failures, 1.0)


def test_a_source_rewritten_with_its_old_time_while_it_is_converted(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    plan = make_plan(request)
    rewrite_with_its_old_time(own_source / "rank_1/checkpoint_1.ckpt")
    with open_session(request, plan) as session:
        failures = run_ranks(session, threading.Event())
        message = (
            r"rank_1: .*checkpoint_1.ckpt changed while it was being converted .* it was rewritten and given its old"
        )
        with pytest.raises(InputError, match=message):
            finish(session, failures, 1.0)


def test_a_source_rewritten_with_its_old_time_before_an_interrupted_run_goes_on(
    own_source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    with monkeypatch.context() as patch:
        patch.setattr(
            "reshard.core.target.target.Target.commit", lambda *_, **__: (_ for _ in ()).throw(StorageError("stopped"))
        )
        with pytest.raises(StorageError):
            convert(request)
    rewrite_with_its_old_time(own_source / "rank_1/checkpoint_1.ckpt")
    message = (
        r"of a source that has changed since.*--overwrite.*src/rank_1/checkpoint_1.ckpt is of the same size and mod"
    )
    with pytest.raises(TargetError, match=message):
        convert(request)
    again = request.model_copy(update={"overwrite": True})
    assert outcomes(convert(again)) == ["written"] * 3


def test_a_source_rewritten_with_its_old_time_after_its_conversion(own_source: Path, target: Path) -> None:
    request = FOUR_TO_THREE.request(target, source=str(own_source))
    convert(request)
    rewrite_with_its_old_time(own_source / "rank_1/checkpoint_1.ckpt")
    with pytest.raises(
        TargetError, match=r"is not empty.*--overwrite to replace it .*it was made from the same source"
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
        f"{target}: is not empty. Name another target, or pass --overwrite to replace it (it was made from the same "
        f"source, of which {own_source}/rank_2/checkpoint_2.ckpt is of the same size and modification time, but "
        "changed since: it was rewritten and given its old time, or its mode, owner or links were changed; "
        f"reshard verify {target} --level content compares the values)"
    )
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()


def test_values_are_compared_although_an_earlier_version_recorded_no_change_times(
    own_source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "reshard.core.storage.reading.local_version", lambda status: f"{status.st_size}-{status.st_mtime_ns}"
        )
        convert(FOUR_TO_THREE.request(target, source=str(own_source)))
    report = verify_target(str(target), VerifyLevel.CONTENT)
    assert report.problems == ()
    assert report.compared

"""Checking a converted checkpoint as a flow: it ends well, or by name."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, VerificationError
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.progress import reporting_to
from reshard.flows.verify_checkpoint import verify_checkpoint
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    convert(FOUR_TO_THREE.request(tmp_path / "out"))
    return tmp_path / "out"


def test_all_is_as_written(converted: Path) -> None:
    report = verify_checkpoint(VerificationRequest(target=str(converted)))
    assert (report.ranks, report.problems, report.level) == (3, (), VerifyLevel.CHECKSUM)
    assert report.read_bytes == sum(len(data) for rank in FOUR_TO_THREE.want.values() for *_, data in rank.values())


def test_a_flipped_bit_is_named(converted: Path) -> None:
    [file] = (converted / "rank_1").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    request = VerificationRequest(target=str(converted))
    with pytest.raises(VerificationError, match="not as it was written:\n.*rank_1.*its bytes are not those"):
        verify_checkpoint(request)
    state = verify_checkpoint(request, return_state=True)
    assert state.is_failed()
    assert "rank_1" in str(state.message)
    structure = verify_checkpoint(request.model_copy(update={"level": VerifyLevel.STRUCTURE}))
    assert not structure.problems


def test_progress_reaches_the_caller(converted: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.total = self.done = 0

        def note(self, message: str) -> None:
            pass

        def begin(self, phase: str, total_bytes: int = 0) -> None:
            self.total = total_bytes

        def advance(self, count_bytes: int) -> None:
            self.done += count_bytes

    listener = Listener()
    with reporting_to(listener):
        report = verify_checkpoint(VerificationRequest(target=str(converted)))
    assert report.read_bytes == listener.done <= listener.total


def test_values_are_compared_with_the_sources(converted: Path) -> None:
    report = verify_checkpoint(VerificationRequest(target=str(converted), level=VerifyLevel.CONTENT))
    assert (report.problems, report.level, report.compared) == ((), VerifyLevel.CONTENT, 7)
    assert report.compared_bytes > 0


def test_what_is_no_conversion_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is not a finished conversion"):
        verify_checkpoint(VerificationRequest(target=str(tmp_path)))


def test_checking_nothing_is_no_level() -> None:
    with pytest.raises(ValidationError, match="Input should be .*structure.*checksum.* or .*content"):
        VerificationRequest.model_validate({"target": "out", "level": "none"})


@pytest.mark.parametrize("fields", [{"target": "s3://key:secret@bucket/out"}, {"target": "out", "storage": "AKIA:x"}])
def test_secrets_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        VerificationRequest.model_validate(fields)
    assert "secret@" not in str(caught.value)
    assert "AKIA" not in str(caught.value)

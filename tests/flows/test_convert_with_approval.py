"""The conversion that asks, as a program calls it; runs of its deployment are in tests/deployments."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.flows import approval
from reshard.flows.convert_with_approval import convert_with_approval
from tests.support.checkpoints import case

REPLACED = "**will be replaced**"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Keys and texts of the questions; the answer is to convert."""
    questions: list[tuple[str, str]] = []

    def ask(question: Any, *, timeout: int, key: str) -> approval.Approval:
        questions.append((key, question._description))
        return approval.Approval(decision=approval.Decision.CONVERT, comment="")

    monkeypatch.setattr(approval, "suspend_flow_run", ask)
    monkeypatch.setattr(approval, "publish_plan", lambda *_: None)
    monkeypatch.setattr(approval, "_end_heartbeat", lambda: None)
    return questions


def request_for(target: Path, **options: Any) -> ApprovedConversionRequest:
    return ApprovedConversionRequest(**case(7009).request(target).model_dump() | options)


def test_a_program_is_told_that_a_worker_has_to_start_the_run_again(tmp_path: Path) -> None:
    fields = case(7009).request(tmp_path / "out").model_dump()
    with pytest.raises(InputError, match="start it from the deployment convert-checkpoint/convert-with-approval"):
        convert_with_approval(ApprovedConversionRequest(**fields))
    assert not list(tmp_path.iterdir())


def test_the_question_tells_of_any_checkpoint_that_would_be_replaced(
    tmp_path: Path, asked: list[tuple[str, str]]
) -> None:
    target = tmp_path / "out"
    request = request_for(target, overwrite=True)
    plan = make_plan(request)
    approval.refused(request, plan)
    convert(case(7009).request(target, format="safetensors"))
    approval.refused(request, plan)
    manifest = target / ".reshard" / "manifest.json"
    manifest.write_text("damaged")
    approval.refused(request, plan)
    shutil.rmtree(target / ".reshard")  # as if MindSpore had written it
    approval.refused(request, plan)
    assert [REPLACED in text for _, text in asked] == [False, True, True, True]
    assert len({key for key, _ in asked[:3]}) == 3


def test_files_of_the_same_plan_are_not_replaced(tmp_path: Path, asked: list[tuple[str, str]]) -> None:
    target = tmp_path / "out"
    request = request_for(target, overwrite=True)
    convert(request.conversion())
    (target / ".reshard" / "manifest.json").unlink()  # as while it is mended
    approval.refused(request, make_plan(request))
    assert [REPLACED in text for _, text in asked] == [False]

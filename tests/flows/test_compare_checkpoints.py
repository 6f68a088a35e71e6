"""Comparing two checkpoints as a flow: it ends well, or says what differs."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from reshard.core.errors import DifferenceError, InputError
from reshard.core.request.comparison import ComparisonRequest, build_comparison
from reshard.flows.compare_checkpoints import compare_checkpoints
from tests.support.checkpoints import case

CASE = case(7009).directory
FULL = str(CASE / "full")


def test_the_same_model() -> None:
    report = compare_checkpoints(
        build_comparison(a=str(CASE / "src"), b=FULL, strategy_a=str(CASE / "src_strategy.ckpt"))
    )
    assert report.same
    assert report.a.parameters == 7


def test_a_difference_fails_the_run_and_is_told(tmp_path: Path) -> None:
    [whole] = Path(FULL).rglob("*.ckpt")
    content = bytearray(whole.read_bytes())
    content[-1] ^= 1
    changed = tmp_path / "changed.ckpt"
    changed.write_bytes(content)
    request = ComparisonRequest(a=FULL, b=str(changed))
    with pytest.raises(DifferenceError, match="^NOT the same: 1 parameter of different content\n.*: content: 1 of "):
        compare_checkpoints(request)
    state = compare_checkpoints(request, return_state=True)
    assert state.is_failed()
    assert str(state.message).startswith("NOT the same")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing"):
        compare_checkpoints(ComparisonRequest(a=FULL, b=str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    "fields", [{"a": "s3://key:secret@bucket/x"}, {"storage_b": "AKIA:x"}, {"decrypt_key_a": "k3y"}]
)
def test_secrets_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        ComparisonRequest.model_validate({"a": "a", "b": "b", **fields})
    for secret in ("secret@", "AKIA", "k3y"):
        assert secret not in str(caught.value)

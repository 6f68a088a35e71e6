"""The conversion that asks, as a program calls it; runs of its deployment are in tests/deployments."""

from pathlib import Path

import pytest

from reshard.core.errors import InputError
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.flows.convert_with_approval import convert_with_approval
from tests.support.checkpoints import case


def test_a_program_is_told_that_a_worker_has_to_start_the_run_again(tmp_path: Path) -> None:
    fields = case(7009).request(tmp_path / "out").model_dump()
    with pytest.raises(InputError, match="start it from the deployment convert-checkpoint/convert-with-approval"):
        convert_with_approval(ApprovedConversionRequest(**fields))
    assert not list(tmp_path.iterdir())

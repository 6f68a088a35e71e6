"""Messages of a run that a form began: its fields by their titles, wherever the message was made."""

import logging
from pathlib import Path
from typing import Any

import pytest

from reshard.deployments import forms
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


def message_of(target: Path, caplog: pytest.LogCaptureFixture, **fields: object) -> str:
    request = FOUR_TO_THREE.request(target, **fields)
    given = {name: getattr(request, name) for name in request.model_fields_set}
    form: Any = forms.convert
    with caplog.at_level(logging.INFO):
        state = form(**given, return_state=True)
    assert state.is_failed()
    assert str(state.message) in caplog.text
    return str(state.message)


def test_a_failed_run_advises_the_forms_field_not_a_flag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "out"
    (target / "rank_0").mkdir(parents=True)
    message = message_of(target, caplog)
    assert message == f"{target}: is not empty. Name another target, or set 'Overwrite' to replace it"


def test_options_of_a_group_are_named_with_their_group(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    message = message_of(tmp_path / "out", caplog, fault_ranks="9", recover=True)
    assert "rank_9 cannot be faulty ('Encrypted and damaged sources: Faulty ranks')" in message

"""Assignments in other processes: another plan, another key."""

import contextvars
from pathlib import Path

import pytest
from msgspec.structs import replace
from prefect.logging import disable_run_logger

from reshard.core.conversion.convert import convert
from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import InputError, TargetError
from reshard.core.request.resources import resources_of
from reshard.tasks.assignment import Assignment
from reshard.tasks.conversion import transform_rank
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


FIRST_RANK = Unit(Kind.WRITE, (0,))


def test_another_plan_in_the_workspace_is_noticed(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with open_session(request, make_plan(request)) as session, disable_run_logger():
        other = replace(Assignment.of(session), identity="0" * 32)
        with pytest.raises(TargetError, match="another conversion"):
            transform_rank.fn(other, FIRST_RANK)


def test_another_key_of_the_same_name_in_another_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    source, strategy = str(tmp_path / "src"), str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    convert(FOUR_TO_THREE.request(source, encrypt_key="env:KEY"))
    keys = {"source": source, "source_strategy": strategy, "decrypt_key": "env:KEY"}
    request = FOUR_TO_THREE.request(tmp_path / "out", **keys)
    with resources_of(request), open_session(request, make_plan(request)) as session, disable_run_logger():
        assignment = Assignment.of(session)
        monkeypatch.setenv("KEY", "16 other letters")
        with pytest.raises(InputError, match=r"^env:KEY: is another key on .* than where the run began: give it"):
            contextvars.Context().run(transform_rank.fn, assignment, FIRST_RANK)

"""The tasks as plain functions: a whole conversion, what they return, and how they end."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.logging import disable_run_logger

from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import PlanError, StoppedError
from reshard.core.request.resources import resources_of
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.progress import SilentProgress, reporting_to
from reshard.tasks.assignment import Assignment
from reshard.tasks.catalog import open_source
from reshard.tasks.conversion import commit_target, transform_rank
from reshard.tasks.planning import plan_conversion
from reshard.tasks.progress import RunProgress
from reshard.tasks.strategies import find_source_strategy, outline_target
from reshard.tasks.verification import verify_rank
from tests.support.checkpoints import case, read_tree

FOUR_TO_THREE = case(7009)
FIRST_RANK = Unit(Kind.WRITE, (0,))


def test_the_tasks_are_a_conversion(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    source_request = SourceRequest.of(request)
    strategy, target = find_source_strategy.fn(source_request), outline_target.fn(request)
    plan = plan_conversion.fn(request, open_source.fn(source_request, strategy, target), target)
    with open_session(request, plan) as session:
        assignment = Assignment.of(session)
        for rank in session.ranks:
            written = transform_rank.fn(assignment, Unit(Kind.WRITE, (rank,)))
            assert str(written.message).startswith(f"rank {rank}: ")
            assert "from source ranks" in str(written.message)
            checked = verify_rank.fn(assignment, Unit(Kind.CHECK, (rank,)))
            assert str(checked.message).startswith(f"rank {rank}: every byte is right")
        report = commit_target.fn(session, 1.0)
    assert report.committed
    assert read_tree(tmp_path / "out") == FOUR_TO_THREE.want


def test_a_first_stage_that_may_be_all_there_is_is_not_planned(tmp_path: Path) -> None:
    stages = case(7010).directory
    for rank in range(4):
        shutil.copytree(stages / f"src/rank_{rank}", tmp_path / f"src/rank_{rank}")
    shutil.copy(stages / "src_stages/strategy_0.ckpt", tmp_path)
    own = str(tmp_path / "strategy_0.ckpt")
    request = case(7010).request(tmp_path / "out", source=str(tmp_path / "src"), source_strategy=own)
    source_request, target = SourceRequest.of(request), outline_target.fn(request)
    source = open_source.fn(source_request, find_source_strategy.fn(source_request), target)
    with pytest.raises(PlanError, match="4 parameters of the target's strategy are in no source file"):
        plan_conversion.fn(request, source, target)


def test_no_strategy_is_no_cut(tmp_path: Path) -> None:
    whole = str(FOUR_TO_THREE.directory / "full")
    assert find_source_strategy.fn(SourceRequest(source=whole)) is None
    assert outline_target.fn(FOUR_TO_THREE.request(tmp_path / "out", target_strategy="")).strategy is None


def test_a_task_that_is_stopped_is_cancelled_and_did_not_fail(tmp_path: Path) -> None:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    with resources_of(request), open_session(request, make_plan(request)) as session, disable_run_logger():
        progress = RunProgress(SilentProgress(), threading.Event())
        progress.stop()
        with reporting_to(progress):
            ended: State[Any] = transform_rank.fn(Assignment.of(session), FIRST_RANK)
    assert ended.is_cancelled()
    assert isinstance(ended.data, StoppedError)

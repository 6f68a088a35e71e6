"""The context of a run in a Dask worker."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from uuid import UUID, uuid4

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_API_URL

from reshard.flows import dask_worker
from reshard.flows.dask_worker import pickled_context, run_in_context
from reshard.tasks.policies import RETRIED
from tests.support.patience import until


@task(name="look", **RETRIED)
def look(number: int) -> tuple[int, str | None, str | None, str | None]:
    if number < 0:
        raise ValueError("negative")
    return number, flow_run.id, task_run.id, PREFECT_API_URL.value()


@flow(name="look-around", persist_result=False)
def look_around(numbers: list[int]) -> tuple[str, list[UUID], list[State]]:
    context, ids = pickled_context(), [uuid4() for _ in numbers]

    def work(number: int, task_run_id: UUID) -> State:
        # a worker's thread knows nothing of the run
        return Context().run(run_in_context, context, look, task_run_id, {"number": number})

    with ThreadPoolExecutor(4) as threads:
        return str(flow_run.id), ids, list(threads.map(work, numbers, ids))


def test_tasks_of_a_run_share_its_context_which_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    make = dask_worker._made

    def counted(pickled: bytes) -> Context:
        made.append(pickled)
        return make(pickled)

    monkeypatch.setattr(dask_worker, "_made", counted)
    runs = [look_around([1, 2, 3, 4, 5]) for _ in range(2)]
    assert len(made) == 2
    assert runs[0][0] != runs[1][0]
    for run_id, ids, states in runs:
        for number, (task_run_id, state) in enumerate(zip(ids, states, strict=True), 1):
            assert state.is_completed()
            assert state.result() == (number, run_id, str(task_run_id), PREFECT_API_URL.value())


def test_a_task_that_fails_leaves_the_context_as_it_was() -> None:
    _, _, states = look_around([-1, 2, -3, 4])
    assert [state.name for state in states] == ["Failed", "Completed", "Failed", "Completed"]


def test_the_server_knows_the_tasks_and_their_run() -> None:
    run_id, ids, _ = look_around([1, 2])
    with get_client(sync_client=True) as client:

        def runs_of_tasks() -> set[str]:
            with suppress(ObjectNotFound):  # they are recorded a moment later
                return {str(client.read_task_run(each).flow_run_id) for each in ids}
            return set()

        assert until(runs_of_tasks, "the tasks are not recorded") == {run_id}

"""Runs of flows in this process, as Prefect's API shows them."""

from collections.abc import Callable
from typing import Generic, TypeVar
from uuid import UUID

from prefect import Flow, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.objects import TaskRun as PrefectTaskRun
from prefect.client.schemas.sorting import TaskRunSort

from tests.support.patience import until

Request = TypeVar("Request")
Report = TypeVar("Report")


class Run(Generic[Request, Report]):
    """A finished run."""

    def __init__(self, flow: Flow[[Request], Report], request: Request) -> None:
        self.state: State[Report] = flow(request, return_state=True)
        assert self.state.state_details.flow_run_id
        self.id: UUID = self.state.state_details.flow_run_id

    @property
    def stored_run(self) -> FlowRun:
        """The run on the server."""
        with get_client(sync_client=True) as client:
            return client.read_flow_run(self.id)

    @property
    def artifacts(self) -> dict[str, str]:
        """What the run left, by key."""
        ours = {"artifacts": {"flow_run_id": {"any_": [str(self.id)]}}}
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/artifacts/filter", json=ours).json()
        return {artifact["key"]: artifact["data"] for artifact in found}

    def tasks(self, complete: Callable[[dict[str, PrefectTaskRun]], bool]) -> dict[str, PrefectTaskRun]:
        """Its finished tasks, by name, once they are complete: the server learns of them a little later."""
        ours = FlowRunFilter(id=FlowRunFilterId(any_=[self.id]))

        def found() -> dict[str, PrefectTaskRun] | None:
            with get_client(sync_client=True) as client:
                runs = client.read_task_runs(flow_run_filter=ours, sort=TaskRunSort.ID_DESC, limit=100)
            ended = {run.name: run for run in runs if run.state and run.state.is_final()}
            return ended if complete(ended) else None

        return until(found, f"tasks of run {self.id} are missing")
